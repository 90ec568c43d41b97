import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress

import psutil
import pytest

from shoal.protocol.libp2p import imports

imports.load_gossip()

import trio  # noqa: E402
from libp2p.network.stream.exceptions import StreamError  # noqa: E402
from libp2p.peer.id import ID  # noqa: E402
from libp2p.pubsub.pb import rpc_pb2  # noqa: E402
from libp2p.pubsub.validators import PUBSUB_SIGNING_PREFIX  # noqa: E402
from libp2p.utils import encode_varint_prefixed  # noqa: E402

from shoal.protocol.libp2p import gossip_host, gossip_intake, gossip_router  # noqa: E402
from shoal.protocol.libp2p.gossip import GossipThread  # noqa: E402

TOPIC = "shoal/0123456789abcdef/0"
LOOPBACK = "127.0.0.1"


def strict(data: bytes) -> bool:
    return not data.startswith(b"bad")


def lax(data: bytes) -> bool:
    return True


async def until(condition: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.01)


class Node:
    """A gossip thread that keeps what it heard."""

    def __init__(self, number: int, valid: Callable[[bytes], bool | None] = lax) -> None:
        self.heard: list[bytes] = []
        self.forwarders: dict[bytes, str] = {}
        self.counts: Counter[str] = Counter()
        self.crashes: list[str] = []
        self.thread = GossipThread(bytes([number]) * 32, valid, self.hear, self.count, self.crashes.append)

    def hear(self, data: bytes, forwarder: str) -> None:
        self.heard.append(data)
        self.forwarders[data] = forwarder

    def count(self, name: str) -> None:
        self.counts[name] += 1

    async def dial(self, other: "Node") -> bool:
        return await self.thread.dial(LOOPBACK, other.thread.local_port, other.thread.peer_id)


