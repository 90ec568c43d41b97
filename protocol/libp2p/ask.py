"""A single question to a node by its address, from somebody who has no identity and no swarm yet."""

from __future__ import annotations

import secrets

from shoal.protocol.errors import FetchFailed
from shoal.protocol.libp2p.addresses import split
from shoal.protocol.libp2p.blobs import Client
from shoal.protocol.libp2p.control import Control, Stream
from shoal.protocol.libp2p.p2pd import Daemon

START_SECONDS = 60.0
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 10.0


async def ask_address(address: str, name: str, limit: int, swarm_id: bytes) -> bytes:
    """The document `name` of the node at a full multiaddr, at most `limit` bytes: its word and nothing more.

    Runs a p2pd that listens nowhere, under a key made for this one call. Raises UsageError for what is no address,
    EnvironmentFault when p2pd does not start, FetchFailed as Transport.ask.
    """
    where, peer = split(address)
    daemon = Daemon(secrets.token_bytes(32), ["-noListenAddrs=1", "-dhtClient=1", "-relay=1", "-connManager=0"])
    await daemon.start(START_SECONDS)
    try:
        control = Control(daemon.control_path, "", _ignore, CONNECT_SECONDS)

        async def open_stream(peer: str, protocol: str) -> Stream:
            return await control.open(peer, protocol, CONNECT_SECONDS)

        try:
            await control.connect(peer, [where], CONNECT_SECONDS)
        except (OSError, EOFError) as fault:
            raise FetchFailed("unreachable", type(fault).__name__) from fault
        return await Client(open_stream, ANSWER_SECONDS).document(peer, swarm_id, name, limit)
    finally:
        await daemon.stop()


def _ignore(counter: str) -> None:
    """Count nothing: nobody looks."""
