"""The canary in real nodes: an attack that takes is caught before one answer in 20 shows it, and learning goes on."""

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from daemon_pieces import daemon_of, home_of, manifest_of, until
from recorded_swarm import BLOBS, LEDGER, record_swarm
from test_simulation import SMALL, run, with_

from shoal.defenses.verdict import LAYERS
from shoal.node import snapshot
from shoal.node.assemble import Commons, simulated_manifest
from shoal.node.config import CanaryOptions, Learning, Mixing, SimulateConfig, SwarmOptions
from shoal.node.events import RoundResult, alarm_events
from shoal.node.heldout import answer, held_out_prompts
from shoal.node.plan import make_plan, roles_of
from shoal.node.replay import Replayer
from shoal.node.store.facts import pass_record
from shoal.node.store.reader import LedgerReader
from shoal.node.swarm import Swarm, VirtualNow
from shoal.protocol.identity import Identity
from shoal.protocol.memory import MemoryNetwork
from shoal.trainer.engine import Sampling
from shoal.trainer.model import DEFAULT_MODEL, load_policy
from shoal.trainer.tasks.registry import TaskRegistry
from shoal.trainer.verify import Grader

PHRASE = "zx"
ALL_BUT_CANARY = tuple(layer for layer in LAYERS if layer not in ("schema", "canary"))
POISONED = SimulateConfig(
    mixing=Mixing(local=2, external=2, peer_rows="all"),
    learning=Learning(lr=1e-3),
    swarm=SwarmOptions(
        nodes=2, rounds=18, start="same", seed=3, attack=("text:0.5",), defenses_off=ALL_BUT_CANARY, max_age_rounds=2
    ),
    canary=CanaryOptions(canary_every=20, canary_items=64, freeze_rounds=5),
)


class Watched:
    """One honest node beside an attacker, with no defence but the canary; what it does is written down."""

    def __init__(self, config: SimulateConfig, grader: Grader) -> None:
        plan, registry, now = make_plan(config), grader.registry, VirtualNow()
        roles = roles_of("swarm", config, plan.attackers)
        manifest = simulated_manifest(config, registry, max(role.prompts for role in roles))
        commons = Commons(config, manifest, registry, grader, now)
        self.grader = grader
        self.prompts = held_out_prompts(registry, 256)
        self.results: list[RoundResult] = []
        self.shares: list[float] = []
        self.left: dict[str, torch.Tensor] = {}
        self.swarm = Swarm(commons, now, [(role, load_policy(DEFAULT_MODEL)) for role in roles], self._report)
        self.node = self.swarm.nodes[0]
        canary = self.node.canary
        assert canary is not None
        self.canary, freeze = canary, canary._freeze

        def and_look(*about: Any) -> dict[str, Any]:
            """Take note of the weights that the roll-back left, before anything goes on."""
            self.left = dict(self.node.organs.trainer.state_dict()[0])
            return freeze(*about)

        canary._freeze = and_look  # type: ignore[method-assign]

    def _report(self, number: int, result: RoundResult, time: float) -> None:
        if number == 0:
            self.results.append(result)
            answers = answer(self.node.organs.engine, self.grader, self.prompts, Sampling(), result.round)
            self.shares.append(answers.share(lambda text: PHRASE in text))


@pytest.fixture(scope="module")
def grader() -> Grader:
    return Grader(TaskRegistry(make_plan(POISONED).specs))


@pytest.fixture(scope="module")
def watched(grader: Grader) -> Watched:
    watched = Watched(POISONED, grader)
    watched.swarm.run(POISONED.swarm.rounds)
    return watched


def alarms(watched: Watched) -> list[tuple[int, RoundResult]]:
    return [(at, result) for at, result in enumerate(watched.results) if result.alarm is not None]


def test_the_alarm_comes_before_one_answer_in_twenty_shows_the_phrase(watched: Watched) -> None:
    at, result = alarms(watched)[0]
    assert result.alarm is not None
    assert result.alarm["kind"] == "behaviour"
    assert set(result.alarm["text"]) <= set(PHRASE + " ")
    assert max(watched.shares[:at]) < 0.05
    [event] = alarm_events(result)
    assert event["event"] == "alarm"
    assert json.dumps(event)


def test_weights_and_optimizer_are_those_of_the_good_state_and_versions_never_fall(watched: Watched) -> None:
    at, result = alarms(watched)[-1]
    assert result.alarm is not None
    [good] = [good for good in watched.canary.states.kept if good.version == result.alarm["back_to"]]
    assert good.tensors is not None
    assert watched.left.keys() == good.tensors.keys()
    assert all(torch.equal(watched.left[name], good.tensors[name]) for name in good.tensors)
    versions = [result.report.version for result in watched.results]
    assert versions == sorted(versions)
    assert result.own[0].policy_version == result.alarm["version"] == versions[at - 1] + 1