def swarm(*nodes: Node, lines: Iterable[tuple[int, int]] = (), topics: Iterable[str] = (TOPIC,)):
    """Run a scenario among started nodes; `lines` are the connections between them."""

    def run(scenario: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            try:
                for node in nodes:
                    await node.thread.start(topics)
                for left, right in lines:
                    assert await nodes[left].dial(nodes[right])
                await until(lambda: all(nodes[b].thread.peer_id in nodes[a].thread.connected() for a, b in both(lines)))
                await scenario()
            finally:
                for node in nodes:
                    await node.thread.stop()

        asyncio.run(whole())

    return run


def both(lines: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    return [pair for a, b in lines for pair in ((a, b), (b, a))]


async def spread(data: bytes, source: Node, *to: Node) -> None:
    """Publish, and wait until it has arrived; a mesh needs a moment, so the first one may take a heartbeat or two."""
    assert source.thread.publish(TOPIC, data)
    await until(lambda: all(data in node.heard for node in to))


def envelope(host, data: bytes, **fields: object) -> rpc_pb2.Message:
    """A pubsub message signed by this host."""
    parts = {"topicIDs": [TOPIC], "from_id": host.get_id().to_bytes(), "seqno": os.urandom(8), **fields}
    message = rpc_pb2.Message(data=data, **parts)
    message.signature = host.get_private_key().sign(PUBSUB_SIGNING_PREFIX.encode() + message.SerializeToString())
    return message


@asynccontextmanager
async def stranger(victim: Node, act: Callable[..., Awaitable[None]]) -> AsyncIterator[None]:
    """A peer that obeys no rule: `act(host, write)` on a gossip stream to the victim, open until the block ends."""
    port, peer, over = victim.thread.local_port, ID.from_base58(victim.thread.peer_id), threading.Event()

    async def attack() -> None:
        host = gossip_host.make_host(os.urandom(32), lambda name: None)
        async with host.run([]):
            await host.get_network().dial_addr(gossip_host.loopback(port), peer)
            stream = await host.new_stream(peer, [gossip_router.PROTOCOL])

            async def write(rpc: rpc_pb2.RPC | bytes) -> None:
                await stream.write(rpc if isinstance(rpc, bytes) else encode_varint_prefixed(rpc.SerializeToString()))

            with suppress(StreamError):  # the victim may hang up
                await act(host, write)
            while not over.is_set():
                await trio.sleep(0.01)
            await host.close()

    attacker = asyncio.create_task(asyncio.to_thread(trio.run, attack))
    try:
        yield
    finally:
        over.set()
        await attacker


def test_a_message_reaches_everybody_once_and_not_its_sender():
    a, b, c = nodes = [Node(number) for number in (1, 2, 3)]

    async def scenario():
        await spread(b"first", a, b, c)
        await spread(b"second", c, a, b)
        assert b.forwarders[b"first"] == a.thread.peer_id
        assert c.forwarders[b"first"] == b.thread.peer_id
        assert [node.heard.count(b"first") for node in nodes] == [0, 1, 1]
        assert [node.heard.count(b"second") for node in nodes] == [1, 1, 0]

    swarm(*nodes, lines=[(0, 1), (1, 2)])(scenario)


def test_it_listens_on_loopback_only():
    node = Node(1)

    async def scenario():
        port = node.thread.local_port
        ends = [end.laddr for end in psutil.Process().net_connections() if end.status == psutil.CONN_LISTEN]
        assert [end for end in ends if end.port == port] == [(LOOPBACK, port)]

    swarm(node)(scenario)


def test_a_rule_that_raises_ends_nothing_and_blames_nobody():
    def fragile(data: bytes) -> bool:
        if data.startswith(b"boom"):
            raise ZeroDivisionError
        return True

    a, b = Node(1), Node(2, fragile)

    async def scenario():
        await spread(b"hello", a, b)
        for number in range(15):  # more than a forwarder's score would bear
            a.thread.publish(TOPIC, b"boom%d" % number)
        await spread(b"fine", a, b)
        assert b.heard == [b"hello", b"fine"]
        assert b.counts["gossip_rule_fault"] == b.counts["gossip_ignored"] == 15
        assert b.thread.alive

    swarm(a, b, lines=[(0, 1)])(scenario)


def test_an_honest_node_does_not_forward_what_is_invalid_and_keeps_its_peers():
    sender, honest, behind = Node(1, lax), Node(2, strict), Node(3, lax)

    async def scenario():
        await spread(b"hello", sender, honest, behind)
        sender.thread.publish(TOPIC, b"bad one")
        await spread(b"good", sender, honest, behind)
        assert b"bad one" not in honest.heard + behind.heard
        assert honest.counts == {"gossip_invalid": 1}
        assert behind.thread.peer_id in honest.thread.connected()
        assert not behind.counts

    swarm(sender, honest, behind, lines=[(0, 1), (1, 2)])(scenario)


def test_who_keeps_sending_invalid_messages_is_not_heard_any_more():
    sender, strict_one, other = Node(1, lax), Node(2, strict), Node(3)

    async def scenario():
        await spread(b"hello", sender, strict_one)
        for number in range(30):
            sender.thread.publish(TOPIC, b"bad %d" % number)
        sender.thread.publish(TOPIC, b"an honest word")
        await until(lambda: strict_one.counts["gossip_distrusted"])
        await spread(b"of another", other, strict_one)
        assert strict_one.counts["gossip_invalid"] < 15
        assert b"an honest word" not in strict_one.heard

    swarm(sender, strict_one, other, lines=[(0, 1), (2, 1)])(scenario)


def test_what_a_node_is_too_old_to_judge_is_dropped_without_blame():
    def old(data: bytes) -> bool | None:
        return None if data.startswith(b"v9") else True

    new, node = Node(1), Node(2, old)

    async def scenario():
        await spread(b"hello", new, node)
        for number in range(30):
            new.thread.publish(TOPIC, b"v9 %d" % number)
        await spread(b"v1", new, node)
        assert node.counts == {"gossip_ignored": 30}

    swarm(new, node, lines=[(0, 1)])(scenario)


def test_a_node_does_not_send_what_its_peers_would_blame_it_for():
    a, b = Node(1, strict), Node(2, lax)

    async def scenario():
        a.thread.publish(TOPIC, b"bad")
        a.thread.publish(TOPIC, bytes(2049))
        await spread(bytes(2048), a, b)
        assert b.heard == [bytes(2048)]
        assert a.counts == {"gossip_own_refused": 2}

    swarm(a, b, lines=[(0, 1)])(scenario)


def test_the_same_identity_is_heard_at_once_after_a_restart():
    first, again, listener = Node(1), Node(1), Node(2)

    async def scenario():
        for number in range(20):  # counted in seconds, the next life's numbers would fall among these
            await spread(b"life 1, %d" % number, first, listener)
        await first.thread.stop()
        await until(lambda: not listener.thread.connected())
        await again.thread.start([TOPIC])
        try:
            assert await again.dial(listener)
            for number in range(5):
                await spread(b"life 2, %d" % number, again, listener)
        finally:
            await again.thread.stop()

    swarm(first, listener, lines=[(0, 1)])(scenario)


def test_a_burst_arrives_or_is_counted():
    a, b, c = nodes = [Node(number) for number in (1, 2, 3)]
    burst = [b"burst %d" % number for number in range(200)]

    async def scenario():
        await spread(b"hello", a, b, c)
        for data in burst:
            assert a.thread.publish(TOPIC, data)

        def lost(at: Node, before: list[Node]) -> int:
            missing = len(set(burst) - set(at.heard))
            return missing - sum(sum(node.counts.values()) for node in before)

        await until(lambda: lost(b, [a, b]) <= 0 and lost(c, nodes) <= 0)
        assert len(b.heard) == len(set(b.heard))

    swarm(*nodes, lines=[(0, 1), (1, 2)])(scenario)


def test_more_than_the_outbox_holds_is_dropped_and_counted():
    node = Node(1)

    async def scenario():
        taken = sum(node.thread.publish(TOPIC, b"%d" % number) for number in range(5000))
        assert taken < 5000
        assert node.counts["gossip_publish_full"] == 5000 - taken

    swarm(node)(scenario)


def test_a_flood_of_one_peer_is_bounded_and_does_not_drown_the_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gossip_intake, "BURST", 50.0)
    monkeypatch.setattr(gossip_intake, "RATE", 0.0)
    victim, friend = Node(1), Node(2)

    async def flood(host, write):
        for _ in range(10):
            await write(rpc_pb2.RPC(publish=[envelope(host, b"flood" + os.urandom(8)) for _ in range(40)]))

    async def scenario():
        async with stranger(victim, flood):
            await until(lambda: victim.counts["gossip_flood"])
            await spread(b"from a friend", friend, victim)
        assert sum(data.startswith(b"flood") for data in victim.heard) <= 50

    swarm(victim, friend, lines=[(1, 0)])(scenario)


def test_one_payload_in_many_envelopes_is_delivered_once():
    victim, behind = Node(1), Node(2)

    async def repeat(host, write):
        await write(rpc_pb2.RPC(publish=[envelope(host, b"again") for _ in range(20)]))
        await write(rpc_pb2.RPC(publish=[envelope(host, b"last")]))

    async def scenario():
        async with stranger(victim, repeat):
            await until(lambda: b"last" in behind.heard)
        assert sorted(victim.heard) == sorted(behind.heard) == [b"again", b"last"]
        assert victim.counts["gossip_repeated"] == 19
        assert not behind.counts

    swarm(victim, behind, lines=[(1, 0)])(scenario)


def hostile(host) -> dict[str, list[rpc_pb2.RPC | bytes]]:
    """What a stranger may write to a gossip stream."""
    ids = [b"", b"abc", b"\xff" * 46, *(os.urandom(46) for _ in range(20))]
    control = rpc_pb2.ControlMessage(
        ihave=[rpc_pb2.ControlIHave(topicID=TOPIC, messageIDs=ids)],
        iwant=[rpc_pb2.ControlIWant(messageIDs=ids * 20)],
        graft=[rpc_pb2.ControlGraft(topicID=name) for name in (TOPIC, "", "x" * 1000)],
        prune=[rpc_pb2.ControlPrune(topicID=name, backoff=2**64 - 1) for name in (TOPIC, "", "x" * 1000)],
    )
    rsa = b"\x12\x20" + bytes(
        32
    )  # the peer id of a key that is not inside it: checking it takes the key of the message
    strange = [rsa, b"", b"\x00", bytes.fromhex("002408011220") + b"\xff" * 32]
    names = [rpc_pb2.RPC.SubOpts(subscribe=True, topicid=f"{number}" * 30) for number in range(500)]
    return {
        "no protobuf": [b"\x05" + b"\xff" * 5],
        "no end of a length": [b"\xff" * 30],
        "a length without bound": [b"\xff\xff\xff\xff\x7f"],
        "a key that cannot be read": [
            rpc_pb2.RPC(publish=[envelope(host, b"d", from_id=origin, key=key)])
            for origin in strange
            for key in (b"", b"garbage", os.urandom(36))
        ],
        "other topics": [rpc_pb2.RPC(publish=[envelope(host, b"d", topicIDs=names)]) for names in ([], [TOPIC, "a"])],
        "control": [rpc_pb2.RPC(control=control), rpc_pb2.RPC(publish=[envelope(host, b"controlled")])],
        "too much control": [rpc_pb2.RPC(control=rpc_pb2.ControlMessage(iwant=[rpc_pb2.ControlIWant()] * 3000))],
        "subscriptions": [rpc_pb2.RPC(subscriptions=names)],
        "a broken record": [rpc_pb2.RPC(senderRecord=b"junk", publish=[envelope(host, b"through")])],
    }


EFFECT: dict[str, str | bytes] = {  # what tells that the victim has read it
    "no protobuf": "gossip_malformed",
    "no end of a length": "gossip_malformed",
    "a length without bound": "gossip_malformed",
    "a key that cannot be read": "gossip_distrusted",
    "other topics": "gossip_other_topic",
    "control": b"controlled",
    "too much control": "gossip_control_too_large",
    "subscriptions": "gossip_subscription_refused",
    "a broken record": b"through",
}


def test_nothing_that_a_stranger_writes_ends_the_service():
    victim, friend = Node(1), Node(2)

    async def scenario():
        for number, case in enumerate(hostile(gossip_host.make_host(bytes(32), print))):

            async def attack(host, write, case=case):
                for rpc in hostile(host)[case]:
                    await write(rpc)

            async with stranger(victim, attack):
                await until(lambda case=case: victim.counts[EFFECT[case]] or EFFECT[case] in victim.heard)
                await spread(b"still here %d" % number, friend, victim)
                assert victim.thread.alive, case
                victim.counts.clear()
        assert not victim.crashes
        assert b"through" in victim.heard  # the record, which names addresses, is not even read
        assert b"d" not in victim.heard

    swarm(victim, friend, lines=[(1, 0)])(scenario)


def test_addresses_that_strangers_name_are_not_dialled():
    from libp2p.peer.envelope import seal_record
    from libp2p.peer.peer_record import PeerRecord
    from multiaddr import Multiaddr

    victim, friend = Node(1), Node(2)
    callers: list[object] = []

    async def scenario():
        trap = await asyncio.start_server(lambda reader, writer: callers.append(writer), LOOPBACK, 0)
        address = Multiaddr(f"/ip4/127.0.0.1/tcp/{trap.sockets[0].getsockname()[1]}")

        async def lure(host, write):
            def lives_there(who) -> bytes:
                return seal_record(PeerRecord(who.get_id(), [address]), who.get_private_key()).marshal_envelope()

            another = gossip_host.make_host(bytes(32), print)
            peers = [rpc_pb2.PeerInfo(peerID=another.get_id().to_bytes(), signedPeerRecord=lives_there(another))]
            prune = rpc_pb2.ControlPrune(topicID=TOPIC, peers=peers)
            await write(rpc_pb2.RPC(senderRecord=lives_there(host), control=rpc_pb2.ControlMessage(prune=[prune])))
            await write(rpc_pb2.RPC(publish=[envelope(host, b"lured")]))

        async with stranger(victim, lure):
            await until(lambda: b"lured" in victim.heard)
            await spread(b"afterwards", friend, victim)
        assert not callers
        trap.close()

    swarm(victim, friend, lines=[(1, 0)])(scenario)


def test_messages_outside_the_mesh_are_asked_for(monkeypatch: pytest.MonkeyPatch):
    for name in ("DEGREE", "DEGREE_LOW", "DEGREE_HIGH"):
        monkeypatch.setattr(gossip_router, name, 0)  # no mesh at all: nothing is pushed
    a, b = Node(1), Node(2)

    async def scenario():
        await spread(b"replayed", a, b)  # b may have subscribed after it
        for data in (b"by hearsay", b"and again"):  # a heartbeat each
            await spread(data, a, b)
        assert b.heard == [b"replayed", b"by hearsay", b"and again"]

    swarm(a, b, lines=[(0, 1)])(scenario)


def test_an_answer_holds_each_message_once(monkeypatch: pytest.MonkeyPatch):
    sent: list[rpc_pb2.RPC] = []
    router = gossip_router.Router(print, list)
    monkeypatch.setattr(router, "pubsub", object())
    monkeypatch.setattr(router, "send_rpc", lambda peer, rpc: sent.append(rpc))
    message = rpc_pb2.Message(data=b"d", from_id=b"f", seqno=b"s", topicIDs=[TOPIC])
    router.mcache.put(message)
    trio.run(router.handle_iwant, rpc_pb2.ControlIWant(messageIDs=[b"fs", b"unknown"] * 200), ID(b"asker"))
    assert [list(rpc.publish) for rpc in sent] == [[message]]


def test_who_subscribes_again_and_again_gets_one_replay(monkeypatch: pytest.MonkeyPatch):
    replays: list[tuple[ID, str]] = []

    async def replay(self: object, peer: ID, topic: str) -> None:
        replays.append((peer, topic))

    monkeypatch.setattr(gossip_router.GossipSub, "send_recent_messages", replay)
    router = gossip_router.Router(print, list)
    for peer in (b"one", b"one", b"two"):
        trio.run(router.send_recent_messages, ID(peer), TOPIC)
    router.remove_peer(ID(b"one"))
    trio.run(router.send_recent_messages, ID(b"one"), TOPIC)
    assert replays == [(ID(peer), TOPIC) for peer in (b"one", b"two", b"one")]


def test_topics_rotate():
    a, b = Node(1), Node(2)
    later = TOPIC[:-1] + "7"

    async def scenario():
        await spread(b"old", a, b)
        for node in (a, b):
            await node.thread.set_topics([later, TOPIC])
        a.thread.publish(later, b"new")
        a.thread.publish(TOPIC, b"still old")
        await until(lambda: {b"new", b"still old"} <= set(b.heard))
        await b.thread.set_topics([later])
        a.thread.publish(TOPIC, b"too late")
        a.thread.publish(later, b"newer")
        await until(lambda: b"newer" in b.heard)
        assert b"too late" not in b.heard

    swarm(a, b, lines=[(0, 1)])(scenario)


def test_a_dial_that_leads_nowhere_or_to_another_peer_fails():
    a, b, c = Node(1), Node(2), Node(3)

    async def scenario():
        assert not await a.thread.dial(LOOPBACK, b.thread.local_port, c.thread.peer_id)
        assert not await a.thread.dial(LOOPBACK, 1, b.thread.peer_id)
        assert not await a.thread.dial(LOOPBACK, b.thread.local_port, "not a peer id")
        assert not await a.thread.dial("not an address", 1, b.thread.peer_id)
        await a.thread.disconnect("not a peer id")
        assert a.thread.alive
        assert await a.dial(b)
        assert await a.dial(b)  # connected already

    swarm(a, b, c)(scenario)


def test_a_lost_peer_is_noticed_and_can_be_dialled_again():
    a, b = Node(1), Node(2)

    async def scenario():
        await a.thread.disconnect(b.thread.peer_id)
        await a.thread.disconnect(b.thread.peer_id)
        await until(lambda: not a.thread.connected() and not b.thread.connected())
        assert await b.dial(a)
        await spread(b"back", a, b)

    swarm(a, b, lines=[(0, 1)])(scenario)


def test_connections_that_ended_leave_room_for_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gossip_host, "MAX_CONNECTIONS", 2)
    host = Node(1)

    async def greet(host, write):
        await write(rpc_pb2.RPC(publish=[envelope(host, host.get_id().to_bytes())]))

    async def scenario():
        for number in range(1, 6):
            async with stranger(host, greet):
                await until(lambda number=number: len(host.heard) == number)

    swarm(host)(scenario)


