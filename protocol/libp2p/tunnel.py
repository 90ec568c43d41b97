"""Gossip connections through p2pd's streams, so that one port, its relays and its NAT traversal serve everything.

    gossip host of A ── one-shot loopback listener of A ── p2pd stream /shoal/gossip/1 ── B's server ── gossip port of B

The bytes are those of an ordinary libp2p connection; Noise inside the tunnel proves the gossip identities at its ends.
Another user of this machine can reach the one-shot listener first, or the gossip port at any time. Such a stranger gets
a connection to a gossip host, as any stranger from the network does, under a Noise identity of his own; the dial that
he took fails, and is tried again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from shoal.protocol.errors import FetchFailed

PROTOCOL = "/shoal/gossip/1"
MAX_TUNNELS = 64  # in each direction
MAX_PER_PEER = 4  # inbound, of one transport peer: two ends that dial each other, and one stale pair
OPEN_SECONDS = 20.0  # for a stream to the peer, which may have to be relayed
ACCEPT_SECONDS = 10.0  # for the own host to come to the one-shot listener
DRAIN_SECONDS = 30.0  # for bytes on their way; a tunnel without traffic may be idle for ever
LINGER_SECONDS = 10.0  # for the other direction, once one has ended
CHUNK = 64 * 1024
LOOPBACK = "127.0.0.1"

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
OpenStream = Callable[[str], Awaitable[Stream]]
Connect = Callable[[str, int], Awaitable[bool]]
Count = Callable[[str], None]


class TunnelDialler:
    """The dialling ends of tunnels.

    `open_stream(peer)` opens a raw stream of PROTOCOL to a transport peer; it raises FetchFailed or OSError.
    """

    def __init__(self, open_stream: OpenStream, count: Count) -> None:
        self._open_stream, self._count = open_stream, count
        self._tunnels = _Tunnels()

    @property
    def open(self) -> int:
        """How many tunnels there are."""
        return len(self._tunnels)

    async def dial(self, peer: str, connect: Connect) -> bool:
        """Let `connect(host, port)` reach a peer's gossip port; what it returns, or False when there is no way.

        The port is a listener of this machine that takes one connection within ACCEPT_SECONDS.
        """
        if len(self._tunnels) >= MAX_TUNNELS:
            self._count("tunnel_out_full")
            return False
        door: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        tunnel = self._tunnels.start(self._carry(peer, door))
        tunnel.add_done_callback(lambda _: door.done() or door.set_exception(ConnectionAbortedError()))
        connected = False
        try:
            connected = await connect(LOOPBACK, await door)
            if not connected:
                self._count("tunnel_refused")
        except (FetchFailed, OSError, EOFError):  # TimeoutError is an OSError
            self._count("tunnel_unreachable")
        finally:
            if not connected:
                tunnel.cancel()
        return connected

    async def close(self) -> None:
        """End all tunnels."""
        await self._tunnels.close()

    async def _carry(self, peer: str, door: asyncio.Future[int]) -> None:
        """One tunnel: the stream first, so that a peer out of reach costs no listener."""
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                far = await self._open_stream(peer)
        except (FetchFailed, OSError, EOFError) as fault:
            door.set_exception(fault)
            return
        try:
            async with asyncio.timeout(ACCEPT_SECONDS):
                near = await _accept_one(door)
            await pipe(near, far)
        except OSError:
            return
        finally:
            far[1].close()


class TunnelServer:
    """The answering ends: `serve` is the handler of PROTOCOL, `local_port()` the gossip port, 0 while there is none."""

    def __init__(self, local_port: Callable[[], int], count: Count) -> None:
        self._local_port, self._count = local_port, count
        self._tunnels = _Tunnels()
        self._peers: Counter[str] = Counter()

    @property
    def open(self) -> int:
        """How many tunnels there are."""
        return len(self._tunnels)

    async def serve(self, info: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one stream to the gossip port until it ends; `info.peer_id` is who opened it."""
        peer, port = str(getattr(info, "peer_id", "")), self._local_port()
        if len(self._tunnels) >= MAX_TUNNELS or self._peers[peer] >= MAX_PER_PEER:
            self._count("tunnel_in_full")
            writer.close()
        elif not port:
            self._count("tunnel_in_down")
            writer.close()
        else:
            self._peers[peer] += 1
            try:
                await asyncio.wait([self._tunnels.start(self._carry(port, (reader, writer)))])
            finally:
                self._peers -= Counter([peer])  # drops what falls to zero

    async def close(self) -> None:
        """End all tunnels."""
        await self._tunnels.close()

    async def _carry(self, port: int, far: Stream) -> None:
        try:
            async with asyncio.timeout(ACCEPT_SECONDS):
                near = await asyncio.open_connection(LOOPBACK, port)
            await pipe(near, far)
        except OSError:
            self._count("tunnel_in_down")
        finally:
            far[1].close()


async def pipe(left: Stream, right: Stream) -> None:
    """Carry bytes both ways until both directions have ended, then close both; a fault in one ends the other."""
    ways = [asyncio.ensure_future(_one_way(left[0], right[1])), asyncio.ensure_future(_one_way(right[0], left[1]))]
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        lost = any(writer.transport.is_closing() for _, writer in (left, right))
        if all(way.result() for way in done) and not lost:
            await asyncio.wait(ways, timeout=LINGER_SECONDS)
    finally:
        for way in ways:
            way.cancel()
        for _, writer in (left, right):
            writer.close()


async def _one_way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Carry bytes until the reader's end, and pass that on; False when a side broke or nobody took the bytes."""
    try:
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            async with asyncio.timeout(DRAIN_SECONDS):
                await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        return False
    return True


async def _accept_one(door: asyncio.Future[int]) -> Stream:
    """Listen on a loopback port, tell it to `door`, and take one connection."""
    arrived: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()

    def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if arrived.done():
            writer.close()
        else:
            arrived.set_result((reader, writer))

    server = await asyncio.start_server(take, LOOPBACK, 0, backlog=1)
    try:
        door.set_result(server.sockets[0].getsockname()[1])
        return await arrived
    finally:
        server.close()


class _Tunnels:
    """The tasks of one direction."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, tunnel: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a tunnel until it ends."""
        task = asyncio.get_running_loop().create_task(tunnel)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """End all of them, and wait for it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
