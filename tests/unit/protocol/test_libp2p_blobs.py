"""Blobs and documents over streams, with socket pairs in place of p2pd: what hostile ends can and cannot do."""

import asyncio
import hashlib
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shoal.protocol.errors import FetchFailed
from shoal.protocol.libp2p import blobs
from shoal.protocol.libp2p.blobs import ASK, BLOB, BUSY, CHUNK, NOT_FOUND, Client, Crowded, Server, Shelf
from shoal.protocol.libp2p.control import Remote, Stream
from shoal.protocol.limits import MIB

SWARM = bytes([7]) * 32
BLOB_OF_3_CHUNKS = bytes(range(256)) * (3 * CHUNK // 256) + b"tail"


def digest(blob: bytes) -> bytes:
    return hashlib.sha256(blob).digest()


async def pair() -> tuple[Stream, Stream]:
    left, right = socket.socketpair()
    return await asyncio.open_connection(sock=left), await asyncio.open_connection(sock=right)


class Net:
    """A server, and clients with an identity each; `answer` replaces the server by something hostile."""

    def __init__(self, seconds: float = 5.0) -> None:
        self.counts: Counter[str] = Counter()
        self.shelf = Shelf(SWARM, self.count)
        self.server = Server(self.shelf, self.count)
        self.answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]] | None = None
        self.name = "asker"
        self.client = Client(self.open, seconds)
        self.tasks: list[asyncio.Task[None]] = []

    def count(self, reason: str) -> None:
        self.counts[reason] += 1

    async def open(self, peer: str, protocol: str) -> Stream:
        near, far = await pair()
        self.tasks.append(asyncio.ensure_future(self.handle(protocol, Remote(self.name, ""), far)))
        return near

    async def handle(self, protocol: str, remote: Remote, far: Stream) -> None:
        if self.answer is not None:
            await self.answer(*far)
        else:
            await {BLOB: self.server.blob, ASK: self.server.document}[protocol](remote, *far)
        far[1].close()

    async def request(self, blob_digest: bytes) -> Stream:
        """A stream on which a blob was asked for, and nothing read."""
        reader, writer = await self.open("server", BLOB)
        writer.write(blob_digest)
        return reader, writer

    async def fails(self, limit: int = 64 * MIB, wanted: bytes = bytes(32)) -> str:
        with pytest.raises(FetchFailed) as caught:
            await self.client.blob("server", wanted, limit)
        return caught.value.reason


