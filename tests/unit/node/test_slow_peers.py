"""A peer that sends as slowly as it may: it costs part of one pass, not the training."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from live_node import ROUND_SECONDS, live_node
from node_pieces import identity

from shoal.node.compute import InlineCompute
from shoal.node.gather import LEAST_FETCH_SECONDS
from shoal.node.loop import Node
from shoal.node.patience import LONGEST, MOST, Patience
from shoal.protocol.memory import LinkModel, MemoryNetwork, MemoryTransport
from shoal.protocol.virtual import VirtualTimeLoop


class Dripping(MemoryTransport):
    """Fetches from one peer take ten minutes."""

    slow = b""
    asked = 0

    async def fetch(self, peer: bytes, digest: bytes, limit: int) -> bytes:
        if peer == self.slow:
            self.asked += 1
            await asyncio.sleep(600)
        return await super().fetch(peer, digest, limit)


def now() -> float:
    return asyncio.get_running_loop().time()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(scenario())  # type: ignore[arg-type]


def node(number: int, transport: MemoryTransport) -> Node:
    return live_node(number, transport, now, compute=InlineCompute(ROUND_SECONDS, 0.1, random.Random(0)))


async def with_a_dripper(work: Callable[[Node, Dripping], Awaitable[None]]) -> None:
    network = MemoryNetwork(LinkModel(delay=0.0, jitter=0.0))
    mine = network.join(identity(0).key)
    mine.__class__ = Dripping
    assert isinstance(mine, Dripping)
    mine.slow = identity(1).key
    one, dripper = node(0, mine), node(1, network.join(mine.slow))
    intake = asyncio.create_task(one.organs.gatherer.intake())
    sharing = asyncio.create_task(dripper.run(8))
    await work(one, mine)
    for task in (intake, sharing):
        task.cancel()


def test_a_blob_that_drips_ends_with_the_pass() -> None:
    async def work(one: Node, transport: Dripping) -> None:
        await one.run(2)
        assert transport.asked == 1
        assert now() < 2 * ROUND_SECONDS + LEAST_FETCH_SECONDS
        assert one.organs.gatherer.counters.get("fetch/timeout") == 1

    run(lambda: with_a_dripper(work))


def test_who_drips_is_asked_less_and_less_often() -> None:
    async def work(one: Node, transport: Dripping) -> None:
        await one.run(8)
        assert 2 <= transport.asked <= 3

    run(lambda: with_a_dripper(work))


def test_a_node_that_is_told_to_stop_waits_for_no_blob() -> None:
    async def work(one: Node, transport: Dripping) -> None:
        running = asyncio.create_task(one.one_pass(0))
        while not transport.asked:
            await asyncio.sleep(0.01)
        began = now()
        one.organs.gatherer.close()
        await running
        assert now() - began < LEAST_FETCH_SECONDS / 2

    run(lambda: with_a_dripper(work))


def test_patience_doubles_ends_with_an_answer_and_is_bounded() -> None:
    patience = Patience()
    waits: list[int] = []
    for _ in range(9):
        patience.slow(b"a")
        waits.append(0)
        while b"a" in patience.begin():
            waits[-1] += 1
    assert waits == [1, 2, 4, 8, 16, 32, LONGEST, LONGEST, LONGEST]
    patience.slow(b"a")
    patience.answered(b"a")
    assert patience.begin() == set()
    for number in range(2 * MOST):
        patience.slow(number.to_bytes(32, "big"))
    assert len(patience.begin()) == MOST
