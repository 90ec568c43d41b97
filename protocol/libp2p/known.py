"""Who is in the swarm, as far as this node knows: verified records, and whether their owners still live."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from shoal.protocol.errors import ProtocolError
from shoal.protocol.identity import KEY_SIZE
from shoal.protocol.libp2p.addresses import dialable
from shoal.protocol.libp2p.keys import peer_id
from shoal.protocol.records import PeerRecord, open_record

MAX_KNOWN = 4096
MAX_REMEMBERED = 64  # addresses of peers that are gone, for when nobody else is left to ask
DOWN = 2  # failures in a row after which a peer counts as gone, whatever its record says
SKEW = 30.0  # seconds that clocks may differ
SHARDS = 64  # record keys in the DHT; a node's follows from its key


@dataclass(slots=True)
class Peer:
    """A peer by its latest record; times are in seconds since 1970."""

    record: PeerRecord
    sealed: bytes
    transport_id: str
    gossip_id: str
    addresses: tuple[str, ...]  # that are dialled
    until: float  # when it is forgotten, unless a later record comes
    heard: float  # the last sign of life
    proven: bool  # has itself answered this node, and is kept when there is no room for all
    failures: int = 0

    @property
    def key(self) -> bytes:
        """The root key."""
        return self.record.key


def record_shard(key: bytes) -> int:
    """The number of the DHT key under which a node's record lies."""
    return key[0] % SHARDS


class KnownPeers:
    """Records by root key, at most MAX_KNOWN; a record that is wrong is refused and counted, and never raises."""

    def __init__(
        self,
        swarm_id: bytes,
        own_key: bytes,
        ttl: float,
        count: Callable[[str], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self.loopback = False  # whether this machine has only loopback addresses
        self.changed: Callable[[Peer], None] | None = None  # called with each new or later record
        self.remembered: OrderedDict[str, tuple[str, ...]] = OrderedDict()  # transport id: addresses
        self._swarm_id, self._own_key, self._ttl, self._count, self._now = swarm_id, own_key, ttl, count, now
        self._peers: dict[bytes, Peer] = {}
        self._by_transport: dict[str, bytes] = {}
        self._by_gossip: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def all(self) -> list[Peer]:
        """The peers whose record has not expired."""
        self.expire()
        return list(self._peers.values())

    def alive(self) -> list[Peer]:
        """Those of them that have not stopped answering."""
        return [peer for peer in self.all() if peer.failures < DOWN]

    def get(self, key: bytes) -> Peer | None:
        """A peer by its root key."""
        return self._peers.get(key)

    def by_transport(self, transport_id: str) -> Peer | None:
        """A peer by the peer id of its p2pd."""
        return self._peers.get(self._by_transport.get(transport_id, b""))

    def by_gossip(self, gossip_id: str) -> Peer | None:
        """A peer by the peer id of its gossip host."""
        return self._peers.get(self._by_gossip.get(gossip_id, b""))

    def take(self, sealed: bytes, owner: bytes, proven: bool = False) -> Peer | None:
        """Take in a record that lay under `owner`, or that `owner` itself sent (`proven`); None when it is refused."""
        known = self._peers.get(owner)
        if known is not None and known.sealed == sealed:
            return self._sign_of_life(known, proven)
        if owner == self._own_key or len(owner) != KEY_SIZE:
            return None
        try:
            record = open_record(sealed, self._now())
        except ProtocolError as error:
            self._count(f"record_{error.reason}")
            return None
        fault = self._fault(record, owner)
        if fault:
            self._count(f"record_{fault}")
            return None
        if known is not None and record.sequence <= known.record.sequence:
            return self._sign_of_life(known, proven)
        if known is None and not self._room(proven):
            self._count("record_no_room")
            return None
        return self._enter(record, sealed, known, proven)

    def heard(self, key: bytes) -> None:
        """Note that a peer has answered, or asked something itself."""
        peer = self._peers.get(key)
        if peer is not None:
            self._sign_of_life(peer, True)

    def failed(self, key: bytes, times: int = 1) -> None:
        """Note that a peer did not answer."""
        peer = self._peers.get(key)
        if peer is not None:
            peer.failures += times
            if peer.failures - times < DOWN <= peer.failures:
                self._count("peer_down")

    def expire(self) -> None:
        """Forget whose record has run out; the addresses of the latest of them are remembered."""
        now = self._now()
        for peer in [peer for peer in self._peers.values() if peer.until <= now]:
            self._drop(peer)

    def _fault(self, record: PeerRecord, owner: bytes) -> str:
        if record.key != owner:
            return "other_owner"
        if record.swarm_id != self._swarm_id:
            return "other_swarm"
        ids = (self._by_transport.get(peer_id(record.transport_key)), self._by_gossip.get(peer_id(record.gossip_key)))
        return "shared_key" if any(holder not in (None, owner) for holder in ids) else ""

    def _enter(self, record: PeerRecord, sealed: bytes, known: Peer | None, proven: bool) -> Peer:
        now = self._now()
        until = min(float(record.expires), now + self._ttl + SKEW)
        peer = Peer(
            record=record,
            sealed=sealed,
            transport_id=peer_id(record.transport_key),
            gossip_id=peer_id(record.gossip_key),
            addresses=dialable(record.addresses, self.loopback),
            until=until,
            heard=now if proven else max(known.heard if known else 0.0, min(now, record.expires - self._ttl)),
            proven=proven or (known is not None and known.proven),
        )
        if known is not None:
            self._drop(known)
        self._peers[record.key] = peer
        self._by_transport[peer.transport_id] = self._by_gossip[peer.gossip_id] = record.key
        self.remembered.pop(peer.transport_id, None)
        if self.changed is not None:
            self.changed(peer)
        return peer

    def _sign_of_life(self, peer: Peer, proven: bool) -> Peer:
        if proven:
            peer.heard, peer.failures, peer.proven = self._now(), 0, True
        return peer

    def _room(self, proven: bool) -> bool:
        """Whether a newcomer is taken in: one that has answered may take the place of one that never has."""
        self.expire()
        if len(self._peers) < MAX_KNOWN:
            return True
        unproven = [peer for peer in self._peers.values() if not peer.proven or peer.failures >= DOWN]
        if not proven or not unproven:
            return False
        self._drop(min(unproven, key=lambda peer: peer.heard))
        return True

    def _drop(self, peer: Peer) -> None:
        del self._peers[peer.key], self._by_transport[peer.transport_id], self._by_gossip[peer.gossip_id]
        if peer.proven and peer.addresses:
            self.remembered[peer.transport_id] = peer.addresses
            while len(self.remembered) > MAX_REMEMBERED:
                self.remembered.popitem(last=False)
