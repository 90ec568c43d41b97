"""What p2pd does on request, over its Unix socket: connect, open a stream, list peers, hand in streams of peers.

hivemind's own client waits without bound and leaks the socket of a request that is given up. The messages are its own
(hivemind.proto.p2pd_pb2); each request here has a deadline, on both sides, and closes what it opened.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from shoal.protocol.errors import FetchFailed
from shoal.protocol.libp2p import imports
from shoal.protocol.libp2p.addresses import binary, from_binary
from shoal.protocol.libp2p.keys import peer_bytes, peer_text
from shoal.protocol.libp2p.tasks import Tasks

MAX_REPLY = 4 * 2**20  # bytes: addresses of all connected peers
MAX_STREAMS = 512  # of peers, served at once by all handlers together
MAX_STREAMS_PEER = 32
HEAD_SECONDS = 10.0  # for p2pd to say whose stream it hands in
_UNIX = bytes.fromhex("9003")  # multiaddr code 400; with the slash that the package multiaddr leaves out
LINGER_SECONDS = 20.0
SLACK = 2.0  # seconds beyond the deadline that p2pd itself was given

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Remote(NamedTuple):
    """Who opened a stream, and the address from which he did, as p2pd sees it."""

    peer_id: str
    address: str


Handler = Callable[[Remote, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Control:
    """A client of one p2pd. What p2pd refuses is FetchFailed "unreachable"; a p2pd that is gone or mute is OSError."""

    def __init__(self, control_path: str, streams_path: str, count: Callable[[str], None], seconds: float) -> None:
        self._control_path, self._streams_path = control_path, streams_path
        self._count, self._seconds = count, seconds
        self._messages = imports.p2pd_messages()
        self._handlers: dict[str, Handler] = {}
        self._server: asyncio.Server | None = None
        self._serving = Tasks()
        self._peers: Counter[str] = Counter()

    @property
    def streams(self) -> int:
        """How many streams of peers are served now."""
        return len(self._serving)

    async def identify(self) -> tuple[str, tuple[str, ...]]:
        """The own peer id, and the addresses that p2pd found for itself."""
        reply = await self._request(self._message("IDENTIFY"), self._seconds)
        return peer_text(reply.identify.id), _texts(reply.identify.addrs)

    async def peers(self) -> dict[str, tuple[str, ...]]:
        """The connected peers, and the addresses of the connections."""
        reply = await self._request(self._message("LIST_PEERS"), self._seconds)
        return {peer_text(peer.id): _texts(peer.addrs) for peer in reply.peers}

    async def connect(self, peer: str, addresses: Iterable[str], seconds: float) -> None:
        """Connect to a peer at one of these addresses. Raises FetchFailed when none works within `seconds`."""
        request = self._message("CONNECT")
        request.connect.peer = peer_bytes(peer)
        request.connect.addrs.extend(raw for raw in map(binary, addresses) if raw)
        request.connect.timeout = max(1, round(seconds))
        await self._request(request, seconds + SLACK)

    async def disconnect(self, peer: str) -> None:
        """Close the connections to a peer."""
        request = self._message("DISCONNECT")
        request.disconnect.peer = peer_bytes(peer)
        await self._request(request, self._seconds)

    async def open(self, peer: str, protocol: str, seconds: float) -> Stream:
        """Open a stream to a peer; the caller closes it. Raises FetchFailed: unreachable or timeout."""
        request = self._message("STREAM_OPEN")
        request.streamOpen.peer = peer_bytes(peer)
        request.streamOpen.proto.append(protocol)
        request.streamOpen.timeout = max(1, round(seconds))
        return await self._exchange(request, seconds + SLACK)

    async def handle(self, protocol: str, handler: Handler) -> None:
        """Serve the streams that peers open under a protocol; the stream is closed when the handler returns."""
        self._handlers[protocol] = handler
        if self._server is None:
            self._server = await asyncio.start_unix_server(self._take, self._streams_path)
        request = self._message("STREAM_HANDLER")
        request.streamHandler.addr = _UNIX + framed(self._streams_path.encode())
        request.streamHandler.proto.append(protocol)
        request.streamHandler.balanced = False
        await self._request(request, self._seconds)

    async def close(self) -> None:
        """End all streams of peers and take no more."""
        if self._server is not None:
            self._server.close()
        await self._serving.close()

    def _message(self, kind: str) -> Any:
        request = self._messages.Request()
        request.type = getattr(self._messages.Request, kind)
        return request

    async def _request(self, request: Any, seconds: float) -> Any:
        """One request whose answer is all that is wanted."""
        reply = self._messages.Response()
        _, writer = await self._exchange(request, seconds, reply)
        writer.close()
        return reply

    async def _exchange(self, request: Any, seconds: float, reply: Any = None) -> Stream:
        """Send a request on a connection of its own, read the answer, and give the connection on."""
        reply = self._messages.Response() if reply is None else reply
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(seconds):
                reader, writer = await asyncio.open_unix_connection(self._control_path)
                writer.write(framed(request.SerializeToString()))
                await writer.drain()
                await _receive(reader, reply)
            if reply.type == self._messages.Response.ERROR:
                raise FetchFailed(*_reason(reply.error.msg))
        except BaseException:
            if writer is not None:
                writer.close()
            raise
        return reader, writer

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one stream that p2pd hands in; a flood of them is turned away before anything is read."""
        if len(self._serving) >= MAX_STREAMS:
            self._count("streams_full")
            writer.close()
        else:
            self._serving.start(self._accept(reader, writer))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except (OSError, EOFError, ValueError, FetchFailed):
            self._count("streams_broken")
        finally:
            hang_up(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = self._messages.StreamInfo()
        async with asyncio.timeout(HEAD_SECONDS):
            await _receive(reader, info)
        remote, handler = Remote(peer_text(info.peer), from_binary(info.addr)), self._handlers.get(info.proto)
        if handler is None or self._peers[remote.peer_id] >= MAX_STREAMS_PEER:
            self._count("streams_refused")
            return
        self._peers[remote.peer_id] += 1
        try:
            await handler(remote, reader, writer)
        finally:
            self._peers -= Counter([remote.peer_id])  # drops what falls to zero


async def closed_by_peer(reader: asyncio.StreamReader, seconds: float) -> None:
    """Wait until the peer has closed a stream, or says more than it should; at most `seconds`."""
    with contextlib.suppress(OSError):  # TimeoutError is one: whoever does not close is closed
        async with asyncio.timeout(seconds):
            await reader.read(1)


def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close a stream once what was written to it is sent; a reader that never takes it does not keep it open."""
    writer.close()
    asyncio.get_running_loop().call_later(LINGER_SECONDS, writer.transport.abort)


def _texts(addresses: Iterable[bytes]) -> tuple[str, ...]:
    """Addresses as text, without those of a kind that is not known here."""
    return tuple(text for text in map(from_binary, addresses) if text)


def _reason(message: str) -> tuple[str, str]:
    """What p2pd's refusal means; its words hold parts of what peers said."""
    plain = "".join(mark if " " <= mark <= "~" else "?" for mark in message[:200])
    late = "deadline exceeded" in message or "timeout" in message
    return ("timeout" if late and "dial" not in message else "unreachable"), plain


def framed(data: bytes) -> bytes:
    """A message behind its length as a varint."""
    size, head = len(data), bytearray()
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + data


async def _receive(reader: asyncio.StreamReader, message: Any) -> None:
    """Fill a message in with what p2pd writes. Raises OSError for what is no message, EOFError when it is gone."""
    try:
        message.ParseFromString(await read_frame(reader))
    except (ValueError, DecodeError) as fault:
        raise ConnectionAbortedError("p2pd writes what is no message") from fault


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """Read one message behind its varint. Raises ValueError over MAX_REPLY, EOFError when the other end is gone."""
    size = shift = 0
    while True:
        byte = (await reader.readexactly(1))[0]
        size |= (byte & 0x7F) << shift
        shift += 7
        if size > MAX_REPLY or shift > 35:
            raise ValueError("a message of p2pd is too long")
        if not byte & 0x80:
            return await reader.readexactly(size)
