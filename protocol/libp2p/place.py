"""What all parts of one transport share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.protocol.identity import Identity
from shoal.protocol.libp2p.keys import peer_id
from shoal.protocol.libp2p.settings import Libp2pSettings, Rhythm
from shoal.protocol.records import TRANSPORT, prove


@dataclass(frozen=True)
class Place:
    """A node's place in a swarm: who it is, where it listens, and where its counts go."""

    identity: Identity
    swarm_id: bytes
    settings: Libp2pSettings
    count: Callable[[str], None]
    transport_id: str = field(init=False)  # the peer id of its p2pd

    def __post_init__(self) -> None:
        object.__setattr__(self, "transport_id", peer_id(prove(self.identity, TRANSPORT)[0]))

    @property
    def rhythm(self) -> Rhythm:
        """How often things are done."""
        return self.settings.rhythm

    def topic(self, name: str) -> str:
        """The name of a DHT key of this swarm."""
        return f"shoal/{self.swarm_id[:8].hex()}/{name}"
