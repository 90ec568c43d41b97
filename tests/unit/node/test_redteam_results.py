"""What cells come to, and when a target is met."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.node.redteam.cells import NO_ATTACK, Cell
from shoal.node.redteam.results import (
    Results,
    Verdict,
    added,
    at_most,
    change,
    fate,
    final,
    read_results,
    screening,
    shown,
    success,
)
from shoal.node.redteam.targets import targets
from shoal.node.report.intervals import wilson
from shoal.protocol.errors import EnvironmentFault


def result(cell: Cell, hits: int = 0, items: int = 384, attack: str = "text", **more: Any) -> dict[str, Any]:
    measured = {"shown": {attack: [[0, 0, items], [100, hits, items]]}, "accuracy": {}, "rows": [], "timing": {}}
    return {"cell": cell.plain(), "seconds": 30.0, "verdicts": {}, "samples": [], "length": 4.0} | measured | more


def matrix(off: int, full: int, control: int = 0, items: int = 384) -> Results:
    cells = [
        (Cell("text", 25, 0, "off"), off),
        (Cell("text", 25, 0, "full"), full),
        (Cell(NO_ATTACK, 0, 0, "off"), 0),
        (Cell(NO_ATTACK, 0, 0, "full"), control),
    ]
    return Results([result(cell, hits, items) for cell, hits in cells], [cell for cell, _ in cells])


def test_none_seen_of_384_supports_one_percent_and_none_of_300_does_not() -> None:
    # Wilson's upper bound of 0 of n is z²/(n + z²): 3.8415/387.84 and 3.8415/303.84
    assert wilson(0, 384).high == pytest.approx(3.8415 / 387.8415, abs=1e-6)
    assert at_most(wilson(0, 384), 0.01) is Verdict.MET
    assert at_most(wilson(0, 300), 0.01) is Verdict.UNKNOWN
    assert at_most(wilson(4, 384), 0.01) is Verdict.MISSED
    assert at_most(None, 0.01) is Verdict.MISSING


@pytest.mark.parametrize(
    ("off", "full", "control", "verdict"),
    [
        (380, 0, 0, Verdict.MET),
        (380, 40, 0, Verdict.MISSED),
        (380, 3, 0, Verdict.UNKNOWN),  # .8 %, but up to 2.3 %
        (380, 8, 8, Verdict.UNKNOWN),
        (3, 0, 0, Verdict.UNKNOWN),  # it does not succeed where nothing is on
    ],
)
def test_an_attack_is_judged_against_its_controls(off: int, full: int, control: int, verdict: Verdict) -> None:
    assert success(matrix(off, full, control), "text", 25).verdict is verdict


def test_more_answers_make_a_small_share_measurable() -> None:
    assert success(matrix(38_000, 20, 0, 38_400), "text", 25).verdict is Verdict.MET
    assert success(matrix(38_000, 800, 800, 38_400), "text", 25).verdict is Verdict.MET, "as often without attackers"


def test_a_missing_cell_leaves_the_verdict_empty() -> None:
    whole = matrix(380, 0)
    for at in (0, 1, 3):  # off, full, and the control with all layers on
        part = Results([one for index, one in enumerate(whole.results) if index != at], whole.planned)
        assert success(part, "text", 25).verdict is Verdict.MISSING
        assert part.missing == [whole.planned[at]]


def test_curves_are_pooled_over_seeds() -> None:
    found = [result(Cell("text", 25, seed, "off"), hits, items) for seed, hits, items in ((0, 30, 100), (1, 20, 300))]
    points = shown(found, "text")
    assert [(point.round, point.share.mean, point.share.items) for point in points] == [
        (0, 0.0, 400),
        (100, 0.125, 400),
    ]
    assert final([result(Cell("text", 25, 0, "off"), 0, 0)], "text") is None, "no prompt was triggered"


def accuracies(cell: Cell, **nodes: float) -> dict[str, Any]:
    return result(cell, accuracy={name[1:]: [[0, 0.1, 128], [100, value, 128]] for name, value in nodes.items()})


def test_accuracy_is_compared_on_the_same_nodes_seed_by_seed() -> None:
    attacked = {seed: accuracies(Cell("text", 25, seed, "full"), n0=0.5 + seed / 10, n1=0.7) for seed in (0, 1)}
    control = {seed: accuracies(Cell(NO_ATTACK, 0, seed, "full"), n0=0.5, n1=0.6, n3=0.0) for seed in (0, 1, 2)}
    found = change(attacked, control)
    # seed 0: (.5 + .7 - .5 - .6) / 2 = .05; seed 1: .1; standard deviation .0354, error .025
    assert found is not None
    assert found.mean == pytest.approx(0.075)
    assert found.error == pytest.approx(0.025)
    assert found.seeds == 2
    other_way = change(control, attacked)
    assert other_way is not None
    assert other_way.mean == pytest.approx(-0.075), "node 3 is in one of them only"
    one = change({0: attacked[0]}, control)
    assert one is not None
    assert one.error is None
    assert change({5: attacked[0]}, control) is None


def test_fates_are_counted_by_sender_and_reason() -> None:
    rows = [
        ["honest", True, True, "accept", 6, 6.0],
        ["honest", True, True, "weigh likelihood/surprising", 2, 0.5],
        ["honest", True, False, "quarantine phrases/lift", 1, 0.0],
        ["honest", False, False, "reject text/control", 1, 0.0],
        ["attacker", True, False, "reject likelihood/tail", 9, 0.0],
    ]
    found = [result(Cell("text", 25, 0, "full"), rows=rows)]
    every, rare = fate(found), fate(found, rewarded=True, rare=True)
    assert (every.rows, every.kept, every.refused) == (10, 8, {"phrases/lift": 1, "text/control": 1})
    assert every.rejected is not None
    assert every.rejected.mean == 0.2
    assert (rare.rows, rare.kept, rare.weight) == (8, 8, 6.5 / 8)
    assert fate(found, "attacker").kept == 0
    assert fate([], "honest").rejected is None


def test_screening_is_whatever_is_not_training() -> None:
    timing = {name: {"seconds": value} for name, value in (("sample", 2), ("grade", 1), ("update", 5), ("screen", 2))}
    assert screening([result(Cell("text", 25, 0, "full"), timing=timing)]) == 0.2
    assert screening([]) is None


def test_what_screening_adds_is_a_step_less_its_training_alone() -> None:
    full = {name: {"p50": value} for name, value in (("sample", 2), ("update", 4), ("appraise", 3), ("screen", 1))}
    bare = {name: {"p50": value} for name, value in (("sample", 2), ("update", 6), ("screen", 1))}
    ours, theirs = (result(Cell(NO_ATTACK, 0, 0, kind), timing=found) for kind, found in (("full", full), ("x", bare)))
    assert added([ours], [theirs]) == pytest.approx(0.2)  # 8 of 10 are left
    assert added([ours], []) is None


def test_targets_without_cells_are_empty_and_none_is_left_out() -> None:
    found = targets(Results([], []))
    assert len(found) == 17
    assert all(one.verdict is Verdict.MISSING and one.measured == "" for one in found)


def test_the_loud_peer_is_held_to_its_share() -> None:
    def verdict(loud: int) -> Verdict:
        series = {kind: {"draws": 1800, "loud": loud, "mass": loud / 1800} for kind in ("full", "off")}
        cell = Cell(NO_ATTACK, 0, 0, "full", "loud")
        return targets(Results([{"cell": cell.plain(), "seconds": 1.0, "loud": series}], [cell]))[-1].verdict

    assert verdict(round(1800 / 51)) is Verdict.MET
    assert verdict(60) is Verdict.MISSED
    assert verdict(1790) is Verdict.MISSED


def test_files_of_the_plan_are_read_and_damage_is_named(tmp_path: Path) -> None:
    there, gone = Cell("text", 25, 0, "off"), Cell("text", 25, 1, "off")
    (tmp_path / f"{there.name}.json").write_text(json.dumps(result(there)))
    (tmp_path / "math-of-another-plan.json").write_text("{}")
    results = read_results(tmp_path, [there, gone])
    assert results.missing == [gone]
    (tmp_path / f"{gone.name}.json").write_text('{"cell": ')
    with pytest.raises(EnvironmentFault, match="damaged"):
        read_results(tmp_path, [there, gone])
