import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from shoal.protocol.errors import FetchFailed
from shoal.protocol.libp2p import imports, tunnel
from shoal.protocol.libp2p.gossip import GossipThread
from shoal.protocol.libp2p.tunnel import PROTOCOL, Stream, TunnelDialler, TunnelServer

LOOPBACK = "127.0.0.1"
TOPIC = "shoal/0123456789abcdef/0"


async def until(condition: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.01)


class Ends:
    """Both ends of tunnels over plain TCP in place of the daemon's streams, and a service behind them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.port = 0
        self.streams: list[Stream] = []  # the far ends that the dialler got
        self.near: list[Stream] = []  # kept: a stream that nobody holds closes itself
        self.peers = ["peer"]  # who seems to have opened the next streams, the last one for ever
        self.dialler = TunnelDialler(self.open_stream, self.count)
        self.server = TunnelServer(lambda: self.port, self.count)

    def count(self, name: str) -> None:
        self.counts[name] += 1

    async def open_stream(self, peer: str) -> Stream:
        if peer == "nobody":
            raise FetchFailed("unreachable")
        self.streams.append(await asyncio.open_connection(LOOPBACK, self.daemon))
        return self.streams[-1]

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = self.peers.pop(0) if len(self.peers) > 1 else self.peers[0]
        await self.server.serve(SimpleNamespace(peer_id=peer), reader, writer)

    async def dial(self, peer: str = "peer") -> Stream:
        """A connection through a tunnel."""

        async def connect(host: str, port: int) -> bool:
            self.near.append(await asyncio.open_connection(host, port))
            return True

        assert await self.dialler.dial(peer, connect)
        return self.near[-1]

    @property
    def open(self) -> tuple[int, int]:
        return self.dialler.open, self.server.open


@asynccontextmanager
async def ends(service: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[Ends]:
    both = Ends()
    daemon = await asyncio.start_server(both.answer, LOOPBACK, 0)
    behind = await asyncio.start_server(service, LOOPBACK, 0)
    both.daemon, both.port = (each.sockets[0].getsockname()[1] for each in (daemon, behind))
    try:
        yield both
    finally:
        await both.dialler.close()
        await both.server.close()
        assert both.open == (0, 0)
        daemon.close()
        behind.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(1000):
        writer.write(chunk)
    writer.close()


async def sink(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take the connection and read nothing."""
    await asyncio.Event().wait()


def test_bytes_go_both_ways():
    async def scenario():
        async with ends(echo) as both:
            reader, writer = await both.dial()
            for size in (1, 100, 300_000):
                data = os.urandom(size)
                writer.write(data)
                assert await reader.readexactly(size) == data
            assert both.open == (1, 1)
            writer.close()
            await until(lambda: both.open == (0, 0))
            assert not both.counts

    asyncio.run(scenario())


def test_one_direction_may_end_before_the_other():
    async def total(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"%d" % len(await reader.read(-1)))  # answers only when all has been said
        writer.close()

    async def scenario():
        async with ends(total) as both:
            reader, writer = await both.dial()
            writer.write(bytes(500_000))
            writer.write_eof()
            assert await reader.read(-1) == b"500000"
            await until(lambda: both.open == (0, 0))

    asyncio.run(scenario())


def test_a_reader_that_stops_holds_the_sender_back():
    go_on = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        await echo(reader, writer)

    async def scenario():
        async with ends(slow) as both:
            reader, writer = await both.dial()
            writer.transport.set_write_buffer_limits(0)
            sent, data = 0, os.urandom(100_000)

            async def send() -> None:
                nonlocal sent
                while sent < 400_000_000:  # sockets hold a few megabytes; a pipe that reads on would take it all
                    writer.write(data)
                    sent += len(data)
                    await asyncio.wait_for(writer.drain(), 1)

            with pytest.raises(TimeoutError):
                await send()
            go_on.set()
            got = 0
            while got < sent:
                got += len(await reader.read(1_000_000))
            assert got == sent

    asyncio.run(scenario())


def test_the_listener_takes_one_connection_only():
    async def scenario():
        async with ends(echo) as both:
            taken: list[Stream] = []

            async def connect(host: str, port: int) -> bool:
                assert host == LOOPBACK
                taken.append(await asyncio.open_connection(host, port))
                taken[0][1].write(b"mine")
                assert await taken[0][0].readexactly(4) == b"mine"
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.open_connection(host, port)
                return True

            assert await both.dialler.dial("peer", connect)
            assert both.open == (1, 1)

    asyncio.run(scenario())


