"""The words follow the figures, whichever way these went."""

import pytest

from shoal.node.report.comparison import Finding, Pair, Relation, beside, compare_arms, headline, learned
from shoal.node.report.intervals import wilson

LOW, MIDDLE, HIGH = wilson(20, 200), wilson(60, 200), wilson(140, 200)
NEAR = wilson(66, 200)


@pytest.mark.parametrize(
    ("before", "after", "relation", "words"),
    [
        (LOW, HIGH, Relation.HIGHER, "rose from 10.0 %"),
        (HIGH, LOW, Relation.LOWER, "fell from 70.0 %"),
        (MIDDLE, NEAR, Relation.UNCLEAR, "no clear change"),
    ],
)
def test_learning_is_told_as_it_was(before, after, relation: Relation, words: str) -> None:
    finding = learned(before, after)
    assert finding.relation is relation
    assert words in finding.text


@pytest.mark.parametrize(
    ("arm", "other", "relation", "words"),
    [
        ("isolated", LOW, Relation.HIGHER, "Sharing helped by 20.0 points"),
        ("isolated", HIGH, Relation.LOWER, "Sharing hurt by 40.0 points"),
        ("isolated", NEAR, Relation.UNCLEAR, "No clear difference"),
        ("isolated_total", LOW, Relation.HIGHER, "Sharing beat sampling more alone by 20.0 points"),
        ("isolated_total", HIGH, Relation.LOWER, "Sampling as much alone did better by 40.0 points"),
        ("isolated_total", NEAR, Relation.UNCLEAR, "the 95 % intervals overlap"),
    ],
)
def test_each_control_is_told_as_it_was(arm: str, other, relation: Relation, words: str) -> None:
    finding = beside(Pair(arm, MIDDLE, other))
    assert finding.relation is relation
    assert words in finding.text


def test_a_comparison_before_the_end_names_its_round() -> None:
    assert "at round 20, the last that both have reached" in beside(Pair("isolated", MIDDLE, LOW, at=20)).text


@pytest.mark.parametrize(
    ("relation", "words"),
    [
        (Relation.HIGHER, "more together than alone"),
        (Relation.LOWER, "more alone than together"),
        (Relation.UNCLEAR, "no clear difference"),
    ],
)
def test_the_headline_goes_by_the_isolated_control(relation: Relation, words: str) -> None:
    rose = Finding("start", Relation.HIGHER, "")
    other = Finding("isolated_total", Relation.HIGHER, "")
    assert words in headline((rose, other, Finding("isolated", relation, "")))


def test_without_a_control_the_headline_claims_no_more_than_learning() -> None:
    assert headline((learned(LOW, HIGH),)) == "The nodes learned."
    assert headline(()) == "Not enough was measured to tell."


def test_all_findings_come_in_order() -> None:
    findings = compare_arms(learned(LOW, MIDDLE), [Pair("isolated", MIDDLE, LOW), Pair("isolated_total", MIDDLE, NEAR)])
    assert [finding.against for finding in findings] == ["start", "isolated", "isolated_total"]
