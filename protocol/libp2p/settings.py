"""What the libp2p transport is told, and what it tells: plain data, free of both libraries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from shoal.protocol.records import PeerRecord

Verdict = Literal["public", "relayed", "private", "unknown"]


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How often things are done and how long they may take, in seconds; tests shorten it."""

    look: float = 3.0  # between two looks at p2pd, and at what is due
    refresh: float = 120.0  # of the own record
    ttl: float = 300.0  # of a record
    probe: float = 45.0  # without a sign of life, a connected peer is asked for one
    ping: float = 60.0  # of bootstraps, for ever: halves of a split swarm meet there
    first_retry: float = 2.0  # of a bootstrap or a peer that does not answer; doubled each time
    last_retry: float = 120.0
    lonely: float = 10.0  # without any connection, no bootstrap waits longer than that
    sweep: float = 10.0  # between two looks at some of the record keys
    reach: float = 300.0  # between two checks of whether this node can be reached
    connect: float = 10.0  # for a connection or a stream
    answer: float = 10.0  # for the first byte of an answer, and for each chunk
    call: float = 10.0  # for p2pd to answer at all: three times late, and it is started again


@dataclass(frozen=True, slots=True)
class Libp2pSettings:
    """Where a node listens and whom it knows; `port` is that of TCP and of QUIC, 0 takes a free one."""

    host: str = "0.0.0.0"
    port: int = 0
    bootstraps: tuple[str, ...] = ()  # multiaddrs that end in /p2p/PEER-ID
    announce_addresses: tuple[str, ...] = ()  # told to others in place of those that were found
    relay: bool = False  # serve as a relay for nodes that cannot be reached
    quic: bool = True  # listen on UDP too, under the same number
    use_relays: bool = True  # be reached through the bootstraps when nothing else helps
    start_seconds: float = 60.0
    daemon: str = ""  # another p2pd than the one in hivemind's package
    rhythm: Rhythm = field(default_factory=Rhythm)


class RecordFacts(NamedTuple):
    """What the node above says of itself in its record, read anew for each."""

    lineage: bytes
    tokenizer: bytes
    policy_version: int
    capabilities: tuple[str, ...] = ()
    revision: int = 0
    invite: bytes = b""


class PeerView(NamedTuple):
    """A known peer; `last_seen` is in seconds since 1970."""

    key: bytes
    record: PeerRecord
    connected: bool
    last_seen: float
    addresses: tuple[str, ...]
    seen_at: tuple[str, ...] = ()  # remote addresses of the connections that are open now


class Reachability(NamedTuple):
    """Whether peers can connect to this node; `seen_as` are the addresses under which they see it."""

    verdict: Verdict
    seen_as: tuple[str, ...]
    advice: str
