"""What a daemon asks of its network beyond the transport: a life of its own, addresses, known peers."""

from collections.abc import Callable
from typing import Protocol

from shoal.protocol.libp2p.settings import PeerView, Reachability
from shoal.protocol.records import PeerRecord
from shoal.protocol.transport import Transport


class Network(Transport, Protocol):
    """A transport that is started, follows swarm time and says how it fares."""

    on_record: Callable[[PeerRecord], None] | None
    """Called in the event loop with each verified record of a peer."""

    @property
    def connected_bootstraps(self) -> int:
        """Bootstraps with an open connection."""
        ...

    @property
    def daemon_restarts(self) -> int:
        """How often the libp2p daemon had to be started again."""
        ...

    @property
    def daemon_alive(self) -> bool:
        """Whether it runs now."""
        ...

    async def start(self) -> None:
        """Listen; returns before any bootstrap has answered. UsageError for a taken port, EnvironmentFault else."""
        ...

    def set_round(self, round: int) -> None:
        """Follow swarm time: topics rotate with it."""
        ...

    def set_bits(self, bits: int, per_node: int) -> None:
        """Spread announcements over 2^bits topics, of which each node subscribes to so many."""
        ...

    def known(self) -> list[PeerView]:
        """Peers whose record is valid, in reach or not."""
        ...

    def addresses(self) -> tuple[str, ...]:
        """Where this node listens, as multiaddrs with its peer id."""
        ...

    def reachability(self) -> Reachability:
        """Whether others can connect to this node, and what to do when they cannot."""
        ...
