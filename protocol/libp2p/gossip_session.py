"""One life of the GossipSub host: everything that runs inside `trio.run`, in the gossip thread.

Import this module only with the protobuf cure of `imports` in force.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from typing import Protocol

import trio
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.tools.anyio_service import background_trio_service
from libp2p.tools.anyio_service.api import ManagerAPI
from multiaddr import Multiaddr

from shoal.protocol.libp2p.gossip_host import listen_port, loopback, make_host
from shoal.protocol.libp2p.gossip_intake import GuardedPubsub
from shoal.protocol.libp2p.gossip_router import Router

DIAL_SECONDS = 15.0
CLOSE_SECONDS = 3.0
CONGESTED_SECONDS = 1.0


class Owner(Protocol):
    """What a session tells the other thread; each call comes from the trio thread and returns at once."""

    def deliver(self, data: bytes, forwarder: str) -> None:
        """A message of a peer that passed."""
        ...

    def count(self, name: str) -> None:
        """Something happened that has a counter."""
        ...

    def peers_are(self, peers: frozenset[str]) -> None:
        """The peers whose gossip stream is open."""
        ...

    def ready(self, peer_id: str, port: int) -> None:
        """The host listens and its topics are subscribed."""
        ...


class Session:
    """A GossipSub host from its start to its end; `run` returns after `stop` and raises when a part of it died."""

    def __init__(self, seed: bytes, rule: Callable[[bytes], bool | None], owner: Owner, topics: Iterable[str]) -> None:
        for name in (
            "libp2p",
            "libp2p.network.auto_connector",
        ):  # they write lines for what peers do; here it is counted
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self.outbox: deque[tuple[str, bytes]] = deque()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._owner, self._topics = owner, tuple(topics)
        self._host = make_host(seed, owner.count)
        self._router = Router(owner.count, self._peers_changed)
        self._pubsub = GuardedPubsub(
            self._host, self._router, rule, lambda data, peer: owner.deliver(data, base58(peer))
        )

    def run(self) -> None:
        """Be the trio thread, until stopped."""
        trio.run(self._main)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._wake, self._stopping = trio.Event(), trio.Event()
        host, pubsub, router = self._host, self._pubsub, self._router
        try:
            async with (
                host.run([loopback(0)]),
                background_trio_service(pubsub) as pubsub_life,
                background_trio_service(router) as router_life,
            ):
                await pubsub.wait_until_ready()
                await self.subscribe(self._topics)
                await self._serve([host.get_network().get_manager(), pubsub_life, router_life])
                with trio.move_on_after(CLOSE_SECONDS):
                    await host.close()
        finally:
            pubsub.seen_messages.stop()  # a thread of its own sweeps that cache

    def call(self, function: Callable[..., object], *args: object) -> None:
        """From the other thread: call a function in this one; nothing when it does not run."""
        try:
            if self._token is not None:
                self._token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            return

    def stop(self) -> None:
        """End the session; a second call does nothing."""
        self._stopping.set()

    def wake(self) -> None:
        """There is something in the outbox."""
        self._wake.set()

    def spawn(self, action: Callable[[], Awaitable[None]]) -> None:
        """Run something beside the rest; what it raises ends the session."""
        if self._nursery is not None and not self._stopping.is_set():
            self._nursery.start_soon(action)

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Subscribe to exactly these topics."""
        wanted = set(topics)
        for topic in wanted - set(self._pubsub.topic_ids):
            await self._pubsub.subscribe(topic)
        for topic in set(self._pubsub.topic_ids) - wanted:
            await self._pubsub.unsubscribe(topic)

    async def dial(self, host: str, port: int, peer_id: str) -> bool:
        """Connect to a peer at an address; True when its gossip stream is open."""
        try:
            peer, address = ID.from_base58(peer_id), Multiaddr(f"/ip4/{host}/tcp/{port}")
        except ValueError:
            return False
        if peer in self._pubsub.peers:
            return True
        try:
            with trio.fail_after(DIAL_SECONDS):
                await self._host.get_network().dial_addr(address, peer)
                await self._pubsub.wait_for_peer(peer, DIAL_SECONDS)
        except (SwarmException, trio.TooSlowError):
            return False
        return True

    async def disconnect(self, peer_id: str) -> None:
        """Close the connections to a peer; one that is not connected is no error."""
        for peer in list(self._router.peer_protocol):
            if base58(peer) == peer_id:
                with trio.move_on_after(CLOSE_SECONDS):
                    await self._host.disconnect(peer)

    async def _serve(self, lives: list[ManagerAPI]) -> None:
        """Publish what comes, until stopped or until a service ends by itself."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._publish)
            for life in lives:
                nursery.start_soon(_fail_after, life)
            self._owner.ready(base58(self._host.get_id()), listen_port(self._host))
            await self._stopping.wait()
            nursery.cancel_scope.cancel()

    async def _publish(self) -> None:
        """Send the outbox, no faster than the peers take it."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self.outbox:
                topic, data = self.outbox.popleft()
                await self._pubsub.publish(topic, data)
                await trio.lowlevel.checkpoint()
                with trio.move_on_after(CONGESTED_SECONDS):
                    while self._pubsub.congested():
                        await trio.sleep(0.01)

    def _peers_changed(self) -> None:
        self._owner.peers_are(frozenset(base58(peer) for peer in self._router.peer_protocol))


@lru_cache(maxsize=1024)
def base58(peer: ID) -> str:
    """A peer id as everybody writes it."""
    return peer.to_base58()


async def _fail_after(life: ManagerAPI) -> None:
    await life.wait_finished()
    raise RuntimeError("a gossip service ended by itself")
