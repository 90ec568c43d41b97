"""What peers write to streams: blobs, documents, questions, answers of the other swarm's DHT, verifier's pipes.

Each target gives the bytes to the code that reads the stream in a node, to its end. Nothing listens and nothing waits:
the stream ends where the bytes end.
"""

import asyncio
import hashlib
import os
from collections.abc import Coroutine
from typing import Any, cast
from unittest import mock

import fuzz_seeds as seeds
from fuzz_targets import REASON, Broken, Target

from shoal.defenses.verdict import Counters
from shoal.node.bridge.dht import ForeignDht
from shoal.node.greet import Greeter
from shoal.protocol.errors import FetchFailed
from shoal.protocol.libp2p import control
from shoal.protocol.libp2p.addresses import binary, dialable, from_binary, parse
from shoal.protocol.libp2p.blobs import BLOB, NOT_FOUND, Client, Server, Shelf
from shoal.protocol.libp2p.control import Control, Remote, Stream, read_frame
from shoal.protocol.libp2p.known import KnownPeers
from shoal.protocol.transport import Received
from shoal.trainer.verify_frames import LARGEST_FRAME
from shoal.trainer.verify_frames import read_frame as read_pipe

LOOP = asyncio.new_event_loop()
SECONDS = 5.0
LIMIT = 4096
CONTENT = b"what was asked for" * 20
DIGEST = hashlib.sha256(CONTENT).digest()
DOCUMENT = "record"
PIPE = 1 << 15  # bytes that a pipe takes without a reader


class Sink:
    """A writer that keeps what is written, and that can be closed."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.transport = self

    def write(self, data: bytes) -> None:
        """Keep it."""
        self.written += data

    async def drain(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing to close."""

    abort = close


def play(work: Coroutine[Any, Any, None]) -> None:
    """Run one case in the loop of this module."""
    LOOP.run_until_complete(work)


def stream(data: bytes) -> tuple[asyncio.StreamReader, Sink]:
    """A stream on which a peer writes these bytes and closes."""
    reader = asyncio.StreamReader(loop=LOOP)
    reader.feed_data(data)
    reader.feed_eof()
    return reader, Sink()


def _opened(data: bytes) -> Any:
    async def open_stream(*_: object) -> Stream:
        return cast(Stream, stream(data))

    return open_stream


def blob_answer(data: bytes) -> None:
    """What a peer answers to the question for a blob: the very blob, or a failure that has a name."""

    async def work() -> None:
        if await Client(_opened(data), SECONDS).blob("peer", DIGEST, LIMIT) != CONTENT:
            raise Broken("another blob than the one that was asked for")

    play(work())


def document_answer(data: bytes) -> None:
    """What a peer answers to the question for a document."""

    async def work() -> None:
        found = await Client(_opened(data), SECONDS).document("peer", seeds.SWARM.swarm_id, DOCUMENT, LIMIT)
        if len(found) > LIMIT or not data[8:].startswith(found):
            raise Broken("a document that was not sent, or one that is too long")

    play(work())


def question(data: bytes) -> None:
    """What a peer asks for, of both kinds: it gets what it named, or nothing."""
    counted: list[str] = []
    shelf = Shelf(seeds.SWARM.swarm_id, counted.append)
    shelf.offer(DIGEST, CONTENT)
    shelf.serve(DOCUMENT, lambda: CONTENT)
    server = Server(shelf, counted.append)
    nothing, all_of_it = NOT_FOUND.to_bytes(8, "big"), len(CONTENT).to_bytes(8, "big") + CONTENT

    async def work() -> None:
        for serve in (server.blob, server.document):
            reader, sink = stream(data)
            await serve(Remote("peer", ""), reader, cast(asyncio.StreamWriter, sink))
            if bytes(sink.written) not in (b"", nothing, all_of_it):
                raise Broken("an answer of no form")

    play(work())
    if len(counted) != 2 or server.places_taken:
        raise Broken(f"two questions, but {counted} and {server.places_taken} places that are taken")


