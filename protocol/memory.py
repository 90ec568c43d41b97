"""A network in memory: the same bytes as on a real one, with seeded delay, loss, reordering and partitions.

It uses the running loop's clock and timers only, so it runs under any loop; under VirtualTimeLoop it costs no time.
The same seed and the same order of calls give the same deliveries.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import random
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from shoal.protocol.errors import FetchFailed, UsageError
from shoal.protocol.inbox import Inbox
from shoal.protocol.limits import KIB
from shoal.protocol.links import LinkModel, Partition
from shoal.protocol.transport import Received

__all__ = ["LinkModel", "MemoryNetwork", "MemoryTransport", "Partition"]

MAX_ANNOUNCEMENT = 64 * KIB  # what gossip carries at most; the gate's cap is far lower
MAX_IN_FLIGHT = 65_536  # messages on the way in the whole network
MAX_OFFERS = 4096  # blobs that one member serves
MAX_RECORDS = 1024  # records under one topic, and topics
FETCH_ATTEMPTS = 3
REQUEST_BYTES = 32  # a digest
RETRY_SECONDS = 1.0  # what a lost request costs before it is sent again


Find = Callable[["MemoryTransport"], bytes | None]
"""What a member has that was asked for; None when it has not."""


class _Record(NamedTuple):
    publisher: bytes
    data: bytes
    expires: float


class MemoryTransport:
    """One member's side of a MemoryNetwork; implements Transport. Made by MemoryNetwork.join."""

    def __init__(self, network: MemoryNetwork, key: bytes, index: int) -> None:
        self.key = key
        self.index = index
        self.inbox = Inbox(self.count)
        self._network = network
        self._counts: Counter[str] = Counter()
        self._offers: OrderedDict[bytes, bytes] = OrderedDict()
        self._documents: dict[str, Callable[[], bytes]] = {}

    @property
    def counters(self) -> dict[str, int]:
        """What this member sent, received and lost, by reason."""
        return dict(self._counts)

    async def announce(self, data: bytes) -> None:
        """Gossip to every other member; lost, separated and oversized messages are counted, never raised."""
        if self.closed:
            self.count("dropped_closed")
        elif len(data) > MAX_ANNOUNCEMENT:
            self.count("dropped_announcement_too_large")
        else:
            self.count("announced")
            self._network.gossip(self, data)

    @property
    def closed(self) -> bool:
        """Whether this member has left."""
        return self.inbox.closed

    def announcements(self) -> AsyncIterator[Received]:
        """Announcements in order of arrival, until this transport is closed."""
        return self.inbox.read()

    @property
    def queued(self) -> int:
        """Announcements that arrived and wait to be read."""
        return len(self.inbox)

    async def fetch(self, peer: bytes, digest: bytes, limit: int) -> bytes:
        """The blob from its publisher; see Transport.fetch. A lost request is sent up to three times."""
        try:
            blob = await self._network.carry(self, peer, lambda source: source.served(digest), limit)
            if hashlib.sha256(blob).digest() != digest:
                raise FetchFailed("wrong_digest", digest[:4].hex())
        except FetchFailed as failure:
            self.count(f"fetch_{failure.reason}")
            raise
        self.count("fetched")
        return blob

    def serve(self, name: str, provide: Callable[[], bytes]) -> None:
        """Answer whoever asks for this document; see Transport.serve."""
        self._documents[name] = provide

    async def ask(self, peer: bytes, name: str, limit: int) -> bytes:
        """A document of a peer, over the same links as a blob; see Transport.ask."""
        try:
            document = await self._network.carry(self, peer, lambda source: source.document(name), limit)
        except FetchFailed as failure:
            self.count(f"ask_{failure.reason}")
            raise
        self.count("asked")
        return document

    def document(self, name: str) -> bytes | None:
        """The document that this member serves under a name."""
        provide = self._documents.get(name)
        return None if provide is None else provide()

    def served(self, digest: bytes) -> bytes | None:
        """The blob that this member offers under a digest."""
        return self._offers.get(digest)

    def offer(self, digest: bytes, blob: bytes) -> None:
        """Serve a blob; the oldest of more than MAX_OFFERS is dropped and counted."""
        self._offers[digest] = blob
        self._offers.move_to_end(digest)
        if len(self._offers) > MAX_OFFERS:
            self._offers.popitem(last=False)
            self.count("dropped_offer")

    def withdraw(self, digest: bytes) -> None:
        """Serve a blob no longer."""
        self._offers.pop(digest, None)

    async def publish_record(self, topic: str, data: bytes, ttl: float) -> None:
        """Store this member's record under a topic; a full topic drops it and counts it."""
        if not self._network.store_record(topic, self.key, data, ttl):
            self.count("dropped_record")

    async def lookup_records(self, topic: str) -> list[bytes]:
        """Unexpired records under a topic from members that can be reached, in order of publishing."""
        return self._network.find_records(self, topic)

    def peers(self) -> list[bytes]:
        """Keys of the members that can be reached now, in join order."""
        return self._network.reachable(self)

    async def close(self) -> None:
        """Leave; whoever reads announcements gets to the end of what is queued."""
        self.inbox.close()

    def count(self, reason: str) -> None:
        """Add one to a counter."""
        self._counts[reason] += 1

    def state(self) -> list[Any]:
        """Plain lists and bytes: whether it left, counters, offers, and what waits to be read."""
        return [self.closed, sorted(self._counts.items()), list(self._offers.items()), self.inbox.items()]

    def restore(self, state: Any) -> None:
        """Take over what state() gave."""
        closed, counts, offers, queue = state
        self._counts = Counter(dict(counts))
        self._offers = OrderedDict(offers)
        self.inbox.restore((Received(*item) for item in queue), closed)


