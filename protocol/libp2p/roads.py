"""Ways to peers through whichever p2pd runs now: to connect, and to open streams."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.protocol.errors import FetchFailed
from shoal.protocol.libp2p.control import Stream
from shoal.protocol.libp2p.known import KnownPeers
from shoal.protocol.libp2p.link import Link


class Roads:
    """`link` is the running p2pd, None while there is none; `connected` its peers at the last look, with addresses."""

    def __init__(self, known: KnownPeers, seconds: float) -> None:
        self.link: Link | None = None
        self.connected: dict[str, tuple[str, ...]] = {}
        self._known, self._seconds = known, seconds

    async def open(self, peer: str, protocol: str) -> Stream:
        """Open a stream to a peer, by the addresses of its record when it is not connected.

        Raises FetchFailed, or OSError when p2pd is gone.
        """
        if peer not in self.connected:
            known = self._known.by_transport(peer)
            if known is not None and known.addresses:
                await self.connect(peer, known.addresses)
        return await self._running().control.open(peer, protocol, self._seconds)

    async def connect(self, peer: str, addresses: Sequence[str]) -> None:
        """Connect to a peer at one of these addresses; raises as `open` does."""
        await self._running().control.connect(peer, addresses, self._seconds)

    async def look(self) -> set[str]:
        """See who is connected now; who was so at the last look and is no longer. Raises OSError, EOFError."""
        before = set(self.connected)
        self.connected = await self._running().control.peers()
        return before - set(self.connected)

    def _running(self) -> Link:
        if self.link is None:
            raise FetchFailed("unreachable", "the network daemon is down: it is being started again")
        return self.link
