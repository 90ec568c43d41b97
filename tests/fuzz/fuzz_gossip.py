"""What a gossip peer writes to its stream: frames, messages, subscriptions, control; whatever it is, nothing is raised.

The pubsub is a node's own, without a network: its only peer is the stream. Time stands still but for what it sleeps.
"""

import logging
from typing import Any

import fuzz_seeds as seeds
from fuzz_targets import REASON, Broken, Target

from shoal.protocol.libp2p import imports
from shoal.protocol.validity import forwardable

imports.load_gossip()

import trio  # noqa: E402
import trio.testing  # noqa: E402
from libp2p.crypto.ed25519 import create_new_key_pair  # noqa: E402
from libp2p.peer.id import ID  # noqa: E402
from libp2p.pubsub.pb import rpc_pb2  # noqa: E402
from libp2p.pubsub.pubsub import PUBSUB_SIGNING_PREFIX  # noqa: E402
from libp2p.pubsub.rpc_queue import RpcQueue  # noqa: E402
from libp2p.utils.varint import encode_varint_prefixed  # noqa: E402

from shoal.protocol.libp2p.gossip_host import make_host  # noqa: E402
from shoal.protocol.libp2p.gossip_intake import TOPICS_PER_PEER, GuardedPubsub  # noqa: E402
from shoal.protocol.libp2p.gossip_router import PROTOCOL, Router  # noqa: E402

logging.getLogger("libp2p").setLevel(logging.CRITICAL)  # as a node does: it writes a line for what peers do

TOPIC = "shoal/fuzzed"
PEER_KEYS = create_new_key_pair(bytes([3]) * 32)
PEER = ID.from_pubkey(PEER_KEYS.public_key)
OWN_SEED = bytes([4]) * 32
MOST_KEPT = 4096  # entries of any one memory after one case


class _Stream:
    """A peer's gossip stream: it gives its bytes and ends."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        self.muxed_conn = self
        self.peer_id = PEER

    async def read(self, count: int = -1) -> bytes:
        """The next bytes."""
        part = self._data[self._at :][: count if count >= 0 else None]
        self._at += len(part)
        return part

    async def reset(self) -> None:
        """The stream has ended."""


class _Alive:
    """Stands for the service's manager: what the pubsub starts runs within the case."""

    is_running = True

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    def run_task(self, work: Any, *arguments: Any, **_: Any) -> None:
        """Start something beside the reader."""
        self._nursery.start_soon(work, *arguments)


class _Pubsub(GuardedPubsub):
    """A node's own, whose peer cannot be disconnected: it is the stream."""

    life: _Alive

    @property
    def manager(self) -> Any:
        return self.life


def gossip(data: bytes) -> None:
    """All that a peer writes to its gossip stream."""
    counted: list[str] = []
    delivered: list[bytes] = []
    host = make_host(OWN_SEED, counted.append)
    router = Router(counted.append, lambda: None)
    rule = forwardable(seeds.SWARM.swarm_id)
    pubsub = _Pubsub(host, router, rule, lambda message, _: delivered.append(message))
    try:
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(_read, pubsub, router, data, clock=clock)
    finally:
        pubsub.seen_messages.stop()
    if not all(rule(message) for message in delivered):
        raise Broken("gossip delivers what its rule refuses")
    if not all(REASON.fullmatch(name) for name in counted):
        raise Broken(f"no counters: {set(counted)}")


async def _read(pubsub: _Pubsub, router: Router, data: bytes) -> None:
    async def disconnect(_: ID) -> None:
        """It is gone."""

    pubsub.host.disconnect = disconnect
    await _subscribed(pubsub, router)
    async with trio.open_nursery() as nursery:
        pubsub.life = _Alive(nursery)
        await pubsub.continuously_read_stream(_Stream(data))  # pyright: ignore[reportArgumentType]
    router.mesh_heartbeat()
    sizes = {
        "topics": sum(PEER in peers for peers in pubsub.peer_topics.values()) - TOPICS_PER_PEER,
        "back-offs": len(router.back_off) - 1,  # of the own topic
        "mesh": len(router.mesh) - 1,
        "budgets": len(pubsub._budgets) - 1,
        "queue": max(map(len, pubsub.peer_queues.values())) - MOST_KEPT,
    }
    if any(size > 0 for size in sizes.values()):
        raise Broken(f"a peer makes the pubsub keep more than it may: {sizes}")


async def _subscribed(pubsub: _Pubsub, router: Router) -> None:
    """The peer is connected, and the own topic is subscribed."""
    pubsub.peer_queues[PEER] = RpcQueue()
    router.add_peer(PEER, PROTOCOL)
    send, receive = trio.open_memory_channel[Any](64)
    pubsub.subscribed_topics_send[TOPIC], pubsub.subscribed_topics_receive[TOPIC] = send, receive  # pyright: ignore
    await router.join(TOPIC)


def _message(data: bytes, number: int) -> rpc_pb2.Message:
    message = rpc_pb2.Message(data=data, from_id=PEER.to_bytes(), seqno=number.to_bytes(8, "big"), topicIDs=[TOPIC])
    message.signature = PEER_KEYS.private_key.sign(PUBSUB_SIGNING_PREFIX.encode() + message.SerializeToString())
    return message


def _framed(*parts: rpc_pb2.RPC) -> bytes:
    return b"".join(encode_varint_prefixed(part.SerializeToString()) for part in parts)


def _control() -> rpc_pb2.ControlMessage:
    return rpc_pb2.ControlMessage(
        ihave=[rpc_pb2.ControlIHave(topicID=TOPIC, messageIDs=[b"1", b"2"])],
        iwant=[rpc_pb2.ControlIWant(messageIDs=[PEER.to_bytes() + bytes(8)])],
        graft=[rpc_pb2.ControlGraft(topicID=TOPIC)],
        prune=[rpc_pb2.ControlPrune(topicID=TOPIC, backoff=5)],
    )


_SUBSCRIBED = rpc_pb2.RPC(subscriptions=[rpc_pb2.RPC.SubOpts(subscribe=True, topicid=TOPIC)])
GOSSIPED = [
    _framed(_SUBSCRIBED, rpc_pb2.RPC(publish=[_message(seeds.ANNOUNCEMENTS[0], 0)])),
    _framed(rpc_pb2.RPC(publish=[_message(each, number) for number, each in enumerate(seeds.ANNOUNCEMENTS)])),
    _framed(_SUBSCRIBED, rpc_pb2.RPC(control=_control()), rpc_pb2.RPC(control=_control())),
]
GOSSIP = Target("gossip", GOSSIPED, gossip, ())