def test_a_dead_thread_is_noticed_and_another_started(monkeypatch: pytest.MonkeyPatch):
    a, b = Node(1), Node(2)

    def fail(self: object) -> None:
        raise ZeroDivisionError("a fault inside the library")

    async def scenario():
        with monkeypatch.context() as broken:
            broken.setattr(gossip_router.Router, "gossip_heartbeat", fail)
            await until(lambda: a.crashes and b.crashes)
        assert a.crashes == ["ZeroDivisionError: a fault inside the library"]
        assert a.counts["gossip_crashed"] == 1
        assert not a.thread.alive
        assert not a.thread.connected()
        assert a.thread.local_port == 0
        assert not a.thread.publish(TOPIC, b"lost")
        assert a.counts["gossip_publish_down"] == 1
        assert not await a.thread.dial(LOOPBACK, 1, b.thread.peer_id)
        for node in (a, b):
            await node.thread.start([TOPIC])
        assert await a.dial(b)
        await spread(b"risen", a, b)

    swarm(a, b, lines=[(0, 1)])(scenario)


def test_stopping_is_clean_and_can_be_repeated():
    before = set(threading.enumerate())
    a, b = Node(1), Node(2)

    async def scenario():
        await spread(b"hello", a, b)
        await a.thread.stop()
        await a.thread.stop()
        assert not a.thread.alive
        await until(lambda: not b.thread.connected())
        await a.thread.start([TOPIC])
        await a.thread.start([TOPIC])  # runs already
        assert await a.dial(b)
        await spread(b"again", a, b)

    swarm(a, b, lines=[(0, 1)])(scenario)
    assert {thread.name for thread in set(threading.enumerate()) - before} == set()