def test_tunnels_are_bounded_where_they_are_dialled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tunnel, "MAX_TUNNELS", 2)

    async def unused(host: str, port: int) -> bool:
        raise AssertionError("must not be dialled")

    async def scenario():
        async with ends(echo) as both:
            for _ in range(2):
                await both.dial()
            assert not await both.dialler.dial("peer", unused)
            assert both.counts == {"tunnel_out_full": 1}
            both.near[0][1].close()
            await until(lambda: both.dialler.open == 1)
            await both.dial()

    asyncio.run(scenario())


def test_tunnels_are_bounded_where_they_arrive(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tunnel, "MAX_PER_PEER", 2)

    async def scenario():
        async with ends(echo) as both:
            both.peers = ["loud", "loud", "loud", "other"]
            for number in (1, 2):
                await both.dial()
                await until(lambda number=number: both.server.open == number)
            reader, _ = await both.dial()
            assert await reader.read(1) == b""  # one peer has its share
            assert both.counts == {"tunnel_in_full": 1}
            await both.dial()
            await until(lambda: both.server.open == 3)
            both.near[0][1].close()
            await until(lambda: both.server.open == 2)
            both.peers = ["loud"]
            reader, writer = await both.dial()
            writer.write(b"!")
            assert await reader.readexactly(1) == b"!"  # what has ended counts no longer

    asyncio.run(scenario())


def test_all_peers_together_are_bounded_where_they_arrive(monkeypatch: pytest.MonkeyPatch):
    async def scenario():
        async with ends(echo) as both:
            both.peers = [f"peer {number}" for number in range(4)]
            for number in (1, 2):
                await both.dial()
                await until(lambda number=number: both.server.open == number)
            monkeypatch.setattr(tunnel, "MAX_TUNNELS", 2)
            reader, _ = await both.open_stream("peer")  # past the dialling end, which has its own bound
            assert await reader.read(1) == b""
            assert both.counts == {"tunnel_in_full": 1}

    asyncio.run(scenario())


@pytest.mark.parametrize("side", ["daemon", "service", "host"])
def test_when_one_end_goes_the_whole_tunnel_goes(side: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tunnel, "LINGER_SECONDS", 0.1)

    async def scenario():
        arrived: list[asyncio.StreamWriter] = []

        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            arrived.append(writer)
            await asyncio.Event().wait()

        async with ends(hold) as both:
            reader, writer = await both.dial()
            await until(lambda: arrived)
            broken = {"daemon": both.streams[0][1], "service": arrived[0], "host": writer}[side]
            broken.transport.abort()
            await until(lambda: both.open == (0, 0))
            if side != "host":
                assert await reader.read(1) == b""

    asyncio.run(scenario())


def test_a_peer_out_of_reach_is_a_failed_dial(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tunnel, "OPEN_SECONDS", 0.05)

    async def unused(host: str, port: int) -> bool:
        raise AssertionError("must not be dialled")

    async def never(peer: str) -> Stream:
        await asyncio.Event().wait()
        raise AssertionError

    async def scenario():
        counts: Counter[str] = Counter()
        async with ends(echo) as both:
            assert not await both.dialler.dial("nobody", unused)
            assert both.counts == {"tunnel_unreachable": 1}
        silent = TunnelDialler(never, lambda name: counts.update([name]))
        assert not await silent.dial("peer", unused)
        assert counts == {"tunnel_unreachable": 1}
        await until(lambda: silent.open == 0)

    asyncio.run(scenario())


def test_a_dial_that_the_host_gives_up_leaves_nothing():
    async def refuse(host: str, port: int) -> bool:
        return False

    async def scenario():
        async with ends(echo) as both:
            assert not await both.dialler.dial("peer", refuse)
            await until(lambda: both.open == (0, 0))
            assert both.counts == {"tunnel_refused": 1}

    asyncio.run(scenario())


def test_a_listener_that_nobody_comes_to_closes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tunnel, "ACCEPT_SECONDS", 0.05)

    async def scenario():
        async with ends(echo) as both:
            ports: list[int] = []

            async def stay_away(host: str, port: int) -> bool:
                ports.append(port)
                await until(lambda: both.dialler.open == 0)
                return True

            await both.dialler.dial("peer", stay_away)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(LOOPBACK, ports[0])
            await until(lambda: both.open == (0, 0))

    asyncio.run(scenario())


