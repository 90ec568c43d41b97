"""A host that knows only docs/protocol.md, sections 8 to 11, talks to a live node; its bytes are made by hand."""

import asyncio
import hashlib
import json
import secrets
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import live_transports as live
import msgpack

from shoal.protocol.libp2p import imports
from shoal.protocol.libp2p.addresses import split
from shoal.protocol.libp2p.ask import START_SECONDS
from shoal.protocol.libp2p.control import Control, framed, read_frame
from shoal.protocol.libp2p.keys import peer_id
from shoal.protocol.libp2p.p2pd import Daemon
from shoal.protocol.libp2p.transport import Libp2pTransport
from shoal.protocol.records import GOSSIP, open_record, prove

VECTORS = Path(__file__).parents[1] / "vectors" / "protocol_v1.json"
SWARM_HEX = live.SWARM[:8].hex()
NOT_FOUND = 2**64 - 1
Fields = list[tuple[int, bytes]]


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def double(number: int, value: float) -> bytes:
    return varint(number << 3 | 1) + struct.pack("<d", value)


def read_fields(data: bytes) -> Fields:
    """The fields of a protobuf message; numbers as their bytes."""
    found: Fields = []
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            found.append((tag >> 3, bytes([number()])))
            continue
        size = {1: 8, 2: -1, 5: 4}[tag & 7]
        size = number() if size < 0 else size
        found.append((tag >> 3, data[at : at + size]))
        at += size
    return found


class Stranger:
    """A bare libp2p host, connected to one node."""

    def __init__(self, control: Control, peer: str) -> None:
        self.control, self.peer = control, peer
        self.node = field(1, secrets.token_bytes(20))

    @asynccontextmanager
    async def stream(self, protocol: str, question: bytes) -> AsyncIterator[asyncio.StreamReader]:
        """Ask on a stream, give what answers, and close."""
        reader, writer = await self.control.open(self.peer, protocol, live.GENEROUS)
        writer.write(question)
        try:
            async with asyncio.timeout(live.GENEROUS):
                yield reader
        finally:
            writer.close()

    async def ask(self, protocol: str, question: bytes) -> bytes | int:
        """The answer behind its length, or the number that stands in place of one."""
        async with self.stream(protocol, question) as reader:
            length = int.from_bytes(await reader.readexactly(8), "big")
            return length if length > 2**40 else await reader.readexactly(length)

    async def call(self, method: str, body: bytes) -> Fields:
        """Call a method of the DHT."""
        name, number = f"Shoal-{SWARM_HEX}.{method}", secrets.token_bytes(16)
        message = field(1, number) + field(3, field(1, b"") + field(2, name.encode()) + field(3, body))
        async with self.stream(name, varint(len(message)) + message) as reader:
            head = await reader.readexactly(1)
            while head[-1] > 0x7F:
                head += await reader.readexactly(1)
            size = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(head))
            outer = dict(read_fields(await reader.readexactly(size)))
        assert outer[1] == number
        return read_fields(dict(read_fields(outer[4]))[1])


@asynccontextmanager
async def visited() -> AsyncIterator[tuple[Libp2pTransport, Stranger]]:
    """A node, and a stranger connected to it."""
    node, daemon = live.transport(1), Daemon(secrets.token_bytes(32), ["-noListenAddrs=1", "-connManager=0"])
    await node.start()
    try:
        await daemon.start(START_SECONDS)
        address, peer = split(node.addresses()[0])
        control = Control(daemon.control_path, "", lambda _: None, live.GENEROUS)
        await control.connect(peer, [address], live.GENEROUS)
        yield node, Stranger(control, peer)
    finally:
        await daemon.stop()
        await node.close()


def test_a_stranger_that_knows_the_page_is_understood() -> None:
    async def main() -> None:
        async with visited() as (node, stranger):
            blob = b"x" * 300_000
            node.offer(hashlib.sha256(blob).digest(), blob)
            node.serve("time", lambda: b"12345678")
            assert await stranger.ask("/shoal/blob/1", hashlib.sha256(blob).digest()) == blob
            assert await stranger.ask("/shoal/blob/1", bytes(32)) == NOT_FOUND
            asked = live.SWARM + bytes([4]) + b"time"
            assert await stranger.ask("/shoal/ask/1", asked) == b"12345678"
            assert await stranger.ask("/shoal/ask/1", bytes(32) + asked[32:]) == NOT_FOUND
            async with stranger.stream("/shoal/reach/1", struct.pack(">H", node.port)) as reader:
                assert await reader.readexactly(11) == bytes([1, 9]) + b"127.0.0.1"
            record = await stranger.ask("/shoal/ask/1", live.SWARM + bytes([6]) + b"record")
            assert isinstance(record, bytes)
            assert open_record(record, time.time()).key == live.identity(1).key
            await the_dht_keeps_and_gives(stranger, record)

    live.run(main)


