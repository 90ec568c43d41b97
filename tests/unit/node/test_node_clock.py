"""Swarm time as a node lives it: before genesis, after a gap, and when its clock is set."""

import asyncio
import random
from collections.abc import Callable

from live_node import ROUND_SECONDS, live_node
from node_pieces import identity

from shoal.node.compute import InlineCompute
from shoal.node.events import RoundResult
from shoal.node.loop import Node
from shoal.protocol.memory import MemoryNetwork
from shoal.protocol.virtual import VirtualTimeLoop


class SetClock:
    """The loop's virtual time and an offset that a test sets: a clock that is wrong, or set right."""

    def __init__(self) -> None:
        self.offset = 0.0

    def __call__(self) -> float:
        return asyncio.get_running_loop().time() + self.offset


def passes_of(until_round: int, offset: float, change: Callable[[Node, SetClock, RoundResult], None]) -> list[int]:
    """Run a node alone and return the rounds of its passes; `change` is called after each."""
    clock, rounds = SetClock(), []
    clock.offset = offset

    async def main() -> None:
        network = MemoryNetwork()

        def record(result: RoundResult) -> None:
            rounds.append(result.round)
            change(node, clock, result)

        inline = InlineCompute(ROUND_SECONDS, 0.1, random.Random(0))
        node = live_node(1, network.join(identity(1).key), clock, record, inline)
        await node.run(until_round)
        counters.update(node.organs.gatherer.counters.state())

    counters: dict[str, int] = {}
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
    if counters.get("clock/set_back"):
        rounds.append(-1)
    return rounds


def test_a_node_waits_for_genesis() -> None:
    assert passes_of(2, -3.5 * ROUND_SECONDS, lambda *_: None) == [0, 1]


def test_a_node_goes_on_in_the_present_round_after_any_gap() -> None:
    """Failure 17: a machine that slept for a thousand rounds is not stuck on an old one."""

    def sleep_long(node: Node, clock: SetClock, result: RoundResult) -> None:
        if result.round == 1:
            clock.offset = 1000 * ROUND_SECONDS

    assert passes_of(1003, 0.0, sleep_long) == [0, 1, 1001, 1002]


def test_no_round_is_sampled_twice_when_a_clock_is_set_back_a_little() -> None:
    def set_back(node: Node, clock: SetClock, result: RoundResult) -> None:
        if result.round == 5 and clock.offset == 0.0:
            clock.offset = -3.0 * ROUND_SECONDS

    assert passes_of(7, 0.0, set_back) == [0, 1, 2, 3, 4, 5, 6]


def test_a_clock_that_was_far_ahead_is_believed_again_and_counted() -> None:
    """What went before counts for nothing then: lag begins anew with time."""
    lags: list[int] = []

    def ahead_then_right(node: Node, clock: SetClock, result: RoundResult) -> None:
        if result.round == 501:
            clock.offset = 0.0
        if result.round < 500:
            lags.append(node.organs.lags.lag(result.round, node.organs.trainer.policy.version))
            node.pace.stopped = result.round == 4

    assert passes_of(10**9, 500.0 * ROUND_SECONDS, ahead_then_right) == [500, 501, 1, 2, 3, 4, -1]
    assert max(lags) <= 1