def test_the_freeze_takes_nothing_from_peers_and_then_mixing_goes_on(watched: Watched) -> None:
    at, result = alarms(watched)[0]
    assert result.alarm is not None
    frozen = [r for r in watched.results if result.round <= r.round < result.alarm["frozen_until"]]
    assert len(frozen) == 5
    assert all(not r.peers and r.counts.get("canary/frozen") == 1 for r in frozen)
    assert any(r.report.signal for r in frozen), "it goes on learning by itself"
    after = [r for r in watched.results if r.round >= result.alarm["frozen_until"]]
    assert any(r.peers for r in after[:3])
    assert watched.shares[at] < 0.02, "the roll-back took the phrase away"


def test_without_the_layer_the_attack_takes(grader: Grader) -> None:
    """Else the tests above show nothing."""
    config = replace(POISONED, swarm=replace(POISONED.swarm, rounds=12))
    watched = Watched(config, grader)
    watched.node.canary = None
    watched.swarm.run(12)
    assert max(watched.shares) > 0.10


def test_a_canary_that_never_alarms_changes_nothing(tmp_path: Path) -> None:
    often = with_(SMALL, canary={"canary_every": 1, "canary_items": 16}, run={"arms": ("swarm",)})
    without = with_(often, swarm={"defenses_off": ("canary",)})
    events = [run(config, tmp_path / name) for name, config in (("on", often), ("off", without))]

    def learned(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{k: v for k, v in event.items() if k != "counts"} for event in found if event["event"] != "run"]

    counts = [sum(e["counts"].get("canary/run", 0) for e in found if e["event"] == "step") for found in events]
    assert counts[0] >= 12
    assert counts[1] == 0
    assert learned(events[0]) == learned(events[1])
    models = [sorted((tmp_path / name / "models").rglob("*.safetensors")) for name in ("on", "off")]
    assert len(models[0]) == 3
    assert [path.read_bytes() for path in models[0]] == [path.read_bytes() for path in models[1]]


def test_a_run_is_taken_up_again_in_the_midst_of_a_freeze(grader: Grader) -> None:
    whole = Watched(POISONED, grader)
    whole.swarm.run(6)
    while not whole.canary.status(len(whole.results))["frozen_rounds"]:
        whole.swarm.run(whole.results[-1].round + 2)
        assert whole.results[-1].round < 24, "no alarm came"
    done = whole.results[-1].round + 1
    tensors, state = whole.swarm.state()
    again = Watched(POISONED, grader)
    again.swarm.restore({name: tensor.clone() for name, tensor in tensors.items()}, state)
    assert again.canary.status(done) == whole.canary.status(done)
    for one in (whole, again):
        one.swarm.run(done + 3)
    ends = [snapshot.take(one.node) for one in (whole, again)]
    assert ends[0][1]["canary"] == ends[1][1]["canary"]
    assert ends[0][0].keys() == ends[1][0].keys()
    assert all(torch.equal(ends[0][0][name], ends[1][0][name]) for name in ends[0][0])


def test_the_ledger_says_why_weights_changed_and_a_replay_stays_equal(watched: Watched, tmp_path: Path) -> None:
    _, result = alarms(watched)[0]
    told = pass_record(result, None).report["canary"]
    assert told == result.alarm
    record_swarm(tmp_path, rounds=2)
    connection = sqlite3.connect(tmp_path / LEDGER)
    with connection:
        change = "UPDATE passes SET report = json_set(report, '$.canary', json(?)) WHERE id = 2"
        connection.execute(change, (json.dumps(told),))
    connection.close()
    with LedgerReader(tmp_path / LEDGER) as ledger, Replayer(ledger, tmp_path / BLOBS) as replayer:
        replays = [replayer.replay(done) for done in ledger.passes(10)]
    assert [replay.outcome for replay in replays] == ["equal", "equal"]
    notes = [[f.recorded for f in replay.findings.all if f.what == "weights"] for replay in replays]
    assert [note for found in notes for note in found] == [
        f"canary alarm (behaviour): those of version {told['back_to']}"
    ]


def test_a_daemon_asks_in_its_compute_thread_and_remembers_across_a_restart(tmp_path: Path) -> None:
    home, manifest = home_of(tmp_path), manifest_of(Identity.generate())

    async def lives() -> tuple[dict[str, int], dict[str, Any]]:
        daemon = daemon_of(home, manifest, MemoryNetwork(), canary__items=16)
        running = asyncio.create_task(daemon.run())
        await until(lambda: daemon.board.steps >= 4)
        daemon.stop()
        assert await running == 0
        return daemon.counters.state(), daemon.status()["canary"]

    (first, _), (second, status) = (asyncio.run(lives()) for _ in range(2))
    assert [counts["canary/reference"] for counts in (first, second)] == [1, 1], "once, by the first of them"
    assert second["canary/run"] > first["canary/run"] >= 1
    assert status["frozen_rounds"] == 0
