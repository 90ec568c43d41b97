"""What every transport must do: the same scenarios in memory under virtual time, and over real daemons on loopback."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import live_transports as live
import pytest
from live_transports import digest

from shoal.protocol.errors import FetchFailed
from shoal.protocol.memory import LinkModel, MemoryNetwork
from shoal.protocol.transport import Received, Transport
from shoal.protocol.virtual import VirtualTimeLoop

Scenario = Callable[["Pair"], Awaitable[None]]
LONG = 600.0


@dataclass
class Pair:
    """Two connected transports, and how to wait in the time that they live in."""

    first: Transport
    second: Transport
    key_a: bytes
    key_b: bytes
    settle: Callable[[], Awaitable[None]]  # until what was sent has arrived, as far as it will
    rejoin: Callable[[], Awaitable[Transport]]  # the first comes back under its key
    short: float  # seconds: a time to live that can be waited for

    async def eventually(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait until something holds, at most LONG seconds of virtual time or the patience of a real test."""
        async with asyncio.timeout(live.GENEROUS):
            while not await condition():
                await asyncio.sleep(self.short / 20)


def memory_pair(scenario: Scenario) -> None:
    key_a, key_b = bytes([1]) * 32, bytes([2]) * 32

    async def main() -> None:
        network = MemoryNetwork(LinkModel(), seed=3)

        async def rejoin() -> Transport:
            return network.join(key_a)

        pair = Pair(network.join(key_a), network.join(key_b), key_a, key_b, network.settle, rejoin, short=20.0)
        await scenario(pair)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


def libp2p_pair(scenario: Scenario) -> None:
    async def main() -> None:
        async with live.swarm(2) as (first, second):
            again = live.transport(1, second)

            async def settle() -> None:
                """What has a way arrives; what has none is given the time in which it would."""
                sent = sum(each.counters.get("announced", 0) for each in (first, second, again))
                loop = asyncio.get_running_loop()
                late = loop.time() + 2.0
                while loop.time() < late:
                    if sent == sum(each.counters.get("received", 0) for each in (first, second, again)):
                        break
                    await asyncio.sleep(0.02)

            async def rejoin() -> Transport:
                await again.start()
                await live.meshed(again, second)
                return again

            try:
                key_a, key_b = live.identity(1).key, live.identity(2).key
                await scenario(Pair(first, second, key_a, key_b, settle, rejoin, short=4.0))
            finally:
                await again.close()

    live.run(main)


