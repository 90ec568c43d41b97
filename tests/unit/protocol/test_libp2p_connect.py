import asyncio
from collections import Counter
from collections.abc import Mapping

import pytest

from shoal.protocol.identity import Identity
from shoal.protocol.libp2p.connect import AT_ONCE, MOST, PATIENCE, SURPLUS, TARGET, Connector, choose
from shoal.protocol.libp2p.known import KnownPeers, Peer
from shoal.protocol.libp2p.own_record import OwnRecord
from shoal.protocol.libp2p.place import Place
from shoal.protocol.libp2p.settings import Libp2pSettings, RecordFacts, Rhythm

SWARM = bytes(32)
ONE = frozenset({"topic"})


def keys(count: int, topics: frozenset[str] = ONE, first: int = 0) -> dict[bytes, frozenset[str]]:
    return {number.to_bytes(32, "big"): topics for number in range(first, first + count)}


def test_a_lonely_node_dials_up_to_the_target():
    assert len(choose(ONE, {}, keys(50))) == TARGET
    assert set(choose(ONE, {}, keys(3))) == set(keys(3))
    assert choose(ONE, {}, {}) == []


def test_enough_is_enough():
    assert choose(ONE, keys(TARGET), keys(50, first=100)) == []
    assert len(choose(ONE, keys(4), keys(50, first=100))) == TARGET - 4
    assert choose(ONE, {}, keys(50), strangers=TARGET) != []  # nobody knows which topics strangers serve


def test_different_nodes_dial_different_peers():
    assert len({frozenset(choose(ONE, {}, keys(100))) for _ in range(10)}) > 5


def test_peers_on_the_same_topics_come_first():
    mine = frozenset({"a", "b"})
    offered = keys(40, frozenset({"z"})) | keys(8, frozenset({"a"}), 100) | keys(3, mine, 200)
    chosen = choose(mine, {}, offered)
    served = Counter(topic for key in chosen for topic in offered[key] & mine)
    assert served["a"] >= TARGET
    assert served["b"] == 3
    assert set(keys(3, mine, 200)) <= set(chosen)
    assert not set(chosen) & set(keys(40))


def test_other_peers_are_better_than_none():
    chosen = choose(frozenset({"a"}), {}, keys(40, frozenset({"z"})))
    assert len(chosen) == TARGET


def test_a_node_on_many_topics_has_a_bound_too():
    mine = frozenset(f"topic {number}" for number in range(48))
    offered: Mapping[bytes, frozenset[str]] = {
        number.to_bytes(32, "big"): frozenset({f"topic {number % 48}"}) for number in range(2000)
    }
    assert len(choose(mine, {}, offered)) == MOST


class Field:
    """A connector among peers whose answers a test decides."""

    def __init__(self, count: int, answers: bool) -> None:
        self.counts: Counter[str] = Counter()
        self.dialled: list[bytes] = []
        self.answers, self.gate = answers, asyncio.Event()
        self.gate.set()
        rhythm = Rhythm(first_retry=0.0, last_retry=0.0)
        own = Identity.from_seed(bytes(32))
        self.place = Place(own, SWARM, Libp2pSettings(rhythm=rhythm), lambda reason: self.counts.update([reason]))
        self.known = KnownPeers(SWARM, own.key, 300.0, self.place.count)
        for number in range(1, count + 1):
            self.publish(number)
        self.connector = Connector(self.place, self.known, self.dial)
        self.known.changed = self.connector.relent

    def publish(self, number: int) -> None:
        peer = Place(Identity.from_seed(number.to_bytes(32, "big")), SWARM, Libp2pSettings(), lambda reason: None)
        sealed = OwnRecord(peer, lambda: RecordFacts(bytes(32), bytes(32), 0)).renew(("/ip4/203.0.113.5/tcp/1",))
        self.known.take(sealed, peer.identity.key)

    async def dial(self, peer: Peer) -> bool:
        self.dialled.append(peer.key)
        await self.gate.wait()
        return self.answers

    async def look(self, times: int = 1, connected: frozenset[str] = frozenset()) -> None:
        for _ in range(times):
            self.connector.look(connected, ONE, lambda key: ONE)
            for _ in range(4):
                await asyncio.sleep(0)


def test_ghosts_are_not_hammered():
    """Failures 26: a peer that cannot be reached is given up; each later record of it earns one more try."""

    async def main() -> None:
        field = Field(1, answers=False)
        await field.look(50)
        assert len(field.dialled) == PATIENCE
        assert field.counts["gossip_dial_failed"] == PATIENCE
        field.publish(1)
        await field.look(50)
        assert len(field.dialled) == PATIENCE + 1

    asyncio.run(main())


def test_few_dials_at_once_and_none_twice():
    async def main() -> None:
        field = Field(20, answers=True)
        field.gate.clear()
        await field.look(5)
        assert len(field.dialled) == len(set(field.dialled)) == AT_ONCE
        await field.connector.close()
        await field.look()
        assert len(field.dialled) == 2 * AT_ONCE  # what was broken off may be tried again
        await field.connector.close()

    asyncio.run(main())


def test_connected_and_dead_peers_are_not_dialled():
    async def main() -> None:
        field = Field(3, answers=True)
        first, second, third = field.known.all()
        field.known.failed(second.key, 2)
        await field.look(1, frozenset({first.gossip_id}))
        assert field.dialled == [third.key]

    asyncio.run(main())


@pytest.mark.parametrize("surplus", [0, 3])
def test_who_has_become_useless_may_go(surplus: int):
    async def main() -> None:
        field = Field(SURPLUS + surplus, answers=True)
        peers = field.known.all()
        useful = {peer.key for peer in peers[:5]}
        connected = frozenset(peer.gossip_id for peer in peers)

        def topics(key: bytes) -> frozenset[str]:
            return ONE if key in useful else frozenset({"other"})

        farewells = field.connector.useless(connected, ONE, topics)
        assert len(farewells) == surplus
        assert not {peer.gossip_id for peer in peers[:5]} & set(farewells)

    asyncio.run(main())
