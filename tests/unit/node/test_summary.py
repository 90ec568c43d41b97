"""The figures of a run, worked out by hand on a small one, and on runs that were stopped."""

import json
from pathlib import Path
from typing import Any

import pytest
from fake_run import FakeRun

from shoal.node.report.comparison import Relation
from shoal.node.report.intervals import percent
from shoal.node.report.runlog import setting
from shoal.node.report.summary import Summary, lines, summarise
from shoal.protocol.errors import EnvironmentFault

RUN = {
    "event": "run",
    "version": "0.1.0",
    "config": {"swarm": {"nodes": 3, "rounds": 2}},
    "arms": ["isolated", "swarm"],
    "nodes": [
        {"node": 0, "key": "aa", "skills": ["one"], "attacker": None},
        {"node": 1, "key": "bb", "skills": ["two"], "attacker": None},
        {"node": 2, "key": "cc", "skills": ["one"], "attacker": "text"},
    ],
}


def _step(node: int, round_: int, reward: float | None, **more: Any) -> dict[str, Any]:
    return {"event": "step", "arm": "swarm", "node": node, "round": round_, "reward": reward, "tokens": 10, **more}


def _eval(node: int, round_: int, one: float, two: float, arm: str = "swarm") -> dict[str, Any]:
    by_task = {"set/one": one, "set/two": two}
    accuracy = (one + two) / 2
    head = {"event": "eval", "arm": arm, "node": node, "round": round_, "items": 100}
    return head | {"accuracy": accuracy, "by_task": by_task}


def _write(folder: Path, events: list[dict[str, Any]], tail: str = "") -> Summary:
    text = "".join(json.dumps(event) + "\n" for event in events)
    (folder / "metrics.jsonl").write_text(text + tail, encoding="utf-8")
    return summarise(folder)


