"""How nodes find each other: bootstraps are tried for ever, records are stored in the DHT and looked up there.

Records lie under 64 keys, so that no value grows with the swarm. All keys are searched when the first node answers,
then a few at a time in turn. Connected bootstraps are asked for a sign of life again and again: two halves of a swarm
that have lost each other meet there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from shoal.protocol.errors import FetchFailed
from shoal.protocol.libp2p.addresses import split
from shoal.protocol.libp2p.backoff import Backoff
from shoal.protocol.libp2p.known import SHARDS, KnownPeers, Peer, record_shard
from shoal.protocol.libp2p.own_record import OwnRecord
from shoal.protocol.libp2p.place import Place
from shoal.protocol.libp2p.roads import Roads
from shoal.protocol.libp2p.tasks import Tasks

TURN = 4  # record keys searched when their turn comes
LONELY_PEERS = 4  # remembered peers that are tried besides the bootstraps while nobody is connected
RETRY_SECONDS = 10.0  # after a record could not be stored
AGAIN_SECONDS = 15.0  # after the first search of all keys: others start at the same time
MISSING_SECONDS = 30.0  # a key whose record was not found is not searched again before that


class Discovery:
    """Keeps the DHT joined, the own record in it, and the known peers up to date."""

    def __init__(self, place: Place, known: KnownPeers, roads: Roads, record: OwnRecord) -> None:
        self._place, self._known, self._roads, self._record = place, known, roads, record
        self.bootstraps = _grouped(place.settings.bootstraps, place.transport_id)
        rhythm = place.rhythm
        self._tries = Backoff(rhythm.first_retry, rhythm.last_retry)
        self._missing = Backoff(MISSING_SECONDS, 20 * MISSING_SECONDS)
        self._tasks = Tasks()
        self._next_record = self._next_turn = 0.0  # loop time
        self._next_search: float | None = None  # of all keys; None before the first contact, and after two searches
        self._searches = 0
        self._turn = 0

    def look(self, addresses: tuple[str, ...]) -> None:
        """Begin what is due; `addresses` are those of this node that it tells others."""
        now = asyncio.get_running_loop().time()
        self._try_bootstraps(now)
        link = self._roads.link
        if not self._searches and self._next_search is None and link is not None and link.dht.routes:
            self._next_search, self._next_record = now, 0.0  # what was stored while alone reached nobody
        if now >= self._next_record or self._record.changed(addresses):
            self._next_record = now + self._place.rhythm.refresh
            self._tasks.start_once("record", partial(self._publish, addresses))
        if self._next_search is not None and now >= self._next_search:
            self._searches += 1
            self._next_search = now + AGAIN_SECONDS if self._searches == 1 else None
            self._tasks.start_once("search", partial(self._search, range(SHARDS)))
        elif self._searches and now >= self._next_turn:
            self._next_turn = now + self._place.rhythm.sweep
            turn = [(self._turn + step) % SHARDS for step in range(TURN)]
            self._turn = (self._turn + TURN) % SHARDS
            self._tasks.start_once("search", partial(self._search, turn))

    def hurry(self) -> None:
        """Do everything now: the machine has slept, or p2pd was started again and knows nothing."""
        now = asyncio.get_running_loop().time()
        self._tries.hurry(now)
        self._next_record = self._next_turn = 0.0
        self._next_search, self._searches = None, 0

    async def find(self, key: bytes) -> Peer | None:
        """The peer with this root key, searched for when it is not known; at most every MISSING_SECONDS."""
        known = self._known.get(key)
        now = asyncio.get_running_loop().time()
        if known is not None or not self._missing.due(key.hex(), now):
            return known
        self._missing.failed(key.hex(), now)  # until it is found, so that many who ask cause one search
        await self._search([record_shard(key)])
        found = self._known.get(key)
        if found is not None:
            self._missing.succeeded(key.hex(), now)
        return found

    async def close(self) -> None:
        """Leave off."""
        await self._tasks.close()

    def _try_bootstraps(self, now: float) -> None:
        candidates = dict(self.bootstraps)
        if not self._roads.connected:
            self._tries.hurry(now + self._place.rhythm.lonely)
            others = [(peer.transport_id, peer.addresses) for peer in self._known.all()]
            for peer, addresses in [*others, *reversed(self._known.remembered.items())][:LONELY_PEERS]:
                # A bootstrap's record says where it was; where it was said to be may be a name that has moved with it.
                candidates[peer] = (*self.bootstraps.get(peer, ()), *addresses)
        for peer, addresses in candidates.items():
            if self._tries.due(peer, now):
                self._tasks.start_once(peer, partial(self._meet, peer, addresses))

    async def _meet(self, peer: str, addresses: tuple[str, ...]) -> None:
        """Connect to a bootstrap and enter each other's routing table."""
        loop, rhythm = asyncio.get_running_loop(), self._place.rhythm
        try:
            await self._roads.connect(peer, addresses)
            link = self._roads.link
            met = link is not None and await link.dht.meet(peer)
        except (FetchFailed, OSError, EOFError):
            met = False
        if not met:
            self._place.count("bootstrap_failed")
            self._tries.failed(peer, loop.time())
            return
        self._place.count("bootstrap_met")
        self._tries.succeeded(peer, loop.time(), again=rhythm.ping)

    async def _publish(self, addresses: tuple[str, ...]) -> None:
        """Renew the own record and store it."""
        link, key = self._roads.link, self._place.identity.key
        sealed = self._record.renew(addresses)
        topic = self._place.topic(f"peers/{record_shard(key)}")
        if link is None or not await link.dht.store(topic, key, sealed, self._place.rhythm.ttl):
            self._place.count("record_not_stored")
            self._next_record = asyncio.get_running_loop().time() + RETRY_SECONDS

    async def _search(self, shards: Iterable[int]) -> None:
        """Take in the records under some of the keys."""
        link = self._roads.link
        if link is None:
            return
        found = await link.dht.find([self._place.topic(f"peers/{shard}") for shard in shards])
        for records in found.values():
            for owner, sealed in records.items():
                if self._known.take(sealed, owner) is None:
                    continue
                await asyncio.sleep(0)  # each new one costs half a millisecond: the loop goes on between them


def _grouped(bootstraps: tuple[str, ...], own: str) -> dict[str, tuple[str, ...]]:
    """Addresses by peer id, without this node's own. Raises UsageError for what is no full address."""
    groups: dict[str, tuple[str, ...]] = {}
    for address, peer in map(split, bootstraps):
        if peer != own:
            groups[peer] = (*groups.get(peer, ()), address)
    return groups