def handed_in(data: bytes) -> None:
    """A stream that the network daemon hands in: its head is a frame, what follows is a peer's."""
    counted: list[str] = []
    served: list[bytes] = []

    async def serve(_: Remote, reader: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        served.append(await reader.readexactly(1))

    async def work() -> None:
        daemon = Control("", "", counted.append, SECONDS)
        daemon._handlers[BLOB] = serve
        reader, sink = stream(data)
        await daemon._accept(reader, cast(asyncio.StreamWriter, sink))
        await asyncio.sleep(0)  # the lingering ends in here
        if daemon._peers:
            raise Broken("a stream that has ended is still counted")

    with mock.patch.object(control, "LINGER_SECONDS", 0.0):
        play(work())
    if len(counted) + len(served) != 1:
        raise Broken(f"served {len(served)}, counted {counted}")


def frame(data: bytes) -> None:
    """One length-prefixed message."""

    async def work() -> None:
        found = await read_frame(stream(data)[0])
        head = next(place for place, byte in enumerate(data) if not byte & 0x80) + 1  # a length may have idle zeros
        if data[head : head + len(found)] != found:
            raise Broken("a message that was not sent")

    play(work())


class _Caller:
    """Stands for the network daemon: whoever is called answers the same."""

    def __init__(self, data: bytes) -> None:
        self.open = _opened(data)


def bridge_find(data: bytes) -> None:
    """What nodes of the other swarm's DHT answer, from frame to entries; those that they name are asked, too."""
    counters = Counters()

    async def ready() -> None:
        """The daemon stands."""

    async def work() -> None:
        dht = ForeignDht(bytes(32), (seeds.BOOTSTRAP,), counters)
        dht.now = lambda: seeds.NOW
        dht.caller.ready = ready  # pyright: ignore[reportAttributeAccessIssue]
        dht.caller._control = cast(Control, _Caller(data))
        for entry in await dht.read(1):
            if not seeds.NOW < entry.expires < seeds.NOW + 1000:
                raise Broken("an entry that has no right to live")

    play(work())
    for name in counters.state():
        if not name.startswith("bridge/") or not REASON.fullmatch(name.removeprefix("bridge/")):
            raise Broken(f"{name!r} is no counter")


def greeting(data: bytes) -> None:
    """What a peer tells of its time and of its latest announcements."""
    came: list[Received] = []
    counters = Counters()

    class Told:
        async def ask(self, _key: bytes, name: str, limit: int) -> bytes:
            return data[: 8 if data[:1] < b"\x80" else 9] if name == "time" else data[:limit]

    async def work() -> None:
        greeter = Greeter(cast(Any, Told()), came.append, counters, lambda: seeds.NOW)
        await greeter.greet(seeds.NODE.key)
        if not isinstance(greeter.clock_offset, float | None):
            raise Broken("an offset that is no number")

    play(work())
    if any(len(one.data) != len(seeds.ANNOUNCEMENTS[0]) for one in came):
        raise Broken("a piece of another size than an announcement")


def known(data: bytes) -> None:
    """A record that lay in the DHT or that a peer sent, taken in among the known ones."""
    counted: list[str] = []
    peers = KnownPeers(seeds.SWARM.swarm_id, seeds.FOUNDER.key, 600.0, counted.append, lambda: seeds.NOW)
    for sealed in (data, seeds.RECORDS[0], data):
        peer = peers.take(sealed, seeds.NODE.key)
        if peer is not None and not all(parse(address) for address in peer.addresses):
            raise Broken("an address that cannot be dialled")
    if len(peers.all()) != 1 or not all(REASON.fullmatch(name) for name in counted):
        raise Broken(f"{len(peers)} peers, {counted}")


def address(data: bytes) -> None:
    """An address, in binary and as text."""
    text = data.decode("utf-8", errors="replace")
    from_binary(data)
    for found in dialable([text, from_binary(data)], loopback=False):
        if not binary(found) or parse(found) is None:
            raise Broken("an address that is dialled and has no binary form")


def verifier_pipe(data: bytes) -> None:
    """What a verifier's worker writes to the trainer's pipe."""
    if len(data) > PIPE:
        raise EOFError("a pipe takes no more at once")
    reading, writing = os.pipe()
    try:
        os.write(writing, data)
        os.close(writing)
        read_pipe(reading)
        if int.from_bytes(data[:4], "little") > LARGEST_FRAME:
            raise Broken("a frame that is too long")
    finally:
        os.close(reading)


STREAMS = (
    Target("blob-answer", seeds.answers(CONTENT), blob_answer, (FetchFailed,)),
    Target("document-answer", seeds.answers(CONTENT), document_answer, (FetchFailed,)),
    Target("question", seeds.questions(DIGEST, DOCUMENT), question),
    Target("handed-in", seeds.HANDED_IN, handed_in),
    Target("frame", seeds.HANDED_IN, frame, (ValueError, EOFError)),
    Target("bridge-find", seeds.FOUND, bridge_find),
    Target("greeting", [b"".join([seeds.TIME, *seeds.ANNOUNCEMENTS])], greeting),
    Target("known", seeds.RECORDS, known),
    Target("address", seeds.ADDRESSES, address),
    Target("verifier-pipe", seeds.PIPED, verifier_pipe, (EOFError,)),
)
"""The readers of streams, each as one target."""
