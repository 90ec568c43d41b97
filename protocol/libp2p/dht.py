"""The DHT of a swarm: where signed records are found by topic. One object lives as long as one p2pd."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

from shoal.protocol.libp2p import imports
from shoal.protocol.libp2p.dht_records import MAX_DATA, Seal
from shoal.protocol.libp2p.keys import peer_bytes
from shoal.protocol.libp2p.p2pd import MAX_MESSAGE
from shoal.protocol.libp2p.place import Place

RPC_SECONDS = 4.0  # for one answer of one node, relays included
STORE_SECONDS = 20.0
FIND_SECONDS = 15.0
FIND_KEYS = 4  # keys of one search: their records must fit one reply
BEAM = 12  # nodes that a search visits for each key
SUSPECTS = 4096  # nodes that once did not answer: the library would remember them for ever

T = TypeVar("T")


class Dht:
    """Store and find. What fails is counted and empty; nothing that a peer sends raises here."""

    def __init__(self, node: Any, p2p: Any, count: Callable[[str], None]) -> None:
        self._node, self._p2p, self._count = node, p2p, count

    @staticmethod
    async def create(place: Place, control_path: str, earlier: Dht | None = None) -> Dht:
        """Join the running p2pd; what an `earlier` life of this node stored for others is taken over.

        Raises OSError when p2pd is gone.
        """
        hivemind = await asyncio.to_thread(imports.hivemind)
        from shoal.protocol.libp2p.dht_guard import OwnedRecords, protocol_of

        logging.getLogger("hivemind").setLevel(logging.CRITICAL)  # it writes a line for whatever peers do
        folder = control_path.rpartition("/")[0]
        own = {
            "_UNIX_SOCKET_PREFIX": f"/unix{folder}/",
            "dht_protocol": protocol_of(f"Shoal-{place.swarm_id[:8].hex()}", place.count),
        }
        try:
            p2p = await type("P2P", (hivemind.P2P,), own).replicate(hivemind.Multiaddr(f"/unix{control_path}"))
            p2p._client.control.persistent_conn_max_msg_size = MAX_MESSAGE
            node = await hivemind.DHTNode.create(
                p2p=p2p,
                wait_timeout=RPC_SECONDS,
                cache_locally=False,
                cache_nearest=0,
                cache_on_store=False,
                cache_refresh_before_expiry=0,
                reuse_get_requests=False,
                record_validator=OwnedRecords(Seal(place.identity), place.count),
            )
        except (EOFError, hivemind.DaemonError) as fault:
            raise ConnectionAbortedError("p2pd ended") from fault
        if earlier is not None:
            node.protocol.storage = earlier._node.protocol.storage
        return Dht(node, p2p, place.count)

    @property
    def broken(self) -> bool:
        """Whether the connection to p2pd has ended, and with it every call."""
        control = self._p2p._client.control
        return bool(control._read_task.done() or control._write_task.done())

    @property
    def routes(self) -> int:
        """Nodes in the routing table."""
        return len(self._node.protocol.routing_table.peer_id_to_uid)

    async def meet(self, peer: str) -> bool:
        """Ask a node for a sign of life, so that each enters the other's routing table; then find the neighbours."""
        hivemind = imports.hivemind()
        if await self._within(self._node.protocol.call_ping(hivemind.PeerID(peer_bytes(peer))), FIND_SECONDS) is None:
            return False
        await self._within(self._node.find_nearest_nodes([self._node.node_id]), FIND_SECONDS)
        return True

    async def store(self, topic: str, owner: bytes, data: bytes, ttl: float) -> bool:
        """Store this node's record under a topic for `ttl` seconds; True when somebody, if only this node, has it."""
        if len(data) > MAX_DATA:
            self._count("dropped_record_too_large")
            return False
        work = self._node.store(topic, data, time.time() + ttl, subkey=owner)
        return bool(await self._within(work, STORE_SECONDS))

    async def find(self, topics: Sequence[str]) -> dict[str, dict[bytes, bytes]]:
        """For each topic, the unexpired records by their owner's key."""
        found: dict[str, dict[bytes, bytes]] = {topic: {} for topic in topics}
        for start in range(0, len(topics), FIND_KEYS):
            part = topics[start : start + FIND_KEYS]
            work = self._node.get_many(part, sufficient_expiration_time=float("inf"), beam_size=BEAM)
            for topic, entry in cast("dict[str, Any]", await self._within(work, FIND_SECONDS) or {}).items():
                owned = cast("dict[bytes, Any]", entry.value if entry is not None else {})
                now = time.time()
                found[topic] = {key: item.value for key, item in owned.items() if item.expiration_time > now}
        if len(self._node.blacklist.ban_counter) > SUSPECTS:
            self._node.blacklist.clear()
        return found

    async def close(self) -> None:
        """Let go of p2pd; the records of other nodes are gone with it."""
        self._node.is_alive = False
        self._p2p._terminate()
        control = self._p2p._client.control
        for task in (control._read_task, control._write_task):
            if task.done() and not task.cancelled():
                task.exception()  # it ended with p2pd: nobody else takes note

    async def _within(self, work: Awaitable[T], seconds: float) -> T | None:
        """What a call gives; None, counted, when p2pd is gone or the call takes too long."""
        hivemind = imports.hivemind()
        try:
            return await asyncio.wait_for(work, seconds)
        except (OSError, EOFError, AssertionError, ValueError, hivemind.DaemonError):
            self._count("dht_call_failed")
            return None