def run(main: Awaitable[None]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(30):
            await main

    asyncio.run(whole())


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_blobs_of_all_sizes_come_whole():
    async def main() -> None:
        net = Net()
        for blob in (b"", b"x", b"x" * CHUNK, BLOB_OF_3_CHUNKS):
            net.shelf.offer(digest(blob), blob)
            assert await net.client.blob("server", digest(blob), len(blob)) == blob
        await asyncio.wait(net.tasks)
        assert net.counts == {"served_blob": 4}

    run(main())


def test_documents():
    async def main() -> None:
        net = Net()
        net.shelf.serve("a/b.c-1", lambda: b"text")
        assert await net.client.document("server", SWARM, "a/b.c-1", 4) == b"text"
        for swarm, name in ((bytes(32), "a/b.c-1"), (SWARM, "other")):
            with pytest.raises(FetchFailed, match="not_found"):
                await net.client.document("server", swarm, name, 4)
        await asyncio.wait(net.tasks)
        assert net.counts == {"served_document": 1, "serve_not_found": 2}
        for wrong in ("", "A", "a b", "x" * 65, "ä"):
            with pytest.raises(ValueError, match="the name of a document"):
                net.shelf.serve(wrong, bytes)
            with pytest.raises(ValueError, match="the name of a document"):
                await net.client.document("server", SWARM, wrong, 4)

    run(main())


def says(*parts: bytes, then: float = 0.0, close: bool = True) -> Callable[..., Awaitable[None]]:
    """An answer of a hostile server, in parts with a pause between them."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readexactly(32)
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(then)
            if not close:
                await reader.read()
        except OSError:
            return

    return answer


def length(number: int) -> bytes:
    return number.to_bytes(8, "big")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (says(length(6), b"poison"), "wrong_digest"),
        (says(length(101), b"x" * 101), "too_large"),
        (says(length(2**63)), "too_large"),
        (says(length(NOT_FOUND)), "not_found"),
        (says(length(BUSY)), "timeout"),
        (says(), "unreachable"),
        (says(b"\0\0"), "unreachable"),
        (says(length(50), b"x" * 20), "unreachable"),
        (says(close=False), "timeout"),
        (says(length(50), close=False), "timeout"),
        (says(length(50), b"x" * 20, close=False), "timeout"),
        (says(length(10), *[b"x"] * 10, then=0.2), "timeout"),  # drips, each byte within the deadline of a chunk
    ],
)
def test_a_hostile_server_costs_its_own_fetch_only(
    answer: Callable[..., Awaitable[None]], reason: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(blobs, "SLOWEST", 100.0)  # bytes a second: ten of them have 0.1 s beyond the 0.3

    async def main() -> None:
        net = Net(seconds=0.3)
        net.answer = answer
        assert await net.fails(limit=100) == reason
        net.answer = None
        net.shelf.offer(digest(b"good"), b"good")
        assert await net.client.blob("server", digest(b"good"), 100) == b"good"

    run(main())


def test_nothing_beyond_the_length_is_read():
    async def main() -> None:
        net = Net()
        net.answer = says(length(4), b"good and more", close=False)
        assert await net.client.blob("server", digest(b"good"), 4) == b"good"

    run(main())


def test_who_is_out_of_reach():
    async def main() -> None:
        async def refuse(peer: str, protocol: str) -> Stream:
            raise OSError("p2pd is gone")

        with pytest.raises(FetchFailed, match="unreachable"):
            await Client(refuse, 1.0).blob("server", bytes(32), 10)

    run(main())


def test_a_reader_that_stalls_loses_its_place(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(blobs, "CHUNK_SECONDS", 0.2)

    async def main() -> None:
        net = Net()
        blob = bytes(8 * MIB)
        net.shelf.offer(digest(blob), blob)
        _, writer = await net.request(digest(blob))
        await until(lambda: net.counts["serve_stalled"] == 1)
        writer.close()
        assert await net.client.blob("server", digest(blob), len(blob)) == blob

    run(main())


def test_one_peer_cannot_hold_all_places(monkeypatch: pytest.MonkeyPatch):
    """One peer gets 4 of the 16 places and its share of the queue; another is served meanwhile."""
    monkeypatch.setattr(blobs, "WAIT_SECONDS", 1000.0)

    async def main() -> None:
        net = Net()
        blob = bytes(8 * MIB)
        net.shelf.offer(digest(blob), blob)
        greedy = [await net.request(digest(blob)) for _ in range(40)]
        await until(lambda: net.counts["serve_busy"] == 40 - 4 - 16)
        busy = [reader for reader, _ in greedy[20:]]
        assert await busy[0].readexactly(8) == length(BUSY)
        net.name = "another"
        assert await net.client.blob("server", digest(blob), len(blob)) == blob
        for _, writer in greedy:
            writer.close()
        await asyncio.wait(net.tasks)
        net.name = "asker"  # and its places are free again
        assert await net.client.blob("server", digest(blob), len(blob)) == blob

    run(main())


def test_all_places_are_bounded():
    async def main() -> None:
        net = Net()
        blob = bytes(8 * MIB)
        net.shelf.offer(digest(blob), blob)
        streams: list[Any] = []
        for peer in range(8):
            net.name = f"peer {peer}"
            streams += [await net.request(digest(blob)) for _ in range(4)]
        await until(lambda: net.server.places_taken == 16)
        for _ in range(100):
            await asyncio.sleep(0)
            assert net.server.places_taken == 16
        for _, writer in streams:
            writer.close()
        await asyncio.wait(net.tasks)
        assert net.server.places_taken == 0

    run(main())


def test_waiting_for_a_place_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(blobs, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(blobs, "FETCHED_EACH", 1)

    async def main() -> None:
        net = Net()
        net.answer = says(close=False)
        first = asyncio.create_task(net.fails())
        await until(lambda: net.tasks)
        with pytest.raises(Crowded):
            await net.client.blob("server", bytes(32), 10)
        for task in net.tasks:
            task.cancel()
        first.cancel()

    run(main())


def test_what_is_offered_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(blobs, "MAX_OFFERS", 3)
    monkeypatch.setattr(blobs, "MAX_OFFER_BYTES", 100)
    monkeypatch.setattr(blobs, "MAX_BLOB", 90)
    counts: Counter[str] = Counter()
    shelf = Shelf(SWARM, lambda reason: counts.update([reason]))
    for name in b"abcd":
        shelf.offer(bytes([name]), b"x" * 10)
    assert [shelf.blob(bytes([name])) is not None for name in b"abcd"] == [False, True, True, True]
    shelf.offer(b"e", b"x" * 85)
    assert [shelf.blob(bytes([name])) is not None for name in b"bcde"] == [False, False, True, True]
    shelf.offer(b"f", b"x" * 91)
    assert shelf.blob(b"f") is None
    assert counts == {"dropped_offer": 4}
    shelf.offer(b"e", b"x" * 5)
    shelf.withdraw(b"d")
    shelf.offer(b"g", b"x" * 90)
    assert [shelf.blob(bytes([name])) is not None for name in b"eg"] == [True, True]
