"""The memory network's own behaviour: loss, order, partitions, bounds, and the same story for the same seed."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgpack
import pytest

from shoal.protocol import inbox, memory
from shoal.protocol.errors import FetchFailed, UsageError
from shoal.protocol.memory import LinkModel, MemoryNetwork, MemoryTransport, Partition
from shoal.protocol.virtual import VirtualTimeLoop

KEYS = [bytes([number]) * 32 for number in range(1, 6)]


def simulate(main: Callable[[], Awaitable[Any]], start: float = 0.0) -> Any:
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(start)) as runner:
        return runner.run(main())  # type: ignore[arg-type]


async def drain(member: MemoryTransport) -> list[bytes]:
    await member.close()
    return [received.data async for received in member.announcements()]


async def arrivals(links: LinkModel, seed: int, count: int = 200) -> tuple[list[bytes], dict[str, int]]:
    network = MemoryNetwork(links, seed)
    sender, receiver = network.join(KEYS[0]), network.join(KEYS[1])
    for number in range(count):
        await sender.announce(number.to_bytes(2, "big"))
    await network.settle()
    return await drain(receiver), network.counters


def test_the_same_seed_gives_the_same_arrivals():
    links = LinkModel(loss=0.3)
    first = simulate(lambda: arrivals(links, seed=1))
    assert simulate(lambda: arrivals(links, seed=1)) == first
    assert simulate(lambda: arrivals(links, seed=2)) != first


def test_loss_is_counted_and_near_its_rate():
    received, counters = simulate(lambda: arrivals(LinkModel(loss=0.25), seed=1, count=2000))
    assert counters["delivered"] == len(received)
    assert counters["delivered"] + counters["dropped_loss"] == 2000
    assert 420 < counters["dropped_loss"] < 580  # four standard deviations are 78
    assert simulate(lambda: arrivals(LinkModel(loss=1.0), seed=1))[0] == []


def test_jitter_reorders_and_nothing_is_lost():
    received, _ = simulate(lambda: arrivals(LinkModel(delay=0.1, jitter=1.0), seed=1))
    assert received != sorted(received)
    assert sorted(received) == [number.to_bytes(2, "big") for number in range(200)]
    steady, _ = simulate(lambda: arrivals(LinkModel(jitter=0.0), seed=1))
    assert steady == sorted(steady)


def test_a_message_takes_its_delay_and_an_uplink_sends_one_after_another():
    async def main() -> float:
        network = MemoryNetwork(LinkModel(delay=2.0, jitter=0.0, bandwidth=1000.0))
        sender, receiver = network.join(KEYS[0]), network.join(KEYS[1])
        sender.offer(hashlib.sha256(bytes(5000)).digest(), bytes(5000))
        await asyncio.gather(sender.announce(bytes(1000)), sender.announce(bytes(3000)))
        await receiver.fetch(KEYS[0], hashlib.sha256(bytes(5000)).digest(), 5000)
        await network.settle()
        return asyncio.get_running_loop().time()

    # request 2 s + .032 s; the uplink is busy with 4,000 bytes until 4 s, then sends 5,000 more, which take 2 s to come
    assert simulate(main) == pytest.approx(4 + 5 + 2)


def test_a_partition_separates_and_heals():
    """Failure 21: two halves become one swarm again."""

    async def main() -> None:
        split = Partition(start=10, end=20, groups=(frozenset({0, 1}), frozenset({2, 3})))
        network = MemoryNetwork(LinkModel(partitions=(split,)))
        members = [network.join(key) for key in KEYS]
        blob = b"blob"
        members[0].offer(hashlib.sha256(blob).digest(), blob)
        await members[0].publish_record("swarm", b"record", 1000)
        for moment, reached in ((5, {1, 2, 3, 4}), (10, {1}), (19.9, {1}), (20, {1, 2, 3, 4})):
            await asyncio.sleep(moment - asyncio.get_running_loop().time())
            before = [member.counters.get("received", 0) for member in members]
            await members[0].announce(b"hello")
            assert members[0].peers() == [KEYS[number] for number in sorted(reached)]
            for number in range(1, 5):
                assert await members[number].lookup_records("swarm") == ([b"record"] if number in reached else [])
            await network.settle()
            after = [member.counters.get("received", 0) for member in members]
            assert {number for number in range(5) if after[number] > before[number]} == reached
        assert network.counters["dropped_partition"] == 6

    simulate(main)


def test_fetching_across_a_partition_fails_until_it_heals():
    async def main() -> None:
        split = Partition(start=10, end=20, groups=(frozenset({0}), frozenset({1})))
        network = MemoryNetwork(LinkModel(partitions=(split,)))
        here, there = network.join(KEYS[0]), network.join(KEYS[1])
        digest = hashlib.sha256(b"blob").digest()
        there.offer(digest, b"blob")
        await asyncio.sleep(9.99)
        for _ in range(2):  # the first is cut off on its way
            with pytest.raises(FetchFailed) as caught:
                await here.fetch(KEYS[1], digest, 100)
            assert caught.value.reason == "unreachable"
        await asyncio.sleep(11)
        assert await here.fetch(KEYS[1], digest, 100) == b"blob"

    simulate(main)


def test_an_answer_is_cut_off_on_its_way():
    async def main() -> float:
        split = Partition(start=10, end=20, groups=(frozenset({0}), frozenset({1})))
        network = MemoryNetwork(LinkModel(delay=1.0, jitter=0.0, partitions=(split,)))
        here, there = network.join(KEYS[0]), network.join(KEYS[1])
        digest = hashlib.sha256(b"blob").digest()
        there.offer(digest, b"blob")
        await asyncio.sleep(8.5)  # the request arrives at 9.5, the answer would at 10.5
        with pytest.raises(FetchFailed, match="unreachable"):
            await here.fetch(KEYS[1], digest, 100)
        return asyncio.get_running_loop().time()

    assert simulate(main) == pytest.approx(10.5)


def test_a_busy_uplink_is_still_busy_after_a_restart():
    """What a partition swallowed was sent all the same."""
    links = LinkModel(
        delay=0.0, jitter=0.0, bandwidth=1.0, partitions=(Partition(0, 1, (frozenset({0}), frozenset({1}))),)
    )

    async def before() -> list[Any]:
        network = MemoryNetwork(links)
        sender, _ = network.join(KEYS[0]), network.join(KEYS[1])
        await sender.announce(bytes(100))
        return network.state()

    state = simulate(before)

    async def after() -> float:
        network = MemoryNetwork(links)
        sender, _ = network.join(KEYS[0]), network.join(KEYS[1])
        network.restore(state)
        await sender.announce(bytes(1))
        await network.settle()
        return asyncio.get_running_loop().time()

    assert simulate(after, start=1.0) == pytest.approx(101.0)


def test_a_lossy_link_delays_a_fetch_and_a_dead_one_times_out():
    async def main(loss: float, seed: int) -> tuple[str, float, int]:
        network = MemoryNetwork(LinkModel(delay=0.0, jitter=0.0, loss=loss), seed)
        here, there = network.join(KEYS[0]), network.join(KEYS[1])
        digest = hashlib.sha256(b"blob").digest()
        there.offer(digest, b"blob")
        try:
            await here.fetch(KEYS[1], digest, 100)
            outcome = "fetched"
        except FetchFailed as failure:
            outcome = failure.reason
        return outcome, asyncio.get_running_loop().time(), network.in_flight

    assert simulate(lambda: main(1.0, 0)) == ("timeout", 3.0, 0)
    outcomes = [simulate(lambda seed=seed: main(0.5, seed)) for seed in range(40)]
    assert {time for outcome, time, _ in outcomes if outcome == "fetched"} == {0.0, 1.0, 2.0}
    assert 0 < sum(outcome == "timeout" for outcome, *_ in outcomes) < 15  # one in eight


def test_a_cancelled_fetch_is_no_longer_in_flight():
    async def main() -> int:
        network = MemoryNetwork(LinkModel(delay=100.0))
        here, _ = network.join(KEYS[0]), network.join(KEYS[1])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(here.fetch(KEYS[1], bytes(32), 100), timeout=1)
        return network.in_flight

    assert simulate(main) == 0


def test_queues_are_bounded_and_every_drop_is_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inbox, "MAX_QUEUE", 10)
    monkeypatch.setattr(memory, "MAX_IN_FLIGHT", 50)
    monkeypatch.setattr(memory, "MAX_OFFERS", 3)

    async def main() -> None:
        network = MemoryNetwork(LinkModel())
        sender, receiver = network.join(KEYS[0]), network.join(KEYS[1])
        for _ in range(60):
            await sender.announce(b"flood")
        await sender.announce(bytes(64 * 1024 + 1))
        await network.settle()
        assert network.counters == {"delivered": 50, "dropped_in_flight_full": 10}
        assert receiver.counters == {"received": 10, "dropped_queue_full": 40}
        assert sender.counters == {"announced": 60, "dropped_announcement_too_large": 1}
        assert receiver.queued == 10
        for number in range(5):
            sender.offer(bytes([number]) * 32, b"blob")
        assert sender.counters["dropped_offer"] == 2
        assert sender.served(bytes([1]) * 32) is None
        assert sender.served(bytes([2]) * 32) == b"blob"

    simulate(main)


def test_the_bytes_of_a_queue_are_bounded_and_freed_by_reading():
    async def main() -> None:
        network = MemoryNetwork(LinkModel(jitter=0.0))
        sender, receiver = network.join(KEYS[0]), network.join(KEYS[1])
        for _ in range(2):
            for _ in range(140):
                await sender.announce(bytes(64 * 1024))
            await network.settle()
            assert receiver.queued == 128  # 8 MiB
            reader = receiver.announcements()
            for _ in range(128):
                await anext(reader)
        assert receiver.counters["dropped_queue_full"] == 24

    simulate(main)


def test_topics_and_records_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "MAX_RECORDS", 2)

    async def main() -> None:
        network = MemoryNetwork()
        members = [network.join(key) for key in KEYS]
        for member in members:
            await member.publish_record("swarm", member.key, 60)
        assert await members[4].lookup_records("swarm") == KEYS[:2]
        await members[0].publish_record("two", b"", 60)
        await members[0].publish_record("three", b"", 60)
        assert await members[0].lookup_records("three") == []
        assert [member.counters.get("dropped_record", 0) for member in members] == [1, 0, 1, 1, 1]

    simulate(main)


def test_two_nodes_cannot_share_an_identity():
    network = MemoryNetwork()
    network.join(KEYS[0])
    with pytest.raises(UsageError, match="share an identity"):
        network.join(KEYS[0])


def test_settling_an_idle_network_returns_at_once():
    simulate(MemoryNetwork().settle)


async def play(network: MemoryNetwork, members: list[MemoryTransport], rounds: range) -> list[Any]:
    """Some traffic of all kinds; what everyone got, in order."""
    story: list[Any] = []
    for number in rounds:
        for member in members:
            await member.announce(b"%d from %d" % (number, member.index))
        await members[0].publish_record("swarm", b"%d" % number, 5)
        blob = b"blob %d" % number
        members[1].offer(hashlib.sha256(blob).digest(), blob)
        await network.settle()
        for member in members[:2]:  # the last one's queue is left for later
            reader = member.announcements()
            story.append([(await anext(reader)).data for _ in range(member.queued)])
        await asyncio.sleep(1.5)
    story.append([member.counters for member in members])
    story.append((network.counters, network.state()))
    return story


def test_a_resumed_network_tells_the_same_story():
    links = LinkModel(loss=0.2, bandwidth=10_000.0)

    async def whole() -> list[Any]:
        network = MemoryNetwork(links, seed=7)
        members = [network.join(key) for key in KEYS[:3]]
        await play(network, members, range(4))
        return await play(network, members, range(4, 8))

    async def before() -> tuple[bytes, float]:
        network = MemoryNetwork(links, seed=7)
        await play(network, [network.join(key) for key in KEYS[:3]], range(4))
        return msgpack.packb(network.state()), asyncio.get_running_loop().time()

    state, time = simulate(before)

    async def after() -> list[Any]:
        network = MemoryNetwork(links, seed=0)
        members = [network.join(key) for key in KEYS[:3]]
        network.restore(msgpack.unpackb(state, strict_map_key=False))
        return await play(network, members, range(4, 8))

    assert simulate(after, start=time) == simulate(whole)


def test_a_state_is_taken_at_rest_and_given_to_the_same_members():
    async def main() -> None:
        network = MemoryNetwork()
        sender, _ = network.join(KEYS[0]), network.join(KEYS[1])
        await sender.announce(b"hello")
        with pytest.raises(RuntimeError, match="settle"):
            network.state()
        await network.settle()
        state = network.state()
        other = MemoryNetwork()
        other.join(KEYS[1])
        with pytest.raises(ValueError, match="same order"):
            other.restore(state)

    simulate(main)


@pytest.mark.parametrize(
    "fields", [{"loss": 1.5}, {"loss": -0.1}, {"delay": -1.0}, {"jitter": -1.0}, {"bandwidth": 0.0}]
)
def test_impossible_links_are_refused(fields: dict[str, float]):
    with pytest.raises(ValueError, match=r"probability|positive"):
        LinkModel(**fields)  # type: ignore[arg-type]
