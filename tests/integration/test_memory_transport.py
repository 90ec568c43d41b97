"""What every transport must do. Another one joins the suite as one more parameter of `pairs`."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from shoal.protocol.errors import FetchFailed
from shoal.protocol.memory import LinkModel, MemoryNetwork
from shoal.protocol.transport import Received, Transport
from shoal.protocol.virtual import VirtualTimeLoop

KEY_A, KEY_B = bytes([1]) * 32, bytes([2]) * 32
Scenario = Callable[["Pair"], Awaitable[None]]


@dataclass
class Pair:
    """Two connected transports, and how to wait until what was sent has arrived."""

    first: Transport
    second: Transport
    settle: Callable[[], Awaitable[None]]
    rejoin: Callable[[bytes], Transport]


def memory_pair(scenario: Scenario) -> None:
    async def main() -> None:
        network = MemoryNetwork(LinkModel(), seed=3)
        pair = Pair(network.join(KEY_A), network.join(KEY_B), network.settle, network.join)
        await scenario(pair)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


@pytest.fixture(params=[memory_pair], ids=["memory"])
def pairs(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Runs a scenario with a transport pair, in the loop that the transport needs."""
    return request.param


def digest(blob: bytes) -> bytes:
    return hashlib.sha256(blob).digest()


async def drain(transport: Transport) -> list[Received]:
    await transport.close()
    return [received async for received in transport.announcements()]


async def fails(transport: Transport, *request: Any) -> str:
    with pytest.raises(FetchFailed) as caught:
        await transport.fetch(*request)
    return caught.value.reason


def test_an_announcement_reaches_the_other_and_not_oneself(pairs: Callable[[Scenario], None]):
    async def scenario(pair: Pair) -> None:
        await pair.first.announce(b"hello")
        await pair.settle()
        assert await drain(pair.second) == [Received(b"hello", KEY_A)]
        assert await drain(pair.first) == []
        assert pair.first.counters["announced"] == pair.second.counters["received"] == 1

    pairs(scenario)


def test_a_reader_that_waits_is_woken(pairs: Callable[[Scenario], None]):
    async def scenario(pair: Pair) -> None:
        async def read_one() -> bytes:
            return (await anext(pair.second.announcements())).data

        reading = asyncio.create_task(read_one())
        await asyncio.sleep(0)
        await pair.first.announce(b"hello")
        assert await reading == b"hello"

    pairs(scenario)


def test_closing_ends_the_reader(pairs: Callable[[Scenario], None]):
    async def scenario(pair: Pair) -> None:
        async def read_all() -> int:
            return len([received async for received in pair.second.announcements()])

        reading = asyncio.create_task(read_all())
        await asyncio.sleep(0)
        await pair.second.close()
        await pair.second.close()
        assert await reading == 0

    pairs(scenario)


def test_blobs_are_fetched_by_hash(pairs: Callable[[Scenario], None]):
    async def scenario(pair: Pair) -> None:
        blob = b"x" * 100_000
        pair.first.offer(digest(blob), blob)
        assert await pair.second.fetch(KEY_A, digest(blob), len(blob)) == blob
        assert await fails(pair.second, KEY_A, digest(blob), len(blob) - 1) == "too_large"
        pair.first.withdraw(digest(blob))
        pair.first.withdraw(digest(blob))
        assert await fails(pair.second, KEY_A, digest(blob), len(blob)) == "not_found"

    pairs(scenario)


def test_another_blob_than_the_asked_one_is_refused(pairs: Callable[[Scenario], None]):
    async def scenario(pair: Pair) -> None:
        pair.first.offer(digest(b"wanted"), b"poison")
        assert await fails(pair.second, KEY_A, digest(b"wanted"), 100) == "wrong_digest"

    pairs(scenario)


def test_who_is_not_there_is_unreachable(pairs: Callable[[Scenario], None]):
    async def scenario(pair: Pair) -> None:
        assert await fails(pair.second, bytes([9]) * 32, digest(b""), 100) == "unreachable"
        assert pair.second.peers() == [KEY_A]
        await pair.first.close()
        assert pair.second.peers() == []
        assert await fails(pair.second, KEY_A, digest(b""), 100) == "unreachable"
        assert pair.second.counters["fetch_unreachable"] == 2

    pairs(scenario)


def test_a_node_comes_back_under_its_key(pairs: Callable[[Scenario], None]):
    """Failure 22: rejoin under the same id in the same round."""

    async def scenario(pair: Pair) -> None:
        await pair.first.close()
        await pair.second.announce(b"missed")
        await pair.settle()
        again = pair.rejoin(KEY_A)
        await pair.second.announce(b"seen")
        await again.announce(b"back")
        await pair.settle()
        assert await drain(again) == [Received(b"seen", KEY_B)]
        assert await drain(pair.second) == [Received(b"back", KEY_A)]

    pairs(scenario)


def test_records_are_found_replaced_and_expire(pairs: Callable[[Scenario], None]):
    async def scenario(pair: Pair) -> None:
        assert await pair.second.lookup_records("swarm") == []
        await pair.first.publish_record("swarm", b"old", 60)
        await pair.first.publish_record("swarm", b"new", 60)
        await pair.second.publish_record("swarm", b"second", 600)
        await pair.second.publish_record("other", b"elsewhere", 600)
        assert sorted(await pair.second.lookup_records("swarm")) == [b"new", b"second"]
        await asyncio.sleep(61)  # virtual
        assert await pair.second.lookup_records("swarm") == [b"second"]

    pairs(scenario)


def test_who_has_left_sends_nothing(pairs: Callable[[Scenario], None]):
    async def scenario(pair: Pair) -> None:
        await pair.first.close()
        await pair.first.announce(b"ghost")
        await pair.settle()
        assert await drain(pair.second) == []
        assert pair.first.counters["dropped_closed"] == 1

    pairs(scenario)
