"""The start gate, and how options become an algorithm."""

import asyncio
import math
import random
from dataclasses import replace

from live_node import live_node
from node_pieces import identity, own_set, prompt

from shoal.node import snapshot
from shoal.node.compute import InlineCompute
from shoal.node.config import Learning, Mixing
from shoal.node.opening import WINDOW, StartGate
from shoal.node.sets import OwnSet
from shoal.node.wiring import algorithm_of
from shoal.protocol.memory import LinkModel, MemoryNetwork
from shoal.protocol.virtual import VirtualTimeLoop
from shoal.trainer.algorithm import recipe
from shoal.trainer.model import DEFAULT_MODEL, load_policy

POLICY = load_policy(DEFAULT_MODEL)


def a_pass(*rewards: float) -> list[OwnSet]:
    return [own_set(POLICY, prompt(), ["a"] * len(rewards), list(rewards))]


def test_it_opens_once_the_mean_over_the_window_has_reached_the_rate_and_stays_open() -> None:
    gate = StartGate(0.3)
    for _ in range(WINDOW - 1):
        gate.note(a_pass(1.0, 1.0))
        assert not gate.open, "one lucky pass is not a pass rate"
    gate.note(a_pass(0.0, 0.0))
    assert gate.open
    for _ in range(2 * WINDOW):
        gate.note(a_pass(0.0, 0.0))
    assert gate.open


def test_old_passes_leave_the_window() -> None:
    gate = StartGate(0.5)
    for _ in range(WINDOW):
        gate.note(a_pass(0.0, 0.5))
    gate.note(a_pass(1.0, 1.0))
    assert not gate.open  # (4 * .25 + 1) / 5 = .4
    gate.note(a_pass(1.0, 1.0))
    assert gate.open  # (3 * .25 + 2) / 5 = .55


def test_what_could_not_be_scored_does_not_count() -> None:
    gate = StartGate(1.0)
    for _ in range(WINDOW):
        gate.note(a_pass(math.nan))
        gate.note([])
    assert not gate.open
    for _ in range(WINDOW):
        gate.note(a_pass(math.nan, 1.0))
    assert gate.open


def test_off_it_is_open_from_the_beginning() -> None:
    assert StartGate(0.0).open


def test_its_state_goes_through_a_checkpoint() -> None:
    first, second = StartGate(0.5), StartGate(0.5)
    for _ in range(WINDOW - 1):
        first.note(a_pass(0.25, 1.0))
    second.restore(first.state())
    assert second.state() == first.state()
    first.note(a_pass(0.5))
    second.note(a_pass(0.5))
    assert first.open
    assert second.open
    third = StartGate(0.5)
    third.restore(second.state())
    assert third.open


def test_the_options_become_one_algorithm() -> None:
    algorithm = algorithm_of(Learning(), Mixing(), 256)
    assert algorithm == recipe("grpo", flip_rate=0.0)
    mixing = Mixing(centre="median", noise=0.1, damping=0.05, group_size=9)
    algorithm = algorithm_of(Learning(), mixing, 256)
    assert (algorithm.centre, algorithm.scale, algorithm.shape) == ("median", "mad", "noise_aware")
    assert (algorithm.flip_rate, algorithm.damping) == (0.1, 0.05)
    assert algorithm_of(Learning(recipe="dr_grpo"), mixing, 256).scale == "none"


def test_without_robust_mixing_peers_train_as_in_the_published_recipe() -> None:
    assert algorithm_of(Learning(), Mixing(), 256, fair=False) == recipe(
        "grpo", flip_rate=0.0, scale_peers=True, baseline="mixed"
    )


def test_a_node_with_a_shut_gate_takes_nothing_of_peers_counts_it_and_remembers() -> None:
    async def scenario() -> None:
        now = asyncio.get_running_loop().time
        network = MemoryNetwork(LinkModel(delay=0.0, jitter=0.0))
        one, two = (
            live_node(number, network.join(identity(number).key), now, compute=InlineCompute(10, 0.1, random.Random(0)))
            for number in range(2)
        )
        one.start_gate = StartGate(0.5)
        assert await one.gather(a_pass(1.0, 1.0)) == []
        assert one.organs.gatherer.counters.get("mixing/start_gate") == 1
        two.start_gate = StartGate(0.5)
        snapshot.restore(two, *snapshot.take(one))
        assert two.start_gate.state() == one.start_gate.state() == [False, [1.0]]
        one.habits = replace(one.habits, samples=False)
        assert await one.gather([]) == []
        assert one.organs.gatherer.counters.get("mixing/start_gate") == 1, "who only looks on has no rate of its own"

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(scenario())  # type: ignore[arg-type]
