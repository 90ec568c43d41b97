"""A hostile member of the DHT against an honest one: real daemons, and messages that no node would send."""

import os
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import live_transports as live
import pytest

from shoal.protocol.libp2p import imports
from shoal.protocol.libp2p.keys import peer_bytes
from shoal.protocol.libp2p.known import record_shard
from shoal.protocol.libp2p.transport import Libp2pTransport
from shoal.protocol.limits import MIB

KEY_A = live.identity(1).key
EXPIRES = 600.0


class Attacker:
    """Another node of the same DHT, used through its raw RPCs."""

    def __init__(self, node: Libp2pTransport, victim: Libp2pTransport) -> None:
        hivemind = imports.hivemind()
        link = node._roads.link
        assert link is not None
        self.node, self.victim, self.messages = node, victim, hivemind.dht_messages
        self.protocol: Any = link.dht._node.protocol
        self.stub = self.protocol.get_stub(hivemind.PeerID(peer_bytes(victim._place.transport_id)))
        self.packed = hivemind.Serializer.dumps

    def topic(self, name: str) -> bytes:
        hivemind = imports.hivemind()
        return hivemind.node_module.DHTID.generate(f"shoal/{live.SWARM[:8].hex()}/{name}").to_bytes()

    async def store(self, key: bytes, tag: bytes, value: bytes, expiration: float | None = None) -> list[bool]:
        """Ask the victim to store something."""
        expiration = time.time() + EXPIRES if expiration is None else expiration
        request = self.messages.StoreRequest(
            keys=[key], subkeys=[tag], values=[value], expiration_time=[expiration], in_cache=[False]
        )
        return list((await self.stub.rpc_store(request, timeout=10)).store_ok)

    def sealed(self, key: bytes, tag: bytes, data: bytes, expiration: float) -> bytes:
        """A value with the attacker's own signature."""
        return self.protocol.record_validator._seal.sign(key, tag, self.packed(data), expiration)


@asynccontextmanager
async def attack() -> AsyncIterator[Attacker]:
    async with live.swarm(2) as (victim, node):
        yield Attacker(node, victim)
        record = b"still here"
        await node.publish_record("after", record, 60)  # the victim has survived
        assert await victim.lookup_records("after") == [record]


def test_nobody_stores_under_anothers_key():
    async def main() -> None:
        async with attack() as attacker:
            victim = attacker.victim
            name = f"peers/{record_shard(KEY_A)}"
            key, tag, late = attacker.topic(name), attacker.packed(KEY_A), time.time() + EXPIRES
            for value in (
                attacker.sealed(key, tag, b"forged", late),
                attacker.packed(b"unsigned"),
                attacker.packed(b"unsigned") + bytes(64),
                b"",
            ):
                assert await attacker.store(key, tag, value, late) == [False]
            link = victim._roads.link
            assert link is not None
            found = await link.dht.find([victim._place.topic(name)])
            assert set(found[victim._place.topic(name)]) == {KEY_A}
            assert victim.counters["dht_bad_signature"] == 2
            assert victim.counters["dht_malformed"] == 2
            own, mine = attacker.packed(live.identity(2).key), attacker.topic("topic/mine")
            assert await attacker.store(mine, own, attacker.sealed(mine, own, b"good", late), late) == [True]

    live.run(main)