@pytest.mark.parametrize("port", [0, 1])
def test_without_a_gossip_host_streams_are_closed(port: int):
    async def scenario():
        async with ends(echo) as both:
            both.port = port
            reader, _ = await both.dial()
            assert await reader.read(1) == b""
            assert both.counts == {"tunnel_in_down": 1}

    asyncio.run(scenario())


def test_an_idle_tunnel_stays_and_a_stuck_one_goes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tunnel, "DRAIN_SECONDS", 0.1)

    async def scenario():
        async with ends(echo) as both:
            reader, writer = await both.dial()
            idle_since = time.monotonic()
            await until(lambda: time.monotonic() > idle_since + 0.4)
            writer.write(b"still")
            assert await reader.readexactly(5) == b"still"
        async with ends(sink) as both:
            _, writer = await both.dial()
            writer.write(bytes(50_000_000))
            await until(lambda: both.open == (0, 0))

    asyncio.run(scenario())


def test_closing_ends_all_tunnels_of_a_side(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tunnel, "LINGER_SECONDS", 0.1)

    async def scenario():
        hung_up = asyncio.Event()

        async def wait_for_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            hung_up.set()

        async with ends(wait_for_the_end) as both:
            reader, _ = await both.dial()
            await until(lambda: both.open == (1, 1))
            await both.server.close()
            await hung_up.wait()
            assert await reader.read(1) == b""
            await until(lambda: both.open == (0, 0))

    asyncio.run(scenario())


class RealNode:
    """A gossip host behind a real daemon."""

    def __init__(self, number: int) -> None:
        self.heard: list[bytes] = []
        self.counts: Counter[str] = Counter()
        self.gossip = GossipThread(bytes([number]) * 32, lambda data: True, self.hear, self.count)
        self.dialler = TunnelDialler(self.open_stream, self.count)
        self.server = TunnelServer(lambda: self.gossip.local_port, self.count)

    def hear(self, data: bytes, forwarder: str) -> None:
        self.heard.append(data)

    def count(self, name: str) -> None:
        self.counts[name] += 1

    async def start(self, bootstraps: list[str]) -> None:
        self.p2p = await imports.hivemind().P2P.create(
            initial_peers=bootstraps or None,
            host_maddrs=["/ip4/127.0.0.1/tcp/0"],
            nat_port_map=False,
            auto_nat=False,
            use_relay=False,
            startup_timeout=60,
        )
        await self.p2p.add_binary_stream_handler(PROTOCOL, self.server.serve)
        await self.gossip.start([TOPIC])

    async def open_stream(self, peer: str) -> Stream:
        peer_id = imports.hivemind().PeerID.from_base58(peer)
        _, reader, writer = await self.p2p.call_binary_stream_handler(peer_id, PROTOCOL)
        return reader, writer

    async def dial(self, other: "RealNode") -> bool:
        def connect(host: str, port: int) -> Awaitable[bool]:
            return self.gossip.dial(host, port, other.gossip.peer_id)

        return await self.dialler.dial(str(other.p2p.peer_id), connect)

    async def stop(self) -> None:
        await self.gossip.stop()
        await self.dialler.close()
        await self.server.close()
        await self.p2p.shutdown()


def test_gossip_works_through_the_streams_of_real_daemons():
    async def scenario():
        a, b = RealNode(1), RealNode(2)
        try:
            await a.start([])
            await b.start([str(address) for address in await a.p2p.get_visible_maddrs()])
            assert await b.dial(a)
            for number in range(20):
                data = b"%d " % number + os.urandom(200)
                source, target = (a, b) if number % 2 else (b, a)
                assert source.gossip.publish(TOPIC, data)
                await until(lambda target=target, data=data: data in target.heard)
            assert (b.dialler.open, a.server.open) == (1, 1)
            await a.server.close()  # the tunnel breaks: both gossip hosts notice, and a new one is dug
            await until(lambda: not a.gossip.connected() and not b.gossip.connected())
            assert await a.dial(b)
            assert a.gossip.publish(TOPIC, b"through another tunnel")
            await until(lambda: b"through another tunnel" in b.heard)
            assert not a.counts + b.counts
        finally:
            for node in (a, b):
                await node.stop()

    asyncio.run(scenario())