async def the_dht_keeps_and_gives(stranger: Stranger, record: bytes) -> None:
    answer = dict(await stranger.call("rpc_ping", field(2, stranger.node)))
    assert len(dict(read_fields(answer[2]))[1]) == 20
    assert abs(struct.unpack("<d", answer[4])[0] - time.time()) < live.GENEROUS

    own = live.identity(1).key
    key = hashlib.sha1(msgpack.packb(f"shoal/{SWARM_HEX}/peers/{own[0] % 64}")).digest()
    expected = msgpack.packb(record)
    assert expected in await find(stranger, key), "the node's own record lies where the page says"

    me = live.identity(9)
    key = hashlib.sha1(msgpack.packb(f"shoal/{SWARM_HEX}/peers/{me.key[0] % 64}")).digest()
    tag, data, expiration = msgpack.packb(me.key), msgpack.packb(b"a record"), time.time() + 300
    signature = me.sign(b"shoal/dht/1" + key + tag + struct.pack(">d", expiration) + data)
    for value, kept in ((data + bytes(64), b"\0"), (data + signature, b"\1")):
        request = field(2, key) + field(3, tag) + field(4, value) + double(5, expiration) + b"\x30\0"
        assert dict(await stranger.call("rpc_store", request + field(7, stranger.node)))[2] == kept
    found = msgpack.unpackb(await find(stranger, key), ext_hook=lambda code, raw: (code, msgpack.unpackb(raw)))
    assert found == (0x50, [float("inf"), expiration, [[me.key, data + signature, expiration]]])


async def find(stranger: Stranger, key: bytes) -> bytes:
    """The value under a DHT key: all its records."""
    answer = await stranger.call("rpc_find", field(2, key) + field(3, stranger.node))
    result = dict(read_fields(dict(answer)[2]))
    assert result[1] == b"\2"
    return result[2]


@asynccontextmanager
async def tunnel(stranger: Stranger) -> AsyncIterator[int]:
    """A port of this machine whose one connection is carried, byte for byte, over a stream to the node."""
    far, tasks = await stranger.control.open(stranger.peer, "/shoal/gossip/1", live.GENEROUS), []

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)

    def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.extend(map(asyncio.ensure_future, (carry(reader, far[1]), carry(far[0], writer))))

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()


class GoGossip:
    """The GossipSub of go-libp2p, which p2pd has too: another implementation than the node's."""

    def __init__(self, daemon: Daemon) -> None:
        self.control = Control(daemon.control_path, "", lambda _: None, live.GENEROUS)
        self.path, self.messages = daemon.control_path, imports.p2pd_messages()

    async def ask(self, kind: int, topic: str, data: bytes = b"") -> asyncio.StreamReader:
        request = self.messages.Request()
        request.type = self.messages.Request.PUBSUB
        request.pubsub.type, request.pubsub.topic, request.pubsub.data = kind, topic, data
        reader, self.writer = await asyncio.open_unix_connection(self.path)
        self.writer.write(framed(request.SerializeToString()))
        assert self.messages.Response.FromString(await read_frame(reader)).type == self.messages.Response.OK
        return reader

    async def heard(self, reader: asyncio.StreamReader) -> bytes:
        return self.messages.PSMessage.FromString(await read_frame(reader)).data


def test_the_gossipsub_of_go_libp2p_takes_part_through_a_tunnel() -> None:
    topic = f"shoal/{SWARM_HEX}/0"

    async def main() -> None:
        daemon = Daemon(secrets.token_bytes(32), ["-noListenAddrs=1", "-pubsub=1", "-pubsubRouter=gossipsub"])
        async with visited() as (node, stranger), tunnel(stranger) as port:
            try:
                await daemon.start(START_SECONDS)
                other = GoGossip(daemon)
                origin = peer_id(prove(live.identity(1), GOSSIP)[0])
                await other.control.connect(origin, [f"/ip4/127.0.0.1/tcp/{port}"], live.GENEROUS)
                subscribed = await other.ask(other.messages.PSRequest.SUBSCRIBE, topic)
                await live.until(lambda: node.gossip_peers == 1)
                await node.announce(b"from here")
                async with asyncio.timeout(live.GENEROUS):
                    assert await other.heard(subscribed) == b"from here"
                await other.ask(other.messages.PSRequest.PUBLISH, topic, b"from there")
                async with asyncio.timeout(live.GENEROUS):
                    assert (await anext(node.announcements())).data == b"from there"
            finally:
                await daemon.stop()

    live.run(main)


def test_the_library_takes_the_gossip_message_of_the_vectors() -> None:
    imports.load_gossip()
    from libp2p.pubsub.pb import rpc_pb2
    from libp2p.pubsub.validators import signature_validator

    from shoal.protocol.libp2p.gossip_intake import well_formed

    golden = json.loads(VECTORS.read_text(encoding="utf-8"))
    message = rpc_pb2.Message.FromString(bytes.fromhex(golden["gossip_message"]))
    assert well_formed(message)
    assert signature_validator(message)
    assert message.data.hex() == golden["announcement"]
    assert message.topicIDs == [golden["shards"][1]["subscribed"][0]]
