"""Red when no step ends in the expected time, and only then (field failures 15 and 16)."""

import pytest

from shoal.node.health import ready, seconds_without_step, step_limit, stepping

RUNNING = {
    "mode": "train",
    "phase": "sampling",
    "uptime_seconds": 5000.0,
    "active_seconds": 5000.0,
    "last_step_age_seconds": 10.0,
    "expected_step_seconds": 30.0,
    "steps_total": 7,
    "failures_in_a_row": 0,
    "swarm": {"id": "ab", "round_seconds": 60},
    "network": {"daemon_alive": True},
}


@pytest.mark.parametrize(
    ("expected", "round_seconds", "limit"),
    [(30.0, 60, 180.0), (100.0, 60, 300.0), (1.0, 1, 120.0), (None, None, 120.0), (41.0, 40, 123.0)],
)
def test_the_limit_is_three_steps_three_rounds_or_the_grace(
    expected: float | None, round_seconds: int | None, limit: float
) -> None:
    status = RUNNING | {"expected_step_seconds": expected, "swarm": {"round_seconds": round_seconds}}
    assert step_limit(status) == limit


@pytest.mark.parametrize(("age", "good"), [(0.0, True), (179.9, True), (180.0, True), (180.1, False), (9999.0, False)])
def test_red_when_no_step_ended_within_the_limit(age: float, good: bool) -> None:
    verdict, reason = stepping(RUNNING | {"last_step_age_seconds": age, "uptime_seconds": 1e6, "active_seconds": 1e6})
    assert verdict is good
    assert f"{age:.0f} s" in reason
    assert "limit 180 s" in reason
    assert reason.startswith("stepping" if good else "stuck in sampling")


def test_a_node_whose_first_step_never_ends_turns_red() -> None:
    status = RUNNING | {"last_step_age_seconds": None, "steps_total": 0, "phase": "starting"}
    assert stepping(status | {"uptime_seconds": 100.0, "active_seconds": 100.0})[0] is True
    verdict, reason = stepping(status | {"uptime_seconds": 181.0, "active_seconds": 181.0})
    assert verdict is False
    assert "no step ended yet" in reason


def test_failing_for_ever_is_not_stepping() -> None:
    verdict, reason = stepping(RUNNING | {"last_step_age_seconds": 200.0, "failures_in_a_row": 4})
    assert verdict is False
    assert "4 failed in a row" in reason


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"paused": True}, "paused"),
        ({"phase": "paused"}, "paused"),
        ({"phase": "waiting_for_genesis"}, "genesis"),
        ({"phase": "draining"}, "draining"),
        ({"mode": "bootstrap_only"}, "bootstrap-only"),
        ({"phase": "waiting", "swarm": {"round": 7}, "step": {"round": 9}}, "the clock was set back to round 7"),
    ],
)
def test_a_node_without_a_step_to_take_is_not_stuck(changes: dict[str, object], says: str) -> None:
    verdict, reason = stepping(RUNNING | {"last_step_age_seconds": 1e6} | changes)
    assert verdict is True
    assert says in reason


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "observe"},
        {"mode": "rollouts_only"},
        {"phase": "waiting", "swarm": {"round": 10}, "step": {"round": 9}},
        {"phase": "gathering", "swarm": {"round": 7}, "step": {"round": 9}},
    ],
)
def test_whoever_makes_passes_is_watched(changes: dict[str, object]) -> None:
    assert (
        stepping(RUNNING | {"last_step_age_seconds": 1e6, "active_seconds": 1e6, "uptime_seconds": 1e6} | changes)[0]
        is False
    )


def test_a_resumed_node_gets_its_full_time_again() -> None:
    long_ago = RUNNING | {"last_step_age_seconds": 4000.0}
    assert stepping(long_ago | {"active_seconds": 5.0})[0] is True
    assert stepping(long_ago | {"active_seconds": 4000.0})[0] is False


def test_a_status_that_was_kept_grows_old() -> None:
    assert seconds_without_step(RUNNING) == 10.0
    assert seconds_without_step(RUNNING, since=100.0) == 110.0
    assert stepping(RUNNING, since=169.0)[0] is True
    assert stepping(RUNNING, since=171.0)[0] is False


def test_an_empty_status_breaks_nothing() -> None:
    assert stepping({})[0] is True
    assert ready({}) == (False, "no manifest yet")


@pytest.mark.parametrize(
    ("changes", "good", "says"),
    [
        ({}, True, "ready"),
        ({"swarm": {}}, False, "manifest"),
        ({"network": {"daemon_alive": False}}, False, "transport"),
        ({"network": {}}, False, "transport"),
        ({"steps_total": 0}, False, "no step done yet"),
        ({"steps_total": 0, "mode": "bootstrap_only"}, True, "bootstrap-only"),
        ({"steps_total": 0, "mode": "rollouts_only"}, False, "no step done yet"),
        ({"phase": "draining"}, False, "draining"),
        ({"paused": True}, True, "ready"),
    ],
)
def test_readiness(changes: dict[str, object], good: bool, says: str) -> None:
    verdict, reason = ready(RUNNING | changes)
    assert verdict is good
    assert says in reason