@pytest.fixture(params=[memory_pair, libp2p_pair], ids=["memory", "libp2p"])
def pairs(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Runs a scenario with a transport pair, in the loop that the transport needs."""
    return request.param


async def drain(transport: Transport) -> list[Received]:
    await transport.close()
    return [received async for received in transport.announcements()]


async def fails(request: Awaitable[Any]) -> str:
    with pytest.raises(FetchFailed) as caught:
        await request
    return caught.value.reason


def test_an_announcement_reaches_the_other_and_not_oneself(pairs: Callable[[Scenario], None]):
    async def scenario(pair: Pair) -> None:
        await pair.first.announce(b"hello")
        await pair.settle()
        assert await drain(pair.second) == [Received(b"hello", pair.key_a)]
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
        assert await pair.second.fetch(pair.key_a, digest(blob), len(blob)) == blob
        assert await fails(pair.second.fetch(pair.key_a, digest(blob), len(blob) - 1)) == "too_large"
        pair.first.withdraw(digest(blob))
        pair.first.withdraw(digest(blob))
        assert await fails(pair.second.fetch(pair.key_a, digest(blob), len(blob))) == "not_found"

    pairs(scenario)


def test_another_blob_than_the_asked_one_is_refused(pairs: Callable[[Scenario], None]):
    async def scenario(pair: Pair) -> None:
        pair.first.offer(digest(b"wanted"), b"poison")
        assert await fails(pair.second.fetch(pair.key_a, digest(b"wanted"), 100)) == "wrong_digest"

    pairs(scenario)


def test_who_is_not_there_is_unreachable(pairs: Callable[[Scenario], None]):
    async def scenario(pair: Pair) -> None:
        assert await fails(pair.second.fetch(bytes([9]) * 32, digest(b""), 100)) == "unreachable"
        assert pair.second.peers() == [pair.key_a]
        await pair.first.close()

        async def alone() -> bool:
            return pair.second.peers() == []

        await pair.eventually(alone)
        assert await fails(pair.second.fetch(pair.key_a, digest(b""), 100)) == "unreachable"
        assert pair.second.counters["fetch_unreachable"] == 2

    pairs(scenario)


def test_a_node_comes_back_under_its_key(pairs: Callable[[Scenario], None]):
    """Failure 22: rejoin under the same id in the same round."""

    async def scenario(pair: Pair) -> None:
        await pair.first.close()
        await pair.second.announce(b"missed")
        await pair.settle()
        again = await pair.rejoin()
        await pair.second.announce(b"seen")
        await again.announce(b"back")
        await pair.settle()
        heard = await drain(again)
        assert Received(b"seen", pair.key_b) in heard
        assert {received.data for received in heard} <= {b"missed", b"seen"}  # gossip may repeat its last seconds
        assert len(heard) == len({received.data for received in heard})
        assert await drain(pair.second) == [Received(b"back", pair.key_a)]

    pairs(scenario)


def test_records_are_found_replaced_and_expire(pairs: Callable[[Scenario], None]):
    async def scenario(pair: Pair) -> None:
        assert await pair.second.lookup_records("swarm") == []
        await pair.first.publish_record("swarm", b"old", pair.short)
        await pair.first.publish_record("swarm", b"new", pair.short)
        await pair.second.publish_record("swarm", b"second", LONG)
        await pair.second.publish_record("other", b"elsewhere", LONG)
        assert sorted(await pair.second.lookup_records("swarm")) == [b"new", b"second"]

        async def expired() -> bool:
            return await pair.second.lookup_records("swarm") == [b"second"]

        await pair.eventually(expired)

    pairs(scenario)


def test_documents_are_asked_for_by_name(pairs: Callable[[Scenario], None]):
    async def scenario(pair: Pair) -> None:
        texts = iter([b"first", b"second"])
        pair.first.serve("time", lambda: next(texts))
        pair.first.serve("manifest", lambda: b"m" * 1000)
        assert await pair.second.ask(pair.key_a, "time", 8) == b"first"
        assert await pair.second.ask(pair.key_a, "time", 8) == b"second"  # made for each question
        assert await fails(pair.second.ask(pair.key_a, "manifest", 999)) == "too_large"
        pair.first.serve("manifest", lambda: b"")
        assert await pair.second.ask(pair.key_a, "manifest", 999) == b""
        assert await fails(pair.second.ask(pair.key_a, "recent", 100)) == "not_found"
        assert await fails(pair.second.ask(bytes([9]) * 32, "time", 8)) == "unreachable"
        counters = pair.second.counters
        assert [counters[f"ask_{why}"] for why in ("too_large", "not_found", "unreachable")] == [1, 1, 1]
        assert counters["asked"] == 3

    pairs(scenario)


def test_who_has_left_answers_and_asks_nothing(pairs: Callable[[Scenario], None]):
    async def scenario(pair: Pair) -> None:
        pair.first.serve("time", lambda: b"now")
        pair.second.serve("time", lambda: b"now")
        await pair.first.close()
        assert await fails(pair.second.ask(pair.key_a, "time", 8)) == "unreachable"
        assert await fails(pair.first.ask(pair.key_b, "time", 8)) == "unreachable"

    pairs(scenario)


def test_who_has_left_sends_nothing(pairs: Callable[[Scenario], None]):
    async def scenario(pair: Pair) -> None:
        await pair.first.close()
        await pair.first.announce(b"ghost")
        await pair.settle()
        assert await drain(pair.second) == []
        assert pair.first.counters["dropped_closed"] == 1

    pairs(scenario)
