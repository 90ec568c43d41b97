"""Which gossip messages pass: one stateless rule, a budget for each forwarder, every payload once.

Import this module only with the protobuf cure of `imports` in force.

A message that breaks the rule is dropped and its forwarder scored down, since an honest node applies the same rule
before it forwards. The rule must therefore give the same answer everywhere: size, form and signatures count, clocks and
memory do not. What depends on memory (seen before, over budget, another topic) is dropped without blame.
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import hashlib
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, cast

import trio
from google.protobuf.message import DecodeError
from libp2p.abc import INetStream
from libp2p.exceptions import BaseLibp2pError, ParseError
from libp2p.io.exceptions import MessageTooLarge
from libp2p.network.connection.exceptions import RawConnError
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.pubsub.rpc_queue import RpcQueue
from libp2p.pubsub.validators import signature_validator
from libp2p.utils.varint import read_varint_prefixed_bytes_limited

from shoal.protocol.libp2p.gossip_host import QuietHost
from shoal.protocol.libp2p.gossip_router import Router
from shoal.protocol.limits import DEFAULT_LIMITS

OUTBOUND_QUEUE = 512  # RPCs for one peer; the library's 32 lose a burst without a word
SEEN_PAYLOADS = 16_384
MAX_CONTROL = 2_048  # entries in the control part of one RPC
MAX_TOPIC = 64  # characters
MAX_BACKOFF = 300  # seconds that a peer may ask to be left alone
TOPICS_PER_PEER = 64  # three epochs of 16 shards
RATE, BURST = 100.0, 400.0  # what one forwarder may cost: a second, at once; 1 is a message to be verified
PAUSE = 0.5  # seconds without reading from a forwarder over budget; 5 s of it would break its stream
BLAMED = frozenset({"gossip_malformed", "gossip_bad_signature", "gossip_invalid"})
_ED25519_ID = bytes.fromhex("002408011220")  # identity multihash of an Ed25519 public key


class Budget:
    """A token bucket: what one forwarder may cost."""

    def __init__(self) -> None:
        self._tokens, self._at = BURST, time.monotonic()

    def spend(self, cost: float) -> bool:
        """Take `cost` tokens; False when there are too few."""
        now = time.monotonic()
        self._tokens = min(BURST, self._tokens + (now - self._at) * RATE)
        self._at = now
        if self._tokens < cost:
            return False
        self._tokens -= cost
        return True


def well_formed(message: rpc_pb2.Message) -> bool:
    """Whether a message has the one form that nodes send; checking signatures of other forms can raise."""
    origin = bytes(message.from_id)
    return (
        len(message.data) <= DEFAULT_LIMITS.announcement_bytes
        and len(origin) == len(_ED25519_ID) + 32
        and origin.startswith(_ED25519_ID)
        and len(message.seqno) == 8
        and len(message.signature) == 64
        and message.key in (b"", origin[2:])
    )


class GuardedPubsub(Pubsub):
    """Pubsub with an intake of its own: bounded, judged by one rule, never ended by what a peer sends."""

    def __init__(
        self,
        host: QuietHost,
        router: Router,
        rule: Callable[[bytes], bool | None],
        deliver: Callable[[bytes, ID], None],
    ) -> None:
        super().__init__(host, router, strict_signing=True, max_subscriptions_per_peer=TOPICS_PER_PEER)
        self.counter = time.time_ns()  # the default, seconds, mutes a node that comes back quickly under its old key
        self._gossip, self._rule, self._deliver, self._count = router, rule, deliver, host.count
        self._budgets: OrderedDict[ID, Budget] = OrderedDict()
        self._locks: weakref.WeakKeyDictionary[INetStream, trio.Lock] = weakref.WeakKeyDictionary()
        self._payloads: OrderedDict[bytes, None] = OrderedDict()
        self._opening: set[ID] = set()

    async def continuously_read_stream(self, stream: INetStream) -> None:
        """Read a peer's RPCs until its stream ends; bytes that are no RPC end the connection to the peer."""
        peer = stream.muxed_conn.peer_id
        try:
            while self.manager.is_running:
                frame = await read_varint_prefixed_bytes_limited(stream, self.max_inbound_rpc_size)
                rpc = rpc_pb2.RPC()
                rpc.ParseFromString(frame)
                await self._take(peer, rpc)
        except (DecodeError, ParseError, MessageTooLarge):
            self._count("gossip_malformed")
            await self.host.disconnect(peer)
        except (BaseLibp2pError, RawConnError):  # the stream or its connection is gone; the network tells the router
            await stream.reset()

    async def push_msg(self, msg_forwarder: ID, msg: rpc_pb2.Message) -> None:
        """Judge one message; deliver and forward what passes. There is no await between the judgement and the mark."""
        message_id = self.get_message_id(msg)
        if self.seen_messages.has(message_id):
            return
        own = msg_forwarder == self.my_id
        fault = self._own_fault(msg) if own else self._fault(msg_forwarder, msg)
        if fault:
            self._count("gossip_own_refused" if own else fault)
            if fault in BLAMED and not own:
                self._gossip.blame(msg_forwarder, msg.topicIDs[0])
            return
        self.seen_messages.add(message_id)
        self._remember(hashlib.sha256(msg.data).digest())
        if not own:
            self._deliver(msg.data, msg_forwarder)
        await self.router.publish(msg_forwarder, msg)

    async def _handle_new_peer(self, peer_id: ID) -> None:
        """Open the stream to a new peer, once: two connections at one time would open two, and lose a queue."""
        if peer_id in self._opening:
            return
        self._opening.add(peer_id)
        try:
            await super()._handle_new_peer(peer_id)
        finally:
            self._opening.discard(peer_id)

    def _handle_dead_peer(self, peer_id: ID) -> None:
        """Forget a peer whose stream is gone; the library keeps the score of one that it never added."""
        super()._handle_dead_peer(peer_id)
        if not self._peer_is_connected(peer_id):
            self._gossip.forget(peer_id)

    async def handle_sending_messages(self, peer_id: ID, stream: INetStream, queue: RpcQueue) -> None:
        """Send what is queued for a peer, from a queue that holds a burst."""
        cast(Any, queue)._queue.max_size = OUTBOUND_QUEUE
        await super().handle_sending_messages(peer_id, stream, queue)

    async def write_msg(self, stream: INetStream, rpc_msg: rpc_pb2.RPC) -> bool:
        """Write one RPC whole: a replay and the queue write to the same stream, and a write can be cut in two."""
        async with self._locks.setdefault(stream, trio.Lock()):
            return await super().write_msg(stream, rpc_msg)

    def congested(self) -> bool:
        """Whether no peer can be sent to at once; one peer that does not read is not enough."""
        return bool(self.peer_queues) and min(len(queue) for queue in self.peer_queues.values()) >= OUTBOUND_QUEUE // 16

    def _fault(self, forwarder: ID, message: rpc_pb2.Message) -> str:
        """Why a peer's message is dropped, cheapest reason first; empty when it passes."""
        topic = message.topicIDs[0] if len(message.topicIDs) == 1 else ""
        if topic not in self.topic_ids:
            return "gossip_other_topic"
        if not self._gossip.trusts(forwarder, topic):
            return "gossip_distrusted"
        if not self._budget(forwarder).spend(1):
            return "gossip_flood"
        if not well_formed(message):
            return "gossip_malformed"
        if not signature_validator(message):
            return "gossip_bad_signature"
        if message.from_id == self.my_id.to_bytes():
            return "gossip_echo"  # our own, from before a restart
        if hashlib.sha256(message.data).digest() in self._payloads:
            self.seen_messages.add(self.get_message_id(message))
            return "gossip_repeated"  # one payload under a new envelope: forwarding it would have no end
        passes = self._rule(message.data)
        return "" if passes else "gossip_ignored" if passes is None else "gossip_invalid"

    def _own_fault(self, message: rpc_pb2.Message) -> str:
        """Why an own message is not sent: peers would drop it, and score this node down."""
        return "" if well_formed(message) and self._rule(message.data) else "gossip_invalid"

    async def _take(self, peer: ID, rpc: rpc_pb2.RPC) -> None:
        """Work off one RPC in place: a reader that works is the back-pressure on its sender."""
        budget = self._budget(peer)
        for message in rpc.publish:
            await self.push_msg(peer, message)
            await trio.lowlevel.checkpoint()
        for entry in rpc.subscriptions:
            if len(entry.topicid) > MAX_TOPIC or not budget.spend(1):
                self._count("gossip_subscription_refused")
            else:
                self.handle_subscription(peer, entry)
        if rpc.HasField("control"):
            control = self._relevant(rpc.control)
            await self.router.handle_rpc(rpc_pb2.RPC(control=control), peer)
        if not budget.spend(1):
            await trio.sleep(PAUSE)

    def _relevant(self, control: rpc_pb2.ControlMessage) -> rpc_pb2.ControlMessage:
        """The part of a control message that is about this node's topics: the library keeps state for any name."""
        topics = self.topic_ids
        kept = rpc_pb2.ControlMessage(
            ihave=[entry for entry in control.ihave if entry.topicID in topics],
            iwant=control.iwant,
            graft=[entry for entry in control.graft if entry.topicID in topics],
            prune=[
                rpc_pb2.ControlPrune(topicID=entry.topicID, backoff=min(entry.backoff, MAX_BACKOFF))
                for entry in control.prune  # without the peers that it names
                if entry.topicID in topics
            ],
        )
        ids = sum(len(entry.messageIDs) for entry in [*kept.ihave, *kept.iwant])
        if ids + len(kept.graft) + len(kept.prune) + len(kept.iwant) > MAX_CONTROL:
            self._count("gossip_control_too_large")
            return rpc_pb2.ControlMessage()
        return kept

    def _budget(self, peer: ID) -> Budget:
        """The budget of a forwarder, whichever of its streams it uses."""
        if peer not in self._budgets:
            self._budgets[peer] = Budget()
            while len(self._budgets) > 1024:
                self._budgets.popitem(last=False)
        return self._budgets[peer]

    def _remember(self, digest: bytes) -> None:
        self._payloads[digest] = None
        while len(self._payloads) > SEEN_PAYLOADS:
            self._payloads.popitem(last=False)