@pytest.fixture
def small(tmp_path: Path) -> Summary:
    """Three nodes, one of them an attacker, two rounds; node 1 passes twice in round 1 and has one unscored step."""
    events = [
        RUN,
        *(_eval(node, 0, 0.4, 0.0) for node in range(3)),
        _step(0, 1, 0.2, ages={"0": 2, "1": 1}, lags={"10": 1, "9": 2}, verdicts={"screen/accepted": 3}, own_rows=8),
        _step(1, 1, 0.4, ages={"1": 1}, verdicts={"text/bidi_character": 2, "choice/used": 1}, peer_rows=4),
        _step(1, 1, 0.6, verdicts={"duplicates/evicted_text": 5, "quota/messages": 1}, shortfall=2),
        _step(2, 1, 1.0, ages={"4": 9}, verdicts={"header/stale": 99}),
        _step(0, 2, 0.3),
        _step(1, 2, None),
        _eval(0, 2, 0.8, 0.6),
        _eval(1, 2, 0.6, 0.8),
        _eval(2, 2, 0.0, 0.0),
        {"event": "end", "arm": "swarm", "rounds": 2, "complete": True},
    ]
    timing = {"arm": "swarm", "node": 0, "round": 1, "seconds": {"sample": 1.5, "update": 0.5}}
    timings = [timing | {"tokens_per_second": 100, "rss_mb": 5}, timing | {"tokens_per_second": 300, "rss_mb": 7}]
    (tmp_path / "timings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in timings))
    return _write(tmp_path, events)


def test_the_attacker_is_in_no_mean(small: Summary) -> None:
    swarm = small.arm("swarm")
    assert swarm is not None
    assert [node.attacker for node in swarm.nodes] == [None, None, "text"]
    assert swarm.reward == ((1, pytest.approx(0.35)), (2, pytest.approx(0.3)))  # (0.2 + (0.4 + 0.6) / 2) / 2
    assert swarm.cumulative_reward == pytest.approx((0.2 + 0.3 + 0.4 + 0.6) / 2)
    assert swarm.accuracy == ((0, pytest.approx(0.2)), (2, pytest.approx(0.7)))
    assert swarm.cost.tokens == 50
    assert "header/stale" not in swarm.intake.verdicts


def test_accuracies_are_pooled_over_items_of_honest_nodes(small: Summary) -> None:
    swarm = small.arm("swarm")
    assert swarm is not None
    assert swarm.before is not None
    assert swarm.after is not None
    assert (swarm.before.mean, swarm.before.items) == (pytest.approx(0.2), 200)
    assert (swarm.after.mean, swarm.after.items) == (pytest.approx(0.7), 200)
    assert (swarm.nodes[0].before, swarm.nodes[0].after) == (pytest.approx(0.2), pytest.approx(0.7))
    assert [(task.task, task.before, task.after) for task in swarm.tasks] == [
        ("set/one", pytest.approx(0.4), pytest.approx(0.7)),
        ("set/two", pytest.approx(0.0), pytest.approx(0.7)),
    ]


def test_the_tasks_that_a_node_could_not_do_are_told_apart(small: Summary) -> None:
    swarm = small.arm("swarm")
    assert swarm is not None
    assert swarm.others_before == pytest.approx((0.0 + 0.4) / 2)  # node 0 on two, node 1 on one
    assert swarm.others_after == pytest.approx((0.6 + 0.6) / 2)


def test_intake_counts_what_was_accepted_refused_and_merely_noted(small: Summary) -> None:
    swarm = small.arm("swarm")
    assert swarm is not None
    intake = swarm.intake
    assert (intake.accepted, intake.refused) == (3, 3)
    assert list(intake.refusals.items()) == [("text/bidi_character", 2), ("quota/messages", 1)]
    assert list(intake.notes.items()) == [("duplicates/evicted_text", 5), ("choice/used", 1)]
    assert list(intake.ages.items()) == [(0, 2), (1, 2)]
    assert list(intake.lags.items()) == [(9, 2), (10, 1)]
    assert (intake.own_rows, intake.peer_rows, intake.shortfall) == (8, 4, 2)


def test_cost_comes_from_the_timings(small: Summary) -> None:
    swarm = small.arm("swarm")
    assert swarm is not None
    assert swarm.cost.seconds == {"sample": 3.0, "update": 1.0}
    assert (swarm.cost.tokens_per_second, swarm.cost.rss_mb) == (200, 7)


def test_an_arm_that_was_not_reached_is_left_out_and_the_run_counts_as_stopped(small: Summary) -> None:
    assert [arm.arm for arm in small.arms] == ["swarm"]
    assert not small.complete
    assert [finding.against for finding in small.findings] == ["start"]
    assert lines(small)[-1].startswith("The run was stopped before its end")


def test_a_whole_run_compares_all_arms(tmp_path: Path) -> None:
    summary = summarise(FakeRun(tmp_path).write())
    assert summary.complete
    assert {finding.against: finding.relation for finding in summary.findings} == dict.fromkeys(
        ("start", "isolated", "isolated_total"), Relation.HIGHER
    )
    text = lines(summary)
    assert "The nodes learned more together than alone." in text
    assert all(line.isprintable() for line in text)
    assert max(map(len, text[:4])) < 100
    assert (summary.attacks[0].attack, summary.attacks[0].arm) == ("text", "swarm")


def test_a_result_that_speaks_against_sharing_is_told(tmp_path: Path) -> None:
    run = FakeRun(tmp_path)
    run.ceiling = {"swarm": 0.4, "isolated": 0.7, "isolated_total": 0.41}
    summary = summarise(run.write())
    assert "The nodes learned more alone than together." in lines(summary)
    relations = {finding.against: finding.relation for finding in summary.findings}
    assert relations["isolated"] is Relation.LOWER
    assert relations["isolated_total"] is Relation.UNCLEAR


def test_a_line_cut_off_by_an_interruption_is_left_out(tmp_path: Path) -> None:
    whole = summarise(FakeRun(tmp_path / "a").write(rounds_done=22))
    cut = summarise(FakeRun(tmp_path / "b").write(rounds_done=22, tail='{"event": "step", "arm": "isola'))
    assert cut.truncated
    assert not whole.truncated
    assert cut.arms == whole.arms


def test_an_interrupted_arm_is_compared_at_the_last_common_round(tmp_path: Path) -> None:
    summary = summarise(FakeRun(tmp_path).write(rounds_done=22))
    texts = {finding.against: finding.text for finding in summary.findings}
    assert "round" not in texts["isolated"]
    assert "at round 20, the last that both have reached" in texts["isolated_total"]
    swarm = summary.arm("swarm")
    assert swarm is not None
    assert f"the swarm at {percent(dict(swarm.accuracy)[20])}" in texts["isolated_total"]


def test_damage_before_the_last_line_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"metrics\.jsonl line 2 is not JSON"):
        _write(tmp_path, [RUN], '{"event": "st\n' + json.dumps(_step(0, 1, 0.1)) + "\n")


@pytest.mark.parametrize("content", [None, "", '{"event": "step"}\n'], ids=["missing", "empty", "headless"])
def test_a_folder_without_a_run_is_an_error(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "metrics.jsonl").write_text(content)
    with pytest.raises(EnvironmentFault):
        summarise(tmp_path)


def test_a_run_that_has_only_begun_says_so(tmp_path: Path) -> None:
    assert lines(_write(tmp_path, [RUN]))[0] == "Nothing was measured yet."


def test_a_setting_is_found_in_whatever_group_it_lies() -> None:
    config = {"mixing": {"local": 4}, "swarm": {"rounds": 9}}
    assert setting(config, "rounds") == 9
    assert setting(config, "nowhere", 5) == 5
    assert setting(None, "rounds", 5) == 5
