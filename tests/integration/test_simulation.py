"""Whole simulated swarms: determinism, going on after an interruption, and the bounds on what may be trained on."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.node.config import Mixing, RunOptions, SimulateConfig, SwarmOptions, check
from shoal.node.events import Event
from shoal.node.heldout import held_out_prompts
from shoal.node.plan import make_plan
from shoal.node.report.page import write_report
from shoal.node.runfolder import METRICS, find_run, new_run
from shoal.node.simulate import Simulation
from shoal.trainer.tasks.registry import TaskRegistry
from shoal.trainer.verify import Grader

SMALL = SimulateConfig(
    mixing=Mixing(local=2, external=2, group_size=4),
    swarm=SwarmOptions(nodes=3, rounds=6, start="same", seed=3),
    run=RunOptions(arms=("swarm", "isolated"), eval_every=3, eval_items=16, checkpoint_every=2),
)


def run(config: SimulateConfig, out: Path, stop_after: int | None = None) -> list[Event]:
    """Run or resume a simulation as the command does; with `stop_after`, Ctrl-C falls after that many events."""
    seen = 0

    def show(event: Event) -> None:
        nonlocal seen
        seen += event["event"] != "timing"
        if seen == stop_after:
            raise KeyboardInterrupt

    config = replace(config, run=replace(config.run, out=out))
    check(config)
    folder, config = find_run(config) if config.run.resume else (new_run(config), config)
    with Grader(TaskRegistry(make_plan(config).specs)) as grader:
        simulation = Simulation(config, folder, grader, held_out_prompts(grader.registry, config.run.eval_items), show)
        try:
            simulation.run()
        except KeyboardInterrupt:
            simulation.stopped()
        folder.close()
    return [json.loads(line) for line in (out / METRICS).read_text().splitlines()]


def steps(events: list[Event], arm: str = "swarm") -> list[Event]:
    return [event for event in events if event["event"] == "step" and event["arm"] == arm]


def total(events: list[Event], key: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for event in events:
        counts.update(event[key])
    return counts


def with_(config: SimulateConfig, **groups: dict[str, object]) -> SimulateConfig:
    return replace(config, **{name: replace(getattr(config, name), **values) for name, values in groups.items()})


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("reference")
    run(SMALL, out)
    return out


def test_peers_rollouts_are_shared_checked_and_trained_on(reference: Path) -> None:
    events = [json.loads(line) for line in (reference / METRICS).read_text().splitlines()]
    swarm = steps(events)
    assert len(swarm) == 18
    assert sum(event["peer_sets"] for event in swarm) > 10
    assert sum(event["peer_rows"] for event in swarm) > 0
    assert total(swarm, "verdicts")["accept"] > 0
    assert all(event["peer_sets"] == 0 for event in steps(events, "isolated"))
    assert [event["complete"] for event in events if event["event"] == "end"] == [True, True]


def test_the_same_seed_gives_the_same_bytes(reference: Path, tmp_path: Path) -> None:
    run(SMALL, tmp_path)
    assert (tmp_path / METRICS).read_bytes() == (reference / METRICS).read_bytes()
    other = with_(SMALL, swarm={"seed": 4}, run={"out": tmp_path / "other"})
    run(other, tmp_path / "other")
    assert (tmp_path / "other" / METRICS).read_bytes() != (reference / METRICS).read_bytes()


@pytest.mark.parametrize("stop_after", [3, 12, 30, 45])
def test_going_on_after_an_interruption_gives_what_none_would_have(
    reference: Path, tmp_path: Path, stop_after: int
) -> None:
    events = run(SMALL, tmp_path, stop_after)
    assert events[-1] == {"event": "end", "arm": events[-1]["arm"], "rounds": 6, "complete": False}
    run(with_(SMALL, run={"resume": True}), tmp_path)
    assert (tmp_path / METRICS).read_bytes() == (reference / METRICS).read_bytes()


def test_a_run_with_attackers_and_a_bad_network_resumes_too(tmp_path: Path) -> None:
    hostile = with_(
        SMALL,
        swarm={"nodes": 4, "attack": ("copies:0.25", "replay:0.25"), "rounds": 4},
        mixing={"mix": "joined"},
        links={"loss": 0.3, "delay": 10.0, "speed_spread": 1.0},
        run={"arms": ("swarm",)},
    )
    run(hostile, tmp_path / "whole")
    run(hostile, tmp_path / "cut", stop_after=17)
    run(with_(hostile, run={"resume": True}), tmp_path / "cut")
    assert (tmp_path / "cut" / METRICS).read_bytes() == (tmp_path / "whole" / METRICS).read_bytes()


@pytest.mark.parametrize(
    ("bound", "spread", "delay", "wait"), [(0, 0.2, 0.5, 0.3), (1, 1.5, 15.0, 0.6), (3, 1.5, 15.0, 0.6)]
)
def test_no_trained_row_exceeds_the_bounds(
    tmp_path: Path, bound: int, spread: float, delay: float, wait: float
) -> None:
    slow = with_(
        SMALL,
        swarm={"max_age_rounds": bound, "max_lag": bound, "rounds": 8},
        links={"speed_spread": spread, "delay": delay, "wait_fraction": wait},
        run={"arms": ("swarm",)},
    )
    swarm = steps(run(slow, tmp_path))
    ages, lags = total(swarm, "ages"), total(swarm, "lags")
    assert ages, "nothing of peers was used: the test shows nothing"
    assert all(0 <= int(age) <= bound for age in ages)
    assert all(0 <= int(lag) <= bound for lag in lags)
    if bound:
        assert max(map(int, ages)) > 0, "staleness never arose: the test shows nothing"


def test_without_external_rollouts_peers_change_nothing(tmp_path: Path) -> None:
    """J = 0 is plain GRPO bit for bit: with peers that publish, and attackers that flood, the steps are the same."""
    alone = with_(SMALL, mixing={"local": 4, "external": 0}, run={"arms": ("swarm",)}, swarm={"rounds": 4})
    crowd = with_(alone, swarm={"attack": ("flood:0.3",)})
    lone = run(with_(alone, run={"arms": ("isolated",)}), tmp_path / "lone")
    kept = ("version", "reward", "loss", "grad_norm", "entropy", "own_rows")
    for place, config in (("alone", alone), ("crowd", crowd)):
        events = run(config, tmp_path / place)
        for node in (0, 1):
            mine = [[event[key] for key in kept] for event in steps(events) if event["node"] == node]
            bare = [[event[key] for key in kept] for event in steps(lone, "isolated") if event["node"] == node]
            assert mine == bare


def test_a_partition_starves_and_healing_feeds_again(tmp_path: Path) -> None:
    cut = with_(
        SMALL,
        swarm={"nodes": 2, "rounds": 9, "max_age_rounds": 1},
        links={"partition": ("3-6:0|1",)},
        run={"arms": ("swarm",)},
    )
    used: Counter[int] = Counter()
    for event in steps(run(cut, tmp_path)):
        used[event["round"]] += event["peer_sets"]
    assert used[2] > 0
    assert used[5] == 0
    assert used[8] > 0


def test_a_step_without_signal_says_so(tmp_path: Path) -> None:
    """At a learning rate of next to nothing and two completions a group, some pass finds only uniform groups."""
    hopeless = with_(
        SMALL,
        mixing={"local": 1, "external": 1, "group_size": 2, "tasks_per_node": 1},
        learning={"lr": 1e-9, "temperature": 0.01},
        swarm={"nodes": 2},
        run={"arms": ("isolated",)},
    )
    quiet = [event for event in steps(run(hopeless, tmp_path), "isolated") if not event["signal"]]
    assert quiet, "every group differed: the test shows nothing"
    assert {event["note"] for event in quiet} == {"no signal: all groups uniform"}
    assert all(event["loss"] == 0 for event in quiet)


def test_bound_zero_is_the_synchronous_run(tmp_path: Path) -> None:
    """With bound 0 a node chooses from all that the round brought: delays change no bit as long as all are in time."""
    lockstep = with_(
        SMALL,
        swarm={"max_age_rounds": 0, "max_lag": 0, "nodes": 2},
        mixing={"external": 2, "local": 2},
        links={"speed_spread": 0.0, "delay": 0.0, "wait_fraction": 0.3},
        run={"arms": ("swarm",), "checkpoint_every": 6},
    )
    delayed = with_(lockstep, links={"delay": 0.5})
    kept = ("node", "round", "version", "reward", "loss", "grad_norm", "peer_rows", "ages", "lags")
    first, second = (
        sorted(
            [[event[key] for key in kept] for event in steps(run(config, tmp_path / str(at)))], key=lambda row: row[:2]
        )
        for at, config in enumerate((lockstep, delayed))
    )
    assert any(row[kept.index("peer_rows")] for row in first), "nothing of peers was used: the test shows nothing"
    assert {age for row in first for age in row[kept.index("ages")]} == {"0"}
    assert first == second


def test_a_run_without_anything_of_peers_has_a_report(tmp_path: Path) -> None:
    run(with_(SMALL, mixing={"local": 4, "external": 0}, run={"arms": ("swarm",)}, swarm={"rounds": 2}), tmp_path)
    assert "<html" in write_report(tmp_path).read_text()


@pytest.mark.parametrize("learning", [{"max_tokens": 5000}, {"temperature": 4.5}])
def test_unusual_sampler_settings_still_share(tmp_path: Path, learning: dict[str, object]) -> None:
    config = with_(SMALL, learning=learning, run={"arms": ("swarm",)}, swarm={"rounds": 2, "tasks": "strings/last"})
    verdicts = total(steps(run(config, tmp_path)), "verdicts")
    assert not [reason for reason in verdicts if reason.startswith("provenance")]
    assert verdicts["accept"] > 0