def test_forms_that_no_node_sends_are_refused():
    """Bombs, wrong sizes, values without an owner, wrong expirations: each is refused before it costs anything."""

    async def main() -> None:
        async with attack() as attacker:
            key, own = attacker.topic("topic/mine"), attacker.packed(live.identity(2).key)
            plain, dictionary = attacker.protocol.RESERVED_SUBKEYS
            bomb = (
                b"\xc9" + (2**20).to_bytes(4, "big") + b"\x50" + b"\x93\x00\x00\xdd\x00\x0f\xff\xf0" + b"\x80" * 2**20
            )
            now = time.time()
            tracemalloc.start()
            for tag, value, expiration in (
                (plain, attacker.packed(b"without an owner"), now + 60),
                (dictionary, bomb, now + 60),
                (dictionary, attacker.packed(b"no dictionary"), now + 60),
                (attacker.packed("text"), attacker.packed(b"x"), now + 60),
                (own, attacker.sealed(key, own, b"x" * 3000, now + 60), now + 60),
                (own, attacker.sealed(key, own, b"x", now + 86_400), now + 86_400),
                (own, attacker.sealed(key, own, b"x", float("nan")), float("nan")),
            ):
                assert await attacker.store(key, tag, value, expiration) == [False], tag
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < 16 * MIB  # a decoder would make 69 MB of it
            assert await attacker.victim.lookup_records("mine") == []
            empty = attacker.messages.StoreRequest(keys=[key, key], subkeys=[own], values=[b""], in_cache=[False])
            assert list((await attacker.stub.rpc_store(empty, timeout=10)).store_ok) == [False, False]
            for keys in ([b"short"], [key] * 1000):
                reply = await attacker.stub.rpc_find(attacker.messages.FindRequest(keys=keys), timeout=10)
                assert len(reply.results) == 0
            ping = attacker.messages.PingRequest(peer=attacker.messages.NodeInfo(node_id=b"x" * 500))
            assert not (await attacker.stub.rpc_ping(ping, timeout=10)).peer.node_id

    live.run(main)


def test_a_flood_of_requests_is_turned_away_and_others_are_served(monkeypatch: pytest.MonkeyPatch):
    from shoal.protocol.libp2p import dht_guard

    monkeypatch.setattr(dht_guard, "RATE", 1.0)
    monkeypatch.setattr(dht_guard, "BURST", 200.0)

    async def main() -> None:
        async with live.swarm(3) as (victim, node, friend):
            attacker = Attacker(node, victim)
            requests = [attacker.messages.FindRequest(keys=[os.urandom(20) for _ in range(8)]) for _ in range(100)]
            replies = [await attacker.stub.rpc_find(request, timeout=10) for request in requests]
            assert 0 < sum(len(reply.results) for reply in replies) < 300
            assert victim.counters["dht_flood"] > 50
            await friend.publish_record("things", b"friendly", 60)
            assert await victim.lookup_records("things") == [b"friendly"]

    live.run(main)


def test_what_is_stored_for_others_is_bounded(monkeypatch: pytest.MonkeyPatch):
    from shoal.protocol.libp2p import dht_guard

    monkeypatch.setattr(dht_guard, "MAX_KEYS", 20)

    async def main() -> None:
        async with live.swarm(2) as (victim, node):
            attacker = Attacker(node, victim)
            own, late = attacker.packed(live.identity(2).key), time.time() + EXPIRES
            stored = []
            for number in range(60):
                key = attacker.topic(f"topic/{number}")
                stored += await attacker.store(key, own, attacker.sealed(key, own, b"x", late), late)
            assert 10 <= sum(stored) <= 20
            assert victim.counters["dht_full"] == 60 - sum(stored)
            await live.until(lambda: victim._roads.link is not None)
            assert len(victim._roads.link.dht._node.protocol.storage) == 20

    live.run(main)


def test_another_swarm_has_another_dht():
    """Connected daemons of two swarms: neither sees the other's records, and neither counts the other as a peer."""

    async def main() -> None:
        first = live.transport(1)
        await first.start()
        other = live.transport(2, first, swarm_id=bytes([8]) * 32)
        try:
            await other.start()
            await live.until(lambda: other.connected_bootstraps == 1)
            await live.until(lambda: other.counters.get("bootstrap_failed"))
            await first.publish_record("things", b"first", 60)
            assert await other.lookup_records("things") == []
            assert (first.peers(), other.peers()) == ([], [])
        finally:
            await other.close()
            await first.close()

    live.run(main)
