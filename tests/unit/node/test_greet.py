"""Late joiners: who comes into reach is asked for its latest announcements, and they pass the gate."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from live_node import ROUND_SECONDS, live_node, manifest
from msgspec import structs
from node_pieces import identity

from shoal.defenses.verdict import Counters
from shoal.node.compute import InlineCompute
from shoal.node.greet import A_LOOK, AGAIN_SECONDS, CLAIMS, MANIFEST_SECONDS, Greeter, ManifestWatch, time_document
from shoal.protocol.manifest import Manifest
from shoal.protocol.memory import LinkModel, MemoryNetwork, MemoryTransport, Partition
from shoal.protocol.transport import Received
from shoal.protocol.virtual import VirtualTimeLoop

KEYS = [identity(number).key for number in range(3)]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(scenario())  # type: ignore[arg-type]


def now() -> float:
    return asyncio.get_running_loop().time()


def greeter(transport: MemoryTransport, seen: list[Received]) -> Greeter:
    return Greeter(transport, seen.append, Counters(), now)


def serve(transport: MemoryTransport, recent: bytes, ahead: float = 0.0) -> None:
    transport.serve("recent", lambda: recent)
    transport.serve("time", time_document(lambda: now() + ahead))


def test_a_late_joiner_trains_on_what_was_published_before_it_came() -> None:
    async def scenario() -> None:
        network = MemoryNetwork()
        early_transport = network.join(KEYS[0])
        early = live_node(0, early_transport, now, compute=InlineCompute(ROUND_SECONDS, 0.1, random.Random(0)))
        await early.run(1)
        serve(early_transport, early.organs.publisher.recent())
        late_transport = network.join(KEYS[1])
        late = live_node(1, late_transport, now, compute=InlineCompute(ROUND_SECONDS, 0.1, random.Random(0)))
        gatherer = late.organs.gatherer
        await Greeter(late_transport, gatherer.consider, gatherer.counters, now).look()
        assert [pointer.key for pointer in gatherer.pool.where(lambda _: True)] == [KEYS[0]] * 2
        assert gatherer.counters.get("gate/accepted") == 2
        await late.run(2)
        assert gatherer.counters.get("screen/accepted") == 2

    run(scenario)


def test_each_peer_is_greeted_once_and_again_when_it_comes_back_later() -> None:
    async def scenario() -> None:
        cut = Partition(5.0, 200.0, (frozenset({0}), frozenset({1})))
        network = MemoryNetwork(LinkModel(delay=0.0, jitter=0.0, partitions=(cut,)))
        mine, other = network.join(KEYS[0]), network.join(KEYS[1])
        serve(other, b"x" * 238)
        seen: list[Received] = []
        greets = greeter(mine, seen)
        await greets.look()
        await greets.look()
        assert len(seen) == 1
        await asyncio.sleep(10)
        await greets.look()  # cut off
        await asyncio.sleep(195 + AGAIN_SECONDS)
        await greets.look()  # healed
        assert len(seen) == 2

    run(scenario)


def test_a_peer_that_flaps_is_not_greeted_each_time() -> None:
    async def scenario() -> None:
        network = MemoryNetwork()
        mine = network.join(KEYS[0])
        seen: list[Received] = []
        greets = greeter(mine, seen)
        for _ in range(10):
            other = network.join(KEYS[1])
            serve(other, b"x" * 238)
            await greets.look()
            await other.close()
            await greets.look()
        assert len(seen) == 1
        serve(network.join(KEYS[1]), b"x" * 238)
        await asyncio.sleep(AGAIN_SECONDS)
        await greets.look()
        assert len(seen) == 2, "it waits its turn, and is not forgotten"

    run(scenario)


def test_clock_offset_is_the_median_so_that_one_liar_moves_nothing() -> None:
    async def scenario() -> None:
        network = MemoryNetwork(LinkModel(delay=0.1, jitter=0.0))
        greets = greeter(network.join(KEYS[0]), [])
        assert greets.clock_offset is None
        for number, ahead in ((1, 12.0), (2, 1e9)):
            serve(network.join(KEYS[number]), b"", ahead)
        serve(network.join(identity(3).key), b"", 12.0)
        await greets.look()
        assert greets.clock_offset is not None
        assert abs(greets.clock_offset - 12.0) < 0.2

    run(scenario)


def test_whatever_a_peer_answers_is_counted() -> None:
    async def scenario() -> None:
        network = MemoryNetwork()
        mine, silent, odd = network.join(KEYS[0]), network.join(KEYS[1]), network.join(KEYS[2])
        odd.serve("time", lambda: b"noon")
        odd.serve("recent", lambda: b"y" * 500)
        seen: list[Received] = []
        greets = greeter(mine, seen)
        await greets.look()
        assert silent.counters == {}
        assert greets.counters.state() == {"greeting/answered": 1, "greeting/not_found": 1}
        assert [len(received.data) for received in seen] == [238, 238]
        assert greets.clock_offset is None

    run(scenario)


def test_a_comer_and_goer_has_one_voice_about_the_time() -> None:
    async def scenario() -> None:
        network = MemoryNetwork(LinkModel(delay=0.0, jitter=0.0))
        greets = greeter(network.join(KEYS[0]), [])
        for number, ahead in ((1, 1e6), (2, 0.0), (3, 0.0)):
            serve(network.join(identity(number).key), b"", ahead)
        for _ in range(5):
            await greets.greet(KEYS[1])
        await greets.greet(KEYS[2])
        await greets.greet(identity(3).key)
        assert greets.clock_offset == 0.0

    run(scenario)


def test_a_bootstrap_that_has_no_announcements_still_tells_the_time() -> None:
    async def scenario() -> None:
        network = MemoryNetwork(LinkModel(delay=0.0, jitter=0.0))
        greets = greeter(network.join(KEYS[0]), [])
        network.join(KEYS[1]).serve("time", time_document(lambda: now() + 5.0))
        await greets.look()
        assert greets.clock_offset == 5.0

    run(scenario)


def test_a_thousand_names_without_a_peer_do_not_hold_up_a_look() -> None:
    async def scenario() -> None:
        network = MemoryNetwork()
        mine = network.join(KEYS[0])
        for number in range(1, 200):
            network.join(bytes([number]) * 32)
        greets = greeter(mine, [])
        began = now()
        await greets.look()
        assert now() - began < 60.0
        assert sum(greets.counters.state().values()) == A_LOOK

    run(scenario)


def revision(number: int) -> Manifest:
    return structs.replace(manifest(), revision=number, effective_round=number, signature="").sign(identity(0))


class Told:
    """A watch that takes every manifest with a good signature, and notes which."""

    def __init__(self, transport: MemoryTransport, admitted: Callable[[bytes], bool] = lambda _: True) -> None:
        self.taken: list[int] = []
        self.watch = ManifestWatch(transport, self.take, Counters(), admitted)

    def take(self, later: Manifest) -> bool:
        self.taken.append(later.revision)
        return True


def test_a_newer_manifest_is_asked_for_once_for_each_claim() -> None:
    async def scenario() -> None:
        network = MemoryNetwork()
        mine, liar, honest = (network.join(key) for key in KEYS)
        forged = structs.replace(revision(9), signature="00" * 64).to_toml()
        liar.serve("manifest", forged.encode)
        honest.serve("manifest", revision(3).to_toml().encode)
        told = Told(mine)
        for _ in range(5):
            told.watch.hear(KEYS[1], 9, newest=2)
            await told.watch.follow_up()
        told.watch.hear(KEYS[2], 2, newest=2)
        told.watch.hear(KEYS[2], 3, newest=2)
        await told.watch.follow_up()
        assert told.taken == [3]
        assert told.watch.counters.state() == {"manifest/refused": 1, "manifest/taken": 1}

    asyncio.run(scenario())  # threads, and so no virtual time


def test_a_claim_that_nobody_answered_for_is_followed_up_again() -> None:
    async def scenario() -> None:
        network = MemoryNetwork(LinkModel(delay=0.0, jitter=0.0))
        told = Told(network.join(KEYS[0]))
        told.watch.hear(KEYS[1], 3, newest=2)
        await told.watch.follow_up()
        assert told.watch.counters.state() == {"manifest/unreachable": 1}
        network.join(KEYS[1]).serve("manifest", revision(3).to_toml().encode)
        told.watch.hear(KEYS[1], 3, newest=2)
        await told.watch.follow_up()
        assert told.taken == [3]

    asyncio.run(scenario())


def test_liars_are_asked_one_after_another_and_behind_those_who_are_admitted() -> None:
    """Each of a thousand free keys may claim a revision: the fetches of the training must not wait for them."""
    asked: list[bytes] = []
    under_way = 0

    class Slow(MemoryTransport):
        async def ask(self, peer: bytes, name: str, limit: int) -> bytes:
            nonlocal under_way
            under_way += 1
            assert under_way == 1
            asked.append(peer)
            try:
                await asyncio.sleep(10_000)
            finally:
                under_way -= 1
            return b""

    async def scenario() -> None:
        transport = MemoryNetwork().join(KEYS[0])
        transport.__class__ = Slow
        told = Told(transport, lambda key: key == KEYS[2])
        for number in range(2 * CLAIMS):
            told.watch.hear(number.to_bytes(32, "big"), 2**63 - 1, newest=2)
        told.watch.hear(KEYS[2], 3, newest=2)
        following = asyncio.create_task(told.watch.run())
        await asyncio.sleep(MANIFEST_SECONDS * 3.5)
        following.cancel()
        assert asked[0] == KEYS[2]
        assert len(asked) == 4

    run(scenario)
