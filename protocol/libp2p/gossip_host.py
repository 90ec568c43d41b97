"""The GossipSub host as it lives inside the trio thread: py-libp2p 0.8.1, with what ends or misleads it taken out.

Import this module only with the protobuf cure of `imports` in force. Each override answers one fault of the library: it
dials addresses that strangers name, takes 250 inbound connections in a lifetime, and ends with the first stream that
raises.
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import trio
from libp2p.abc import INetConn, INetStream
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.io.abc import ReadWriteCloser
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.exceptions import SwarmException
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as Noise
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.stream_muxer.yamux.yamux import Yamux
from libp2p.transport.tcp.tcp import TCP
from libp2p.transport.upgrader import TransportUpgrader
from multiaddr import Multiaddr

MAX_CONNECTIONS = 128
Count = Callable[[str], None]


class OneWaySwarm(Swarm):
    """A swarm that dials only where its owner says, and forgets a connection that has ended."""

    async def dial_peer(self, peer_id: ID) -> list[INetConn]:
        """The open connections to a peer. Addresses that peers name are never followed: only `dial_addr` dials."""
        connections = [conn for conn in self.get_connections(peer_id) if not conn.is_closed]
        if not connections:
            raise SwarmException(f"not connected to {peer_id}")
        return connections

    def _schedule_auto_connect(self) -> None:
        """Dial nobody, that is the transport's affair; forget the disconnection, which the library notes for ever."""
        self.auto_connector.clear_all_cooldowns()

    async def _do_handle_inbound_connection(
        self,
        read_write_closer: ReadWriteCloser,
        maddr: Multiaddr,
        failure_event: Any,  # noqa: ARG002
    ) -> None:
        """Serve one inbound connection until it ends.

        The library waits for the end of the swarm instead, so that after 250 connections in a lifetime no other got in.
        """
        raw = RawConnection(read_write_closer, False)
        try:
            muxed = await self.upgrade_inbound_raw_conn(raw, maddr)
            for conn in self.get_connections(muxed.peer_id):
                if conn.muxed_conn is muxed:
                    await cast(Any, conn).event_closed.wait()
        finally:
            closing = trio.move_on_after(1)
            closing.shield = True
            with closing:
                await raw.close()


class QuietHost(BasicHost):
    """A host that asks nobody who they are, and whose streams cannot end it."""

    count: Count

    def get_network(self) -> OneWaySwarm:
        """The swarm that `make_host` made."""
        return cast(OneWaySwarm, super().get_network())

    def _schedule_identify(self, peer_id: ID, *, reason: str) -> None:
        """Nothing: addresses and protocols of peers come from signed records, and both ends speak one protocol."""

    async def _swarm_stream_handler(self, net_stream: INetStream) -> None:
        """Serve one inbound stream; whatever it throws ends this stream only."""
        try:
            await super()._swarm_stream_handler(net_stream)
        except Exception:  # noqa: BLE001  a peer's bytes reach code that raises anything; unhandled, it ends the host
            self.count("gossip_stream_fault")
            await net_stream.reset()


def make_host(seed: bytes, count: Count) -> QuietHost:
    """A host with the identity of this 32-byte seed: TCP, Noise, Yamux and nothing else; it announces no address."""
    keys = create_new_key_pair(seed)
    peer_id = ID.from_pubkey(keys.public_key)
    peers = PeerStore()
    peers.add_key_pair(peer_id, keys)
    quiet = ConnectionConfig(
        max_connections=MAX_CONNECTIONS,
        min_connections=0,
        low_watermark=0,
        high_watermark=MAX_CONNECTIONS,
        auto_connect_interval=math.inf,
    )
    once = RetryConfig(max_retries=0)  # the listener at the other end of a tunnel accepts one connection
    swarm = OneWaySwarm(peer_id, peers, _upgrader(keys), [TCP()], once, quiet)
    # A whole swarm comes from 127.0.0.1, so the library's limits per address must not apply; the tunnels are counted.
    swarm.set_resource_manager(None)
    host = QuietHost(swarm, announce_addrs=[], disable_identify_address_discovery=True)
    host.count = count
    return host


def listen_port(host: QuietHost) -> int:
    """The TCP port that the host listens on."""
    return int(cast(str, host.get_transport_addrs()[0].value_for_protocol("tcp")))


def loopback(port: int) -> Multiaddr:
    """The address of a port of this machine; 0 takes a free one."""
    return Multiaddr(f"/ip4/127.0.0.1/tcp/{port}")


def _upgrader(keys: KeyPair) -> TransportUpgrader:
    noise = Noise(keys, noise_privkey=create_noise_key_pair().private_key)
    return TransportUpgrader({NOISE: noise}, {TProtocol(YAMUX): Yamux})
