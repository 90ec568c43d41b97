"""GossipSub with settings for small, rare, precious messages; what it cannot send is counted.

Import this module only with the protobuf cure of `imports` in force.
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.score import ScoreParams, TopicScoreParams

from shoal.protocol.libp2p.gossip_host import Count

PROTOCOL = TProtocol("/meshsub/1.1.0")  # 1.2 and later cost twice the CPU for messages as small as these
DEGREE, DEGREE_LOW, DEGREE_HIGH = 6, 4, 12  # mesh peers of a topic
MAX_IWANT = 256  # ids of one IWANT: the answer must fit the queue of a peer that never reads


class Router(GossipSub):
    """GossipSub that tells when peers come and go, and counts what it cannot send."""

    def __init__(self, count: Count, changed: Callable[[], None]) -> None:
        invalid = TopicScoreParams(weight=1.0, cap=100, decay=0.95)  # weights are positive in this library
        score = ScoreParams(
            p4_invalid_messages=invalid,
            publish_threshold=-10,
            gossip_threshold=-10,
            graylist_threshold=-20,
            accept_px_threshold=math.inf,  # peers' peer lists are never followed
        )
        super().__init__(
            [PROTOCOL],
            degree=DEGREE,
            degree_low=DEGREE_LOW,
            degree_high=DEGREE_HIGH,
            gossip_window=5,
            gossip_history=10,
            heartbeat_interval=1,  # seconds; 120 by default
            score_params=score,
            max_pending_messages_per_peer=1,  # for a peer whose subscription is unknown; the replay below serves it
            pending_messages_ttl=2.0,
            adaptive_gossip_enabled=False,
            spam_protection_enabled=False,
            eclipse_protection_enabled=False,
        )
        self._count, self._changed = count, changed
        self._replayed: set[tuple[ID, str]] = set()

    def add_peer(self, peer_id: ID, protocol_id: TProtocol | None) -> None:
        """A peer's gossip stream is open."""
        super().add_peer(peer_id, protocol_id)
        self._changed()

    def remove_peer(self, peer_id: ID) -> None:
        """A peer's gossip stream is gone."""
        super().remove_peer(peer_id)
        self._replayed = {known for known in self._replayed if known[0] != peer_id}
        self._changed()

    async def send_recent_messages(self, peer_id: ID, topic: str) -> None:
        """Replay the last seconds to a new subscriber, once: subscribing again and again must not multiply traffic."""
        if (peer_id, topic) not in self._replayed:
            self._replayed.add((peer_id, topic))
            await super().send_recent_messages(peer_id, topic)

    async def emit_iwant(self, msg_ids: Sequence[bytes], to_peer: ID) -> None:
        """Ask for missing messages; what is over the cap is asked for at the next heartbeat."""
        await super().emit_iwant(msg_ids[:MAX_IWANT], to_peer)

    async def handle_iwant(self, iwant_msg: rpc_pb2.ControlIWant, sender_peer_id: ID) -> None:
        """Answer a request, each message once: repeated ids would turn one small request into megabytes."""
        ids = list(dict.fromkeys(iwant_msg.messageIDs))[:MAX_IWANT]
        await super().handle_iwant(rpc_pb2.ControlIWant(messageIDs=ids), sender_peer_id)

    def mesh_heartbeat(self) -> tuple[defaultdict[ID, list[str]], defaultdict[ID, list[str]]]:
        """Each heartbeat, first drop what the library keeps for ever: a time for each message, and old back-offs."""
        self.recent_message_deliveries.clear()
        now = time.time()
        waiting = {
            topic: {peer: end for peer, end in ends.items() if end > now} for topic, ends in self.back_off.items()
        }
        self.back_off = {topic: ends for topic, ends in waiting.items() if ends}
        return super().mesh_heartbeat()

    def forget(self, peer_id: ID) -> None:
        """Drop the score of a peer that is gone and may never have been added."""
        if self.scorer is not None:
            self.scorer.remove_peer(peer_id)

    def blame(self, peer_id: ID, topic: str) -> None:
        """Score a forwarder down for a message that it should have dropped."""
        if self.scorer is not None:
            self.scorer.on_invalid_message(peer_id, topic)

    def trusts(self, peer_id: ID, topic: str) -> bool:
        """Whether a forwarder's score allows its messages on this topic."""
        return self.scorer is None or self.scorer.allow_publish(peer_id, [topic])

    def _handle_dropped_rpc(self, peer_id: ID, rpc: rpc_pb2.RPC, reason: str) -> None:
        super()._handle_dropped_rpc(peer_id, rpc, reason)
        self._count("gossip_outbound_full")