class MemoryNetwork:
    """All members and the links between them. `counters` holds what was lost on the way, by reason."""

    def __init__(self, links: LinkModel | None = None, seed: int = 0) -> None:
        self.links = links or LinkModel()
        self.in_flight = 0
        self._random = random.Random(seed)
        self._members: dict[bytes, MemoryTransport] = {}  # in join order
        self._uplink_free: dict[int, float] = {}  # when a member's uplink has sent all that it was given
        self._records: dict[str, OrderedDict[bytes, _Record]] = {}
        self._counts: Counter[str] = Counter()
        self._sent = 0
        self._on_the_way: list[tuple[float, int, bytes, Received]] = []  # a heap
        self._settling: list[asyncio.Future[None]] = []

    @property
    def counters(self) -> dict[str, int]:
        """What was delivered and what was lost on the way, by reason."""
        return dict(self._counts)

    def join(self, key: bytes) -> MemoryTransport:
        """A new member. One that has left may come back under its key; one that is here is refused (UsageError)."""
        known = self._members.get(key)
        if known is not None and not known.closed:
            raise UsageError(f"the key {key[:4].hex()} is in the network already: two nodes cannot share an identity")
        member = MemoryTransport(self, key, known.index if known else len(self._members))
        self._members[key] = member
        return member

    def gossip(self, sender: MemoryTransport, data: bytes) -> None:
        """Send one announcement to every other member, each over a link of its own."""
        for receiver in list(self._members.values()):
            if receiver is sender or receiver.closed:
                continue
            delay = self._link_delay(sender, len(data))
            lost = self._random.random() < self.links.loss
            if not self.links.connected(sender.index, receiver.index, self._now()):
                self._counts["dropped_partition"] += 1
            elif lost:
                self._counts["dropped_loss"] += 1
            elif self.in_flight >= MAX_IN_FLIGHT:
                self._counts["dropped_in_flight_full"] += 1
            else:
                self.in_flight += 1
                self._sent += 1
                due = self._now() + delay
                heapq.heappush(self._on_the_way, (due, self._sent, receiver.key, Received(data, sender.key)))
                asyncio.get_running_loop().call_at(due, self._arrive)

    def _arrive(self) -> None:
        """Deliver what is due first. The loop runs timers of one instant in any order; what was sent first is first."""
        _, _, key, received = heapq.heappop(self._on_the_way)
        self._counts["delivered"] += 1
        self._members[key].inbox.deliver(received)
        self._landed()

    def _landed(self) -> None:
        self.in_flight -= 1
        if self.in_flight == 0:
            for waiter in self._settling:
                if not waiter.done():
                    waiter.set_result(None)
            self._settling.clear()

    def _link_delay(self, sender: MemoryTransport, size: int) -> float:
        """Seconds until `size` bytes arrive: waiting for the uplink, sending, and the way itself."""
        way = self.links.delay + self.links.jitter * self._random.random()
        if self.links.bandwidth is None:
            return way
        now = self._now()
        free = max(now, self._uplink_free.get(sender.index, now)) + size / self.links.bandwidth
        self._uplink_free[sender.index] = free
        return free - now + way

    async def carry(self, receiver: MemoryTransport, peer: bytes, find: Find, limit: int) -> bytes:
        """Request and answer for what `find` gives at the peer, in virtual time; raises FetchFailed."""
        self.in_flight += 1
        try:
            for _ in range(FETCH_ATTEMPTS):
                source = self._source(receiver, peer)
                request = self._link_delay(receiver, REQUEST_BYTES)
                lost = self._random.random() < self.links.loss
                if not lost:
                    await asyncio.sleep(request)
                    return await self._answer(source, receiver, find, limit)
                self._counts["dropped_fetch_attempt"] += 1
                await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._landed()
        raise FetchFailed("timeout", f"{FETCH_ATTEMPTS} attempts")

    async def _answer(self, source: MemoryTransport, receiver: MemoryTransport, find: Find, limit: int) -> bytes:
        source = self._source(receiver, source.key)
        data = find(source)
        if data is None or len(data) > limit:
            await asyncio.sleep(self._link_delay(source, 0))
            raise FetchFailed("not_found" if data is None else "too_large", source.key[:4].hex())
        await asyncio.sleep(self._link_delay(source, len(data)))
        self._source(receiver, source.key)
        return data

    def _source(self, receiver: MemoryTransport, peer: bytes) -> MemoryTransport:
        source = self._members.get(peer)
        if source is None or source.closed or receiver.closed or not self._connected(source, receiver):
            raise FetchFailed("unreachable", peer[:4].hex())
        return source

    def store_record(self, topic: str, publisher: bytes, data: bytes, ttl: float) -> bool:
        """Keep a member's record; false when topics or records are at their bound."""
        self._expire()
        if topic not in self._records and len(self._records) >= MAX_RECORDS:
            return False
        records = self._records.setdefault(topic, OrderedDict())
        if publisher not in records and len(records) >= MAX_RECORDS:
            return False
        records[publisher] = _Record(publisher, data, self._now() + ttl)
        return True

    def find_records(self, reader: MemoryTransport, topic: str) -> list[bytes]:
        """Unexpired records of members that a reader can reach, its own among them."""
        self._expire()
        records = self._records.get(topic, OrderedDict[bytes, _Record]()).values()
        return [r.data for r in records if self._connected(self._members[r.publisher], reader)]

    def _expire(self) -> None:
        now = self._now()
        for topic, records in list(self._records.items()):
            for publisher in [key for key, record in records.items() if record.expires <= now]:
                del records[publisher]
            if not records:
                del self._records[topic]

    def reachable(self, member: MemoryTransport) -> list[bytes]:
        """Keys of the other members that are here and not separated from this one."""
        others = (other for other in self._members.values() if other is not member and not other.closed)
        return [other.key for other in others if self._connected(other, member)]

    def _connected(self, first: MemoryTransport, second: MemoryTransport) -> bool:
        return self.links.connected(first.index, second.index, self._now())

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def settle(self) -> None:
        """Wait, in the loop's time, until no announcement and no fetch is on the way."""
        while self.in_flight:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._settling.append(waiter)
            await waiter

    def state(self) -> list[Any]:
        """Plain lists, numbers and bytes for a checkpoint. Raises RuntimeError while something is in flight."""
        if self.in_flight:
            raise RuntimeError("settle() the network before its state is taken: what is in flight would be lost")
        version, numbers, gauss = self._random.getstate()
        members = [[member.key, member.state()] for member in self._members.values()]
        records = [[topic, list(records.values())] for topic, records in self._records.items()]
        uplinks = sorted(self._uplink_free.items())
        return [[version, list(numbers), gauss], sorted(self._counts.items()), uplinks, records, members]

    def restore(self, state: Any) -> None:
        """Take over what state() gave. Raises ValueError unless the same members have joined in the same order."""
        (version, numbers, gauss), counts, uplinks, records, members = state
        if [key for key, _ in members] != list(self._members):
            raise ValueError("the members of the saved network join, in the same order, before it is restored")
        self._random.setstate((version, tuple(numbers), gauss))
        self._counts = Counter(dict(counts))
        self._uplink_free = dict(uplinks)
        self._records = {
            topic: OrderedDict((publisher, _Record(publisher, data, expires)) for publisher, data, expires in rows)
            for topic, rows in records
        }
        for key, member in members:
            self._members[key].restore(member)
