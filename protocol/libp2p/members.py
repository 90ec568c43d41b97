"""Signs of life: connected strangers are asked who they are, and known peers that fall silent whether they live."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from shoal.protocol.envelope import ANNOUNCEMENT_SIZE, Announcement
from shoal.protocol.errors import FetchFailed, ProtocolError
from shoal.protocol.libp2p.backoff import Backoff
from shoal.protocol.libp2p.blobs import Client, Crowded
from shoal.protocol.libp2p.known import DOWN, KnownPeers, Peer
from shoal.protocol.libp2p.place import Place
from shoal.protocol.libp2p.roads import Roads
from shoal.protocol.libp2p.tasks import Tasks
from shoal.protocol.limits import DEFAULT_LIMITS

RECORD = "record"  # the document that holds a node's own record
AT_ONCE = 8
PATIENCE = 5  # tries for a stranger: nodes of other swarms and of other kinds connect too


class Members:
    """Asks connected peers for their record; what they answer is taken in, what they do not answer is noted."""

    def __init__(self, place: Place, known: KnownPeers, roads: Roads) -> None:
        rhythm = self._rhythm = place.rhythm
        self._swarm_id, self._known, self._roads = place.swarm_id, known, roads
        self._client = Client(roads.open, min(rhythm.answer, 5.0))  # its own places: fetches must not delay it
        self._strangers = Backoff(rhythm.first_retry, rhythm.last_retry, PATIENCE)
        self._lapsed = Backoff(rhythm.first_retry, rhythm.last_retry)
        self._tasks = Tasks()

    def look(self, lost: set[str]) -> None:
        """Ask whom it is time to ask; `lost` are the peers whose connection has ended since the last look."""
        now, monotonic = time.time(), asyncio.get_running_loop().time()
        for peer in filter(None, map(self._known.by_transport, lost)):
            self._ask(peer, DOWN)
        connected = [peer for peer in self._known.all() if peer.transport_id in self._roads.connected]
        for peer in sorted(connected, key=lambda peer: peer.heard):
            if peer.failures < DOWN:
                due = now - peer.heard > self._rhythm.probe
            else:
                due = self._lapsed.due(peer.transport_id, monotonic)  # it may only have slept
            if due:
                self._ask(peer, 1)
        for transport_id in self._roads.connected:
            if self._known.by_transport(transport_id) is None and self._strangers.due(transport_id, monotonic):
                self._start(transport_id, partial(self._meet, transport_id))

    async def close(self) -> None:
        """Ask nobody any more."""
        await self._tasks.close()

    def _ask(self, peer: Peer, weight: int) -> None:
        self._start(peer.transport_id, partial(self._probe, peer, weight))

    def _start(self, transport_id: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if len(self._tasks) < AT_ONCE:
            self._tasks.start_once(transport_id, work)

    async def _probe(self, peer: Peer, weight: int) -> None:
        """Ask a known peer for a sign of life; `weight` is how many failures its silence counts."""
        try:
            sealed = await self._record_of(peer.transport_id)
        except Crowded:
            return
        except FetchFailed as failure:
            if failure.reason in ("unreachable", "timeout"):
                self._known.failed(peer.key, weight)
                self._lapsed.failed(peer.transport_id, asyncio.get_running_loop().time())
            else:
                self._known.heard(peer.key)
            return
        self._known.take(sealed, peer.key, proven=True)
        self._known.heard(peer.key)

    async def _meet(self, transport_id: str) -> None:
        """Ask a stranger for its record."""
        now = asyncio.get_running_loop().time()
        try:
            sealed = await self._record_of(transport_id)
            owner = Announcement.decode(sealed[:ANNOUNCEMENT_SIZE]).header.key
        except (FetchFailed, ProtocolError):
            self._strangers.failed(transport_id, now)
            return
        peer = self._known.take(sealed, owner)
        if peer is None or peer.transport_id != transport_id:
            self._strangers.failed(transport_id, now)
            return
        self._strangers.succeeded(transport_id, now)
        self._known.heard(owner)

    async def _record_of(self, transport_id: str) -> bytes:
        return await self._client.document(transport_id, self._swarm_id, RECORD, DEFAULT_LIMITS.record_bytes)
