"""Sealing own sets and giving them to the swarm; an attacker's node bends them here, and nowhere else."""

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.defenses.attacks import Attack, Draft, Outgoing
from shoal.defenses.verdict import Counters
from shoal.node.sets import OwnSet
from shoal.node.witness import NO_WITNESS, Witness
from shoal.protocol.columns import pack_floats
from shoal.protocol.envelope import ANNOUNCEMENT_SIZE, PROTOCOL_VERSION, Header, Kind, payload_hash, seal
from shoal.protocol.errors import ProtocolError
from shoal.protocol.identity import Identity
from shoal.protocol.sequence import SequenceCounter
from shoal.protocol.transport import Transport
from shoal.protocol.wire import (
    FINISH_EOS,
    FINISH_LENGTH,
    PromptName,
    Rollout,
    SamplerSettings,
    check_rollout,
    encode_rollout,
)

RECENT = 256  # announcements in the answer to a late joiner: about 60 KB


@dataclass(frozen=True, slots=True)
class Claims:
    """What a node says of itself in every rollout: swarm, lineage and tokenizer hashes, sampler settings."""

    swarm_id: bytes
    lineage: bytes
    tokenizer: bytes
    sampler: SamplerSettings


class Publisher:
    """Seals rollouts, serves their blobs for as long as peers may want them, and announces them."""

    def __init__(
        self,
        identity: Identity,
        transport: Transport,
        sequences: SequenceCounter,
        claims: Claims,
        counters: Counters,
    ) -> None:
        self.identity = identity
        self.transport = transport
        self.sequences = sequences
        self.claims = claims
        self.counters = counters
        self.witness: Witness = NO_WITNESS
        self.version_base = 0  # added to versions: after a crash they must not fall below what was published before
        self.attack: Attack | None = None
        self.attack_rng = random.Random(0)  # replaced with the attack's own seeded one
        self.served: deque[tuple[int, bytes, bytes]] = deque()  # (round, digest, announcement), oldest first

    def corrupt(self, attack: Attack, rng: random.Random) -> None:
        """Make this the publisher of an attacker, who may sign anything with its own key."""
        attack.arm(lambda header: seal(self.identity, header).encode())
        self.attack, self.attack_rng = attack, rng

    async def publish(self, own: OwnSet) -> None:
        """Seal one own set and announce it."""
        try:
            messages = self._messages(own)
        except ProtocolError as error:  # an own text that no peer would accept, e.g. one beyond the caps
            self.counters.add("publish", f"unfit_{error.reason}")
            return
        for outgoing in messages:
            blob_digest = payload_hash(outgoing.blob)
            self.transport.offer(blob_digest, outgoing.blob)
            self.served.append((own.round, blob_digest, outgoing.announcement))
            self.witness.published(own, outgoing.announcement, outgoing.blob)
            await self.transport.announce(outgoing.announcement)
            self.counters.add("publish", "announced")

    def forget(self, before_round: int, current: int) -> None:
        """Stop serving what is too old for any peer to train on, and what a clock that ran ahead dated after now."""
        kept = deque(item for item in self.served if before_round <= item[0] <= current)
        if len(kept) == len(self.served):
            return
        still = {digest for _, digest, _ in kept}
        for _, digest, _ in self.served:
            if digest not in still:
                self.transport.withdraw(digest)
        self.counters.add("publish", "withdrawn", len(self.served) - len(kept))
        self.served = kept

    def recent(self) -> bytes:
        """Return the latest announcements whose blobs are still served, in a row: what a late joiner asks for."""
        sent = [announcement for _, _, announcement in self.served if len(announcement) == ANNOUNCEMENT_SIZE]
        return b"".join(sent[-RECENT:])

    def _messages(self, own: OwnSet) -> Sequence[Outgoing]:
        if self.attack is None:
            texts = [completion.text for completion in own.completions]
            check_rollout(self._rollout(own, texts, own.rewards))
            return [self._seal(own, texts, own.rewards)]
        draft = Draft(
            prompt_text=own.prompt.text,
            answer=own.prompt.answer,
            task=own.prompt.task,
            completions=tuple(completion.text for completion in own.completions),
            rewards=own.rewards,
            correct=tuple(reward == 1.0 for reward in own.rewards),
            round=own.round,
        )
        draft = self.attack.poison(draft, self.attack_rng)
        return self.attack.messages(self._seal(own, draft.completions, draft.rewards), self.attack_rng)

    def _seal(self, own: OwnSet, texts: Sequence[str], rewards: Sequence[float]) -> Outgoing:
        """Encode, sign and pair one rollout with its announcement; texts that are not our own carry no log-probs."""
        blob = encode_rollout(self._rollout(own, texts, rewards))
        header = Header(
            kind=Kind.ROLLOUT,
            version=PROTOCOL_VERSION,
            swarm_id=self.claims.swarm_id,
            key=self.identity.key,
            round=own.round,
            policy_version=own.policy_version + self.version_base,
            prompt_hash=own.prompt_hash,
            sequence=self.sequences.next(),
            payload_length=len(blob),
            payload_hash=payload_hash(blob),
        )
        return Outgoing(seal(self.identity, header).encode(), blob)

    def _rollout(self, own: OwnSet, texts: Sequence[str], rewards: Sequence[float]) -> Rollout:
        # A text that was put in the place of a sampled one ends where it ends.
        finished = [c.finished or c.text != text for c, text in zip(own.completions, texts, strict=False)]
        finished += [True] * (len(texts) - len(finished))
        means = [math.fsum(c.logps) / len(c.logps) if c.logps else 0.0 for c in own.completions]
        means += [0.0] * (len(texts) - len(means))
        derived = own.derived
        return Rollout(
            prompt=PromptName(derived.scope, derived.slot, derived.task, derived.seed, derived.index),
            prompt_hash=own.prompt_hash,
            lineage=self.claims.lineage,
            tokenizer=self.claims.tokenizer,
            sampler=self.claims.sampler,
            round=own.round,
            policy_version=own.policy_version + self.version_base,
            completions=tuple(texts),
            finish=bytes(FINISH_EOS if done else FINISH_LENGTH for done in finished[: len(texts)]),
            token_ids=(),
            logps=(),
            mean_logps=pack_floats(min(mean, 0.0) for mean in means[: len(texts)]),
            rewards=pack_floats(0.0 if math.isnan(reward) else reward for reward in rewards),
        )
