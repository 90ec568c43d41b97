"""Gossip as the transport uses it: the host in its thread, tunnels through p2pd, topics by round, enough peers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Set
from functools import lru_cache

from shoal.protocol.errors import EnvironmentFault
from shoal.protocol.libp2p import shards, tunnel
from shoal.protocol.libp2p.connect import Connector
from shoal.protocol.libp2p.control import Handler, Stream
from shoal.protocol.libp2p.gossip import GossipThread, Valid
from shoal.protocol.libp2p.keys import key_of
from shoal.protocol.libp2p.known import KnownPeers, Peer
from shoal.protocol.libp2p.place import Place
from shoal.protocol.libp2p.tasks import Tasks
from shoal.protocol.records import GOSSIP
from shoal.protocol.transport import Received

log = logging.getLogger("shoal.network")

RESTART_SECONDS = 5.0  # after the gossip thread has died


class Mesh:
    """`open_stream(peer id, protocol)` opens a stream of p2pd; what arrives goes to `deliver`."""

    def __init__(
        self,
        place: Place,
        known: KnownPeers,
        valid: Valid,
        open_stream: Callable[[str, str], Awaitable[Stream]],
        deliver: Callable[[Received], None],
    ) -> None:
        self._place, self._known, self._deliver = place, known, deliver
        seed = place.identity.derive(GOSSIP)
        self._gossip = GossipThread(seed, valid, self._arrived, place.count, self._crashed)
        self._dialler = tunnel.TunnelDialler(lambda peer: open_stream(peer, tunnel.PROTOCOL), place.count)
        self._server = tunnel.TunnelServer(lambda: self._gossip.local_port, place.count)
        self._connector = Connector(place, known, self._dial)
        self._tasks = Tasks()
        self._round, self._bits, self._each = 0, 0, 1
        self._subscribed: tuple[str, ...] = ()

    @property
    def handler(self) -> Handler:
        """What serves the streams of tunnel.PROTOCOL."""
        return self._server.serve

    @property
    def relent(self) -> Callable[[Peer], None]:
        """What is called with each later record of a peer."""
        return self._connector.relent

    def connected(self) -> Set[str]:
        """Gossip peer ids whose stream is open."""
        return self._gossip.connected()

    async def start(self) -> None:
        """Start the host. Raises EnvironmentFault."""
        self._subscribed = self._topics(self._place.identity.key)
        await self._gossip.start(self._subscribed)

    async def close(self) -> None:
        """Stop dialling, end the tunnels and the host; a second call does nothing."""
        await self._connector.close()
        await self._tasks.close()
        await self._dialler.close()
        await self._server.close()
        await self._gossip.stop()

    def publish(self, data: bytes) -> bool:
        """Announce on this node's topic of this round; False when it was dropped, which is counted."""
        key = self._place.identity.key
        return self._gossip.publish(
            shards.publish_topic(self._place.swarm_id, key, self._round, self._bits, self._each), data
        )

    def set_round(self, round: int) -> None:
        """Move on in swarm time: topics change every few rounds."""
        self._round = round
        self._follow()

    def set_bits(self, bits: int, each: int) -> None:
        """Spread announcements over 2^bits topics, `each` of them for a node."""
        self._bits, self._each = bits, each
        self._follow()

    def look(self) -> None:
        """Begin what is due: dials, and farewells to those who have become useless."""
        self._follow()
        if not self._gossip.alive:
            return
        mine, connected = frozenset(self._topics(self._place.identity.key)), self._gossip.connected()
        self._connector.look(connected, mine, self._topic_set)
        for peer in self._connector.useless(connected, mine, self._topic_set):
            self._tasks.start_once(peer, lambda peer=peer: self._gossip.disconnect(peer))

    def _topics(self, key: bytes) -> tuple[str, ...]:
        return _topics(self._place.swarm_id, key, self._round, self._bits, self._each)

    def _topic_set(self, key: bytes) -> frozenset[str]:
        return frozenset(self._topics(key))

    def _follow(self) -> None:
        """Subscribe to the topics of this round, once the host runs."""
        wanted = self._topics(self._place.identity.key)
        if self._gossip.alive and wanted != self._subscribed:
            self._subscribed = wanted
            self._tasks.start(self._gossip.set_topics(wanted))

    async def _dial(self, peer: Peer) -> bool:
        async def connect(host: str, port: int) -> bool:
            return await self._gossip.dial(host, port, peer.gossip_id)

        return await self._dialler.dial(peer.transport_id, connect)

    def _arrived(self, data: bytes, forwarder: str) -> None:
        """Take in what passed the rule; an unknown forwarder goes by the key of its gossip host."""
        peer = self._known.by_gossip(forwarder)
        if peer is not None:
            self._known.heard(peer.key)
        self._deliver(Received(data, peer.key if peer is not None else key_of(forwarder) or b""))

    def _crashed(self, reason: str) -> None:
        log.warning("the gossip thread has ended (%s): it is started again", reason)
        self._tasks.start_once("restart", self._restart)

    async def _restart(self) -> None:
        # The dead thread's sockets stay open: only the end of the tunnels tells peers that nobody reads there any more.
        await self._dialler.close()
        await self._server.close()
        while not self._gossip.alive:
            await asyncio.sleep(RESTART_SECONDS)
            try:
                await self.start()
            except EnvironmentFault:
                self._place.count("gossip_restart_failed")


@lru_cache(maxsize=16_384)
def _topics(swarm_id: bytes, key: bytes, round: int, bits: int, each: int) -> tuple[str, ...]:
    return shards.topics_of(swarm_id, key, round, bits, each)
