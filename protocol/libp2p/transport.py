"""The transport on a real network: p2pd for streams and records, GossipSub for announcements, one port for both.

Nothing that a peer sends raises out of here, and nothing waits without a bound. p2pd and the gossip thread may die at
any time: they are started again, and who reads announcements only notices a pause.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable

from shoal.protocol.errors import FetchFailed, UsageError
from shoal.protocol.identity import Identity
from shoal.protocol.inbox import Inbox
from shoal.protocol.libp2p import tunnel
from shoal.protocol.libp2p.addresses import full, parse, tellable
from shoal.protocol.libp2p.ask import ask_address
from shoal.protocol.libp2p.blobs import ASK, BLOB, Client, Crowded, Server, Shelf
from shoal.protocol.libp2p.control import Handler, Remote
from shoal.protocol.libp2p.discovery import Discovery
from shoal.protocol.libp2p.gossip import Valid
from shoal.protocol.libp2p.keeper import Keeper
from shoal.protocol.libp2p.known import DOWN, KnownPeers, Peer
from shoal.protocol.libp2p.members import RECORD, Members
from shoal.protocol.libp2p.mesh import Mesh
from shoal.protocol.libp2p.own_record import OwnRecord
from shoal.protocol.libp2p.place import Place
from shoal.protocol.libp2p.reach import REACH, Reach, ReachServer
from shoal.protocol.libp2p.roads import Roads
from shoal.protocol.libp2p.settings import Libp2pSettings, PeerView, Reachability, RecordFacts, Rhythm
from shoal.protocol.libp2p.tasks import Tasks
from shoal.protocol.limits import DEFAULT_LIMITS
from shoal.protocol.records import PeerRecord
from shoal.protocol.transport import Received

__all__ = ["Libp2pSettings", "Libp2pTransport", "PeerView", "Reachability", "RecordFacts", "Rhythm", "ask_address"]

EAGER_SECONDS, EAGER_LOOK = 60.0, 0.5  # after a start, looks follow quickly until the first peer is there
SLEPT_SECONDS = 20.0  # by which the wall clock runs ahead of the loop's when the machine has slept
REACH_RETRY_SECONDS = 30.0  # until a first peer has tried to reach this node
MAX_PUBLISHED = 16  # topics whose record is stored again after p2pd was started again


class Libp2pTransport:
    """Implements Transport. `valid` is the rule of gossip, `about` what the record says of the node above.

    Made anywhere, started and used in one event loop. Raises UsageError for settings that cannot work.
    """

    def __init__(
        self,
        identity: Identity,
        swarm_id: bytes,
        settings: Libp2pSettings,
        valid: Valid,
        about: Callable[[], RecordFacts],
    ) -> None:
        _check(settings)
        self.on_record: Callable[[PeerRecord], None] | None = None
        self.inbox = Inbox(self.count)
        self._counts: Counter[str] = Counter()
        self._place = place = Place(identity, swarm_id, settings, self.count)
        self._shelf = Shelf(swarm_id, self.count)
        self._known = KnownPeers(swarm_id, identity.key, settings.rhythm.ttl, self.count)
        self._known.changed = self._learned
        self._roads = roads = Roads(self._known, settings.rhythm.connect)
        self._record = OwnRecord(place, about)
        self._shelf.serve(RECORD, lambda: self._record.sealed)
        self._client = Client(roads.open, settings.rhythm.answer)
        self._members = Members(place, self._known, roads)
        self._discovery = Discovery(place, self._known, roads, self._record)
        self._mesh = Mesh(place, self._known, valid, roads.open, self.inbox.deliver)
        self._reach = Reach(roads.open)
        server = Server(self._shelf, self.count)
        serving = {
            BLOB: server.blob,
            ASK: server.document,
            REACH: ReachServer(self.count).serve,
            tunnel.PROTOCOL: self._mesh.handler,
        }
        handlers = {protocol: self._noting(handler) for protocol, handler in serving.items()}
        self._keeper = Keeper(place, roads, handlers, self._restarted)
        self._tasks = Tasks()
        self._published: OrderedDict[str, tuple[bytes, float]] = OrderedDict()
        self._addresses: tuple[str, ...] = ()
        self._next_reach = 0.0

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen; bootstraps are tried afterwards, for ever.

        Raises UsageError for a taken port, EnvironmentFault when p2pd or the gossip host does not start in
        `start_seconds`; then nothing is left behind.
        """
        try:
            await self._keeper.start()
            await self._mesh.start()
            await self._look()
        except BaseException:
            await self._end()
            raise
        self._tasks.start(self._keeper.run())
        self._tasks.start(self._look_for_ever())

    async def close(self) -> None:
        """Leave; whoever reads announcements gets to the end of what is queued."""
        self.inbox.close()
        await self._end()

    async def _end(self) -> None:
        await self._tasks.close()
        await self._discovery.close()
        await self._members.close()
        await self._mesh.close()
        await self._keeper.close()

    async def _look_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        ahead, eager_until = time.time() - loop.time(), loop.time() + EAGER_SECONDS
        while True:
            eager = not self.gossip_peers and loop.time() < eager_until
            await asyncio.sleep(min(EAGER_LOOK, self._place.rhythm.look) if eager else self._place.rhythm.look)
            before, ahead = ahead, time.time() - loop.time()
            if ahead - before > SLEPT_SECONDS:
                self.count("woke_up")
                self._discovery.hurry()
            await self._look()

    async def _look(self) -> None:
        """See what has changed, and begin what is due."""
        link = self._roads.link
        if link is None:
            return
        try:
            lost = await self._roads.look()
            _, found = await link.control.identify()
        except (FetchFailed, OSError, EOFError):
            return  # the keeper notices on its own
        self._addresses = tellable(found)
        self._known.loopback = all(address is None or address.loopback for address in map(parse, found))
        self._members.look(lost)
        self._discovery.look(self._addresses)
        self._mesh.look()
        self._look_reach()

    def _look_reach(self) -> None:
        now = asyncio.get_running_loop().time()
        helpers = [peer for peer in self._discovery.bootstraps if peer in self._roads.connected]
        members = [peer.transport_id for peer in self._known.alive() if peer.transport_id in self._roads.connected]
        helpers = list(dict.fromkeys([*helpers, *members]))
        if helpers and now >= self._next_reach:
            known = self._reach.verdict(self._addresses, self._keeper.port).verdict != "unknown"
            self._next_reach = now + (self._place.rhythm.reach if known else REACH_RETRY_SECONDS)
            self._tasks.start_once("reach", lambda: self._reach.check(helpers, self._keeper.port))

    def _restarted(self) -> None:
        """Take up again what p2pd has forgotten: contacts, and what lay in the DHT."""
        self._discovery.hurry()
        for topic, (data, expires) in list(self._published.items()):
            left = expires - time.time()
            if left > 0:
                self._tasks.start(self._store(topic, data, left))
            else:
                del self._published[topic]

    # -- what nodes do with a transport -------------------------------------------------------------------------------

    @property
    def counters(self) -> dict[str, int]:
        """What was sent, received and dropped, by reason."""
        return dict(self._counts)

    def count(self, reason: str) -> None:
        """Add one to a counter."""
        self._counts[reason] += 1

    async def announce(self, data: bytes) -> None:
        """Gossip an announcement; what cannot be sent is counted."""
        if self.inbox.closed:
            self.count("dropped_closed")
        elif len(data) > DEFAULT_LIMITS.announcement_bytes:
            self.count("dropped_announcement_too_large")
        elif self._mesh.publish(data):
            self.count("announced")

    def announcements(self) -> AsyncIterator[Received]:
        """Announcements in order of arrival, until this transport is closed."""
        return self.inbox.read()

    async def fetch(self, peer: bytes, digest: bytes, limit: int) -> bytes:
        """The blob with this SHA-256 from a peer; see Transport.fetch."""
        return await self._asking("fetch", peer, lambda at: self._client.blob(at, digest, limit))

    async def ask(self, peer: bytes, name: str, limit: int) -> bytes:
        """A document of a peer; see Transport.ask."""
        swarm_id = self._place.swarm_id
        return await self._asking("ask", peer, lambda at: self._client.document(at, swarm_id, name, limit))

    def offer(self, digest: bytes, blob: bytes) -> None:
        """Serve a blob; what there is no room for is dropped, oldest first, and counted."""
        self._shelf.offer(digest, blob)

    def withdraw(self, digest: bytes) -> None:
        """Serve a blob no longer."""
        self._shelf.withdraw(digest)

    def serve(self, name: str, provide: Callable[[], bytes]) -> None:
        """Answer whoever asks for this document; see Transport.serve."""
        self._shelf.serve(name, provide)

    async def publish_record(self, topic: str, data: bytes, ttl: float) -> None:
        """Store this node's record under a topic, at most 2 KiB; a later one replaces one that expires no later."""
        self._published[topic] = (data, time.time() + ttl)
        self._published.move_to_end(topic)
        while len(self._published) > MAX_PUBLISHED:
            self._published.popitem(last=False)
        await self._store(topic, data, ttl)

    async def lookup_records(self, topic: str) -> list[bytes]:
        """The records under a topic that have not expired; none while p2pd is down."""
        link, name = self._roads.link, self._place.topic(f"topic/{topic}")
        return list((await link.dht.find([name]))[name].values()) if link is not None else []

    def peers(self) -> list[bytes]:
        """Keys of the peers whose record holds and who have not stopped answering."""
        return [] if self.inbox.closed else [peer.key for peer in self._known.alive()]

    # -- what the node above may know ---------------------------------------------------------------------------------

    def known(self) -> list[PeerView]:
        """The peers whose record has not expired."""
        here, gossip = self._roads.connected, self._mesh.connected()
        return [
            PeerView(
                key=peer.key,
                record=peer.record,
                connected=peer.failures < DOWN and (peer.transport_id in here or peer.gossip_id in gossip),
                last_seen=peer.heard,
                addresses=peer.record.addresses,
                seen_at=here.get(peer.transport_id, ()),
            )
            for peer in self._known.all()
        ]

    def addresses(self) -> list[str]:
        """This node's own full addresses, as others are told."""
        return [full(address, self._place.transport_id) for address in self._addresses]

    def reachability(self) -> Reachability:
        """Whether peers can connect to this node, and what to do if not."""
        return self._reach.verdict(self._addresses, self._keeper.port)

    @property
    def port(self) -> int:
        """The one port that this node listens on; 0 before the start."""
        return self._keeper.port

    @property
    def connected_bootstraps(self) -> int:
        """How many bootstraps are connected now."""
        return sum(peer in self._roads.connected for peer in self._discovery.bootstraps)

    @property
    def gossip_peers(self) -> int:
        """With how many peers this node exchanges announcements."""
        return len(self._mesh.connected())

    @property
    def daemon_restarts(self) -> int:
        """How often p2pd had to be started again."""
        return self._keeper.restarts

    @property
    def daemon_alive(self) -> bool:
        """Whether p2pd runs and answers."""
        return self._roads.link is not None

    @property
    def daemon_pid(self) -> int:
        """The process id of p2pd; 0 while there is none."""
        return self._keeper.pid

    def set_round(self, round: int) -> None:
        """Move on in swarm time: the shards of a node change every few rounds."""
        self._mesh.set_round(max(0, round))

    def set_bits(self, bits: int, each: int) -> None:
        """Spread announcements over 2^bits topics, `each` of them for a node, as the manifest says."""
        self._mesh.set_bits(bits, each)

    # -- within -------------------------------------------------------------------------------------------------------

    async def _asking(self, what: str, key: bytes, ask: Callable[[str], Awaitable[bytes]]) -> bytes:
        """Ask a peer for something; count how it went, and note whether the peer still lives."""
        try:
            peer = None if self.inbox.closed else await self._discovery.find(key)
            if peer is None:
                raise FetchFailed("unreachable", f"no record of the peer {key[:4].hex()}")
            answer = await ask(peer.transport_id)
        except FetchFailed as failure:
            self.count(f"{what}_{failure.reason}")
            if failure.reason not in ("unreachable", "timeout"):
                self._known.heard(key)
            elif not isinstance(failure, Crowded):
                self._known.failed(key)
            raise
        self._known.heard(key)
        self.count(f"{what}ed")
        return answer

    def _noting(self, handler: Handler) -> Handler:
        """A handler that takes each stream of a known peer for a sign of life."""

        async def noting(remote: Remote, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peer = self._known.by_transport(remote.peer_id)
            if peer is not None:
                self._known.heard(peer.key)
            await handler(remote, reader, writer)

        return noting

    async def _store(self, topic: str, data: bytes, ttl: float) -> None:
        link, key = self._roads.link, self._place.identity.key
        if link is None or not await link.dht.store(self._place.topic(f"topic/{topic}"), key, data, ttl):
            self.count("dropped_record")

    def _learned(self, peer: Peer) -> None:
        """Pass on a new or later record of a peer."""
        self._mesh.relent(peer)
        if self.on_record is not None:
            self.on_record(peer.record)


def _check(settings: Libp2pSettings) -> None:
    """Raise UsageError for settings that cannot work."""
    try:
        ipaddress.ip_address(settings.host)
    except ValueError:
        raise UsageError(
            f"--host {settings.host!r} is no IP address: 0.0.0.0 listens on all of this machine's"
        ) from None
    if not 0 <= settings.port < 2**16:
        raise UsageError(f"--port {settings.port} is no port: 0 to 65535, 0 takes a free one")
    for address in settings.announce_addresses:
        if parse(address) is None:
            raise UsageError(f"{address[:200]!r} is no address to announce: write /ip4/HOST/tcp/PORT")
