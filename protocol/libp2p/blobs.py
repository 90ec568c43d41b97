"""Blobs by their SHA-256 and documents by their name, over raw streams of p2pd.

    /shoal/blob/1    ask: digest (32)                                    answer: length (8), then the blob
    /shoal/ask/1     ask: swarm id (32), length (1), name in ASCII       answer: length (8), then the document

The asker closes first: p2pd may drop what is still on its way over QUIC when the answering side closes (measured).

Lengths are big-endian; NOT_FOUND and BUSY stand in place of one. The answer is written in chunks of 256 KiB, each
within a deadline, so a reader that stalls loses its place; and it is read with a deadline for each chunk and for the
whole, never beyond the limit, so a sender that stalls, drips or floods costs no more than that.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from shoal.protocol.errors import FetchFailed
from shoal.protocol.libp2p.control import Remote, Stream, closed_by_peer
from shoal.protocol.libp2p.slots import Busy, Slots
from shoal.protocol.limits import KIB, MIB

BLOB, ASK = "/shoal/blob/1", "/shoal/ask/1"
CHUNK = 256 * KIB
MAX_BLOB = 64 * MIB
MAX_OFFERS = 4096
MAX_OFFER_BYTES = 512 * MIB
SERVED, SERVED_EACH, SERVED_WAITING = 16, 4, 64
FETCHED, FETCHED_EACH, FETCHED_WAITING = 8, 4, 256
WAIT_SECONDS = 20.0  # for a place
REQUEST_SECONDS = 10.0
CHUNK_SECONDS = 20.0  # for a reader to take one chunk: at least 13 KiB/s
SLOWEST = 16 * KIB  # bytes a second, over a whole answer
NOT_FOUND, BUSY = 2**64 - 1, 2**64 - 2

_NAME = re.compile(r"[a-z0-9./-]{1,64}")
Count = Callable[[str], None]


class Crowded(FetchFailed):
    """No place for one more fetch, here or at the peer: a timeout that says nothing against the peer."""

    def __init__(self, detail: str) -> None:
        super().__init__("timeout", detail)


class Shelf:
    """What a node offers: blobs and documents, with a bound on their number and bytes."""

    def __init__(self, swarm_id: bytes, count: Count) -> None:
        self._swarm_id, self._count = swarm_id, count
        self._blobs: OrderedDict[bytes, bytes] = OrderedDict()
        self._documents: dict[str, Callable[[], bytes]] = {}
        self._bytes = 0

    def offer(self, digest: bytes, blob: bytes) -> None:
        """Serve a blob; when there is no room, the oldest are dropped and counted."""
        self.withdraw(digest)
        if len(blob) > MAX_BLOB:
            self._count("dropped_offer")
            return
        self._blobs[digest] = blob
        self._bytes += len(blob)
        while len(self._blobs) > MAX_OFFERS or self._bytes > MAX_OFFER_BYTES:
            self._bytes -= len(self._blobs.popitem(last=False)[1])
            self._count("dropped_offer")

    def withdraw(self, digest: bytes) -> None:
        """Serve a blob no longer."""
        self._bytes -= len(self._blobs.pop(digest, b""))

    def serve(self, name: str, provide: Callable[[], bytes]) -> None:
        """Serve a document. Raises ValueError for a name that is none."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"the name of a document has 1 to 64 of a-z 0-9 . / -, not {name!r}")
        self._documents[name] = provide

    def blob(self, digest: bytes) -> bytes | None:
        """The blob of a digest."""
        return self._blobs.get(digest)

    def document(self, swarm_id: bytes, name: str) -> bytes | None:
        """The document of a name; None for another swarm's."""
        provide = self._documents.get(name)
        return provide() if provide is not None and swarm_id == self._swarm_id else None


