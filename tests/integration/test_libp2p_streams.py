"""Streams between real daemons: large and many, over TCP and over QUIC, by friends and by strangers."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import live_transports as live
import pytest
from live_transports import digest

from shoal.protocol.errors import FetchFailed, UsageError
from shoal.protocol.libp2p import control
from shoal.protocol.libp2p.blobs import ASK, BLOB, Client, Server, Shelf
from shoal.protocol.libp2p.control import Control
from shoal.protocol.libp2p.p2pd import Daemon, take_port
from shoal.protocol.libp2p.transport import ask_address
from shoal.protocol.limits import MIB


@asynccontextmanager
async def daemon(number: int, address: str) -> AsyncIterator[Control]:
    """A bare p2pd that listens on one address."""
    process = Daemon(bytes([number]) * 32, [f"-hostAddrs={address}", "-dhtServer=1"])
    await process.start(live.GENEROUS)
    client = Control(process.control_path, f"{process.folder}/streams", lambda reason: None, live.GENEROUS)
    try:
        yield client
    finally:
        await client.close()
        await process.stop()


@pytest.mark.parametrize("kind", ["tcp", "quic"])
def test_blobs_come_whole_over_either_transport(kind: str):
    """Over QUIC, p2pd drops what is on its way when the answering side closes: so the asker closes first."""

    async def main() -> None:
        port = take_port("127.0.0.1", 0)
        form = "/ip4/127.0.0.1/tcp/{}" if kind == "tcp" else "/ip4/127.0.0.1/udp/{}/quic-v1"
        async with daemon(1, form.format(port)) as server, daemon(2, form.format(take_port("127.0.0.1", 0))) as asker:
            shelf = Shelf(live.SWARM, lambda reason: None)
            await server.handle(BLOB, Server(shelf, lambda reason: None).blob)
            peer, _ = await server.identify()
            await asker.connect(peer, [form.format(port)], live.GENEROUS)
            client = Client(lambda peer, protocol: asker.open(peer, protocol, live.GENEROUS), live.GENEROUS)
            for size in (0, 1000, 200_000, 4 * MIB):
                blob = os.urandom(size)
                shelf.offer(digest(blob), blob)
                for _ in range(8):
                    assert await client.blob(peer, digest(blob), size) == blob
            with pytest.raises(FetchFailed, match="too_large"):  # broken off by the asker
                await client.blob(peer, digest(blob), size - 1)
            fetched = await asyncio.gather(*(client.blob(peer, digest(blob), size) for _ in range(8)))
            assert fetched == [blob] * 8

    live.run(main)


def test_a_single_question_by_address():
    async def main() -> None:
        node = live.transport(1)
        node.serve("manifest", lambda: b"m" * 100_000)
        await node.start()
        try:
            address = node.addresses()[0]
            assert await ask_address(address, "manifest", 128 * 1024, live.SWARM) == b"m" * 100_000
            for swarm_id, name, limit, reason in (
                (bytes(32), "manifest", 128 * 1024, "not_found"),
                (live.SWARM, "time", 128 * 1024, "not_found"),
                (live.SWARM, "manifest", 1000, "too_large"),
            ):
                with pytest.raises(FetchFailed, match=reason):
                    await ask_address(address, name, limit, swarm_id)
            assert node.peers() == []  # it has no identity and is no peer
        finally:
            await node.close()
        with pytest.raises(FetchFailed, match="unreachable"):
            await ask_address(address, "manifest", 1000, live.SWARM)
        with pytest.raises(UsageError, match="is no address of a node"):
            await ask_address("example.org:4001", "manifest", 1000, live.SWARM)

    live.run(main)


def test_senseless_requests_cost_their_own_stream(monkeypatch: pytest.MonkeyPatch):
    """Cut short, endless, of other protocols, far too many: the node answers a friend all the while."""
    monkeypatch.setattr(control, "MAX_STREAMS_PEER", 8)

    async def main() -> None:
        async with live.swarm(2) as (victim, node):
            victim.serve("time", lambda: b"now")
            link, peer = node._roads.link, victim._place.transport_id
            assert link is not None
            before = victim._roads.link.control.streams  # gossip's
            for protocol, request in (
                (BLOB, b""),
                (BLOB, b"short"),
                (ASK, b"\xff" * 32 + b"\xff" + b"\xff" * 255),
                (ASK, live.SWARM + b"\x40time"),
                ("/shoal/reach/1", b"\0"),
                ("/shoal/gossip/1", b"\x13/multistream/0.0.0\n" * 100),
                (ASK, os.urandom(100_000)),
            ):
                _, writer = await link.control.open(peer, protocol, live.GENEROUS)
                writer.write(request)
                writer.close()
            with pytest.raises(FetchFailed, match="unreachable"):
                await link.control.open(peer, "/shoal/none/1", live.GENEROUS)
            idle = [await link.control.open(peer, BLOB, live.GENEROUS) for _ in range(30)]
            await live.until(lambda: victim.counters.get("streams_refused", 0) >= 20)
            for _, writer in idle:
                writer.close()
            friend = live.transport(3, victim)
            await friend.start()
            try:
                await live.until(lambda: live.identity(1).key in friend.peers())
                assert await friend.ask(live.identity(1).key, "time", 8) == b"now"
            finally:
                await friend.close()
            await live.until(lambda: victim._roads.link.control.streams <= before)
            assert await node.ask(live.identity(1).key, "time", 8) == b"now"

    live.run(main)