class Server:
    """Answers what peers ask for."""

    def __init__(self, shelf: Shelf, count: Count) -> None:
        self._shelf, self._count = shelf, count
        self._slots = Slots(SERVED, SERVED_EACH, SERVED_WAITING, WAIT_SECONDS)

    @property
    def places_taken(self) -> int:
        """How many streams are served now."""
        return self._slots.taken

    async def blob(self, remote: Remote, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one stream of BLOB."""

        async def find() -> bytes | None:
            return self._shelf.blob(await reader.readexactly(32))

        await self._answer(remote, (reader, writer), find, "blob")

    async def document(self, remote: Remote, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one stream of ASK."""

        async def find() -> bytes | None:
            swarm_id, size = await reader.readexactly(32), (await reader.readexactly(1))[0]
            return self._shelf.document(swarm_id, (await reader.readexactly(size)).decode("ascii", "replace"))

        await self._answer(remote, (reader, writer), find, "document")

    async def _answer(
        self, remote: Remote, stream: Stream, find: Callable[[], Awaitable[bytes | None]], kind: str
    ) -> None:
        data = None
        try:
            async with self._slots.place(remote.peer_id):
                async with asyncio.timeout(REQUEST_SECONDS):
                    data = await find()
                await _write(stream[1], data)
                await closed_by_peer(stream[0], CHUNK_SECONDS)
        except Busy:
            self._count("serve_busy")
            stream[1].write(BUSY.to_bytes(8, "big"))
            await closed_by_peer(stream[0], CHUNK_SECONDS)
            return
        except TimeoutError:
            self._count("serve_stalled")
        except (OSError, EOFError):
            self._count("serve_broken")
        else:
            self._count(f"served_{kind}" if data is not None else "serve_not_found")


class Client:
    """Asks peers. `open_stream(peer id, protocol)` raises FetchFailed or OSError."""

    def __init__(self, open_stream: Callable[[str, str], Awaitable[Stream]], seconds: float) -> None:
        self._open_stream, self._seconds = open_stream, seconds
        self._slots = Slots(FETCHED, FETCHED_EACH, FETCHED_WAITING, WAIT_SECONDS)

    async def blob(self, peer: str, digest: bytes, limit: int) -> bytes:
        """A blob of a peer, its digest verified. Raises FetchFailed."""
        sha = hashlib.sha256()
        blob = await self._fetch(peer, BLOB, digest, min(limit, MAX_BLOB), sha.update)
        if sha.digest() != digest:
            raise FetchFailed("wrong_digest", digest[:4].hex())
        return blob

    async def document(self, peer: str, swarm_id: bytes, name: str, limit: int) -> bytes:
        """A document of a peer. Raises FetchFailed; ValueError for a name that is none."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"the name of a document has 1 to 64 of a-z 0-9 . / -, not {name!r}")
        return await self._fetch(peer, ASK, swarm_id + bytes([len(name)]) + name.encode("ascii"), limit)

    async def _fetch(
        self, peer: str, protocol: str, request: bytes, limit: int, see: Callable[[bytes], None] | None = None
    ) -> bytes:
        try:
            async with self._slots.place(peer):
                reader, writer = await self._open_stream(peer, protocol)
                try:
                    writer.write(request)
                    return await self._read(reader, limit, see)
                finally:
                    writer.close()
        except Busy:
            raise Crowded("too many fetches at once") from None
        except TimeoutError:
            raise FetchFailed("timeout", "no answer, or too slow a one") from None
        except (OSError, EOFError) as fault:
            raise FetchFailed("unreachable", type(fault).__name__) from fault

    async def _read(self, reader: asyncio.StreamReader, limit: int, see: Callable[[bytes], None] | None) -> bytes:
        async with asyncio.timeout(self._seconds):
            length = int.from_bytes(await reader.readexactly(8), "big")
        if length == NOT_FOUND:
            raise FetchFailed("not_found")
        if length == BUSY:
            raise Crowded("the peer serves too many already")
        if length > limit:
            raise FetchFailed("too_large", f"{length} bytes, at most {limit} wanted")
        parts: list[bytes] = []
        left = length
        async with asyncio.timeout(self._seconds + length / SLOWEST):
            while left:
                async with asyncio.timeout(self._seconds):
                    part = await reader.read(min(CHUNK, left))
                if not part:
                    raise EOFError
                if see is not None:
                    see(part)
                parts.append(part)
                left -= len(part)
        return b"".join(parts)


async def _write(writer: asyncio.StreamWriter, data: bytes | None) -> None:
    """Write an answer, no faster than it is read. Raises TimeoutError for a reader that stalls."""
    writer.write((NOT_FOUND if data is None else len(data)).to_bytes(8, "big"))
    view = memoryview(data or b"")
    for start in range(0, len(view), CHUNK):
        writer.write(view[start : start + CHUNK])
        async with asyncio.timeout(CHUNK_SECONDS):
            await writer.drain()
