"""From foreign sets to sets that may be trained on: known questions, text policy, copies, local rewards, a hard share.

The whole lane is one operator. It never touches the reputation of signed keys, nor what the screen remembers of them:
an unsigned text can neither condemn a signed one as its copy, nor be vouched for by one.
"""

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from shoal.defenses.bounded import BoundedMap
from shoal.defenses.config import DefenseConfig
from shoal.defenses.duplicates import DuplicateMemory, Publication
from shoal.defenses.text import TextRules, check_text
from shoal.defenses.verdict import Counters, unscorable
from shoal.node.bridge.questions import Scorable
from shoal.node.bridge.wire import ForeignSet
from shoal.node.config import Mixing
from shoal.node.regrade import MOST_KILLED
from shoal.node.sets import OwnSet, PeerCompletion, PeerSet, reward_of
from shoal.protocol.manifest_rules import UNSIGNED_OPERATOR
from shoal.protocol.prompts import prompt_hash
from shoal.trainer.verify import KILLS

MUTE_AFTER = 3  # offences
MUTED_ROUNDS = 16
PEERS_REMEMBERED = 4096
SETS_PER_PEER = 4  # of one value; the rest of it is not looked at
DRAWS_PER_SET = 4


@dataclass(frozen=True, slots=True)
class UnsignedSource:
    """Where a set of the lane came from; takes the place of a pointer. `key` is a hash of the peer id, no public key.

    Round, received round and policy version are this node's terms: of the sender's there is no proof.
    """

    peer: str
    round: int
    received_round: int
    prompt_hash: bytes
    arrival: int
    sequence: int = 0
    policy_version: int = 0
    operator: str = UNSIGNED_OPERATOR

    @property
    def key(self) -> bytes:
        """32 bytes that name the peer id and that no signature can be made for."""
        return lane_key(self.peer)


def lane_key(peer: str) -> bytes:
    """Return the name of a peer id among the keys of sources."""
    return hashlib.sha256(b"shoal/bridge-peer/1" + peer.encode("utf-8")).digest()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A set that was read and whose question is known; `round` is the other swarm's."""

    peer: str
    round: int
    foreign: ForeignSet
    scorable: Scorable


@dataclass(frozen=True, slots=True)
class Moment:
    """When sets are taken: this node's round, the age of a round of the other swarm (None: not used), and how many.

    `asked` are the prompt hashes that a joined mix can use, None when any will do.
    """

    round: int
    age: Callable[[int], int | None]
    most: int
    asked: frozenset[bytes] | None = None


@dataclass(slots=True)
class Judged:
    """The sets of one pass, the candidates that were looked at for them, and the peers that offended."""

    sets: list[PeerSet] = field(default_factory=list[PeerSet])
    looked_at: list[Candidate] = field(default_factory=list[Candidate])
    offenders: list[str] = field(default_factory=list[str])


class Mutes:
    """Peer ids that broke a rule too often. Nobody proves an id there: to be muted costs its bearer the lane only."""

    def __init__(self, counters: Counters) -> None:
        self._offences: BoundedMap[str, tuple[int, int]] = BoundedMap(
            PEERS_REMEMBERED, partial(counters.add, "bridge", "evicted_offender")
        )
        self._counters = counters

    def offend(self, peer: str, round: int) -> None:
        """Count one offence in a round of this node."""
        count = (self._offences.get(peer) or (0, 0))[0] + 1
        if count == MUTE_AFTER:
            self._counters.add("bridge", "muted")
        self._offences.put(peer, (count, round))

    def muted(self, peer: str, round: int) -> bool:
        """Return whether a peer id is muted; the time is over MUTED_ROUNDS after its last offence."""
        count, last = self._offences.get(peer) or (0, 0)
        if count and round - last >= MUTED_ROUNDS:
            self._offences.pop(peer)
            return False
        return count >= MUTE_AFTER


class _LaneCounters(Counters):
    """Counts what the memory of copies counts under the lane's own name, apart from signed peers."""

    def __init__(self, behind: Counters) -> None:
        super().__init__()
        self._behind = behind

    def add(self, layer: str, reason: str, count: int = 1) -> None:
        """Count under "bridge"."""
        self._behind.add("bridge", f"{layer}_{reason}", count)


class Lane:
    """Judges candidates; pure computing, one call at a time, for the thread that grades."""

    def __init__(self, mixing: Mixing, share: float, special_tokens: tuple[str, ...], counters: Counters) -> None:
        self.mixing, self.special_tokens, self.counters = mixing, special_tokens, counters
        self.completions = mixing.group_size  # that a set must have
        self.budget = share * mixing.external  # of sets of full weight in one pass
        self._duplicates = DuplicateMemory(DefenseConfig(), _LaneCounters(counters))
        self._copy_chars = DefenseConfig().copy_chars
        self._arrivals = 0

    def remember_own(self, own: Sequence[OwnSet]) -> None:
        """Note own completions: whoever brings them back through the lane is a copier."""
        for own_set in own:
            texts = [completion.text for completion in own_set.completions]
            self._duplicates.remember_own(own_set.prompt_hash, texts, self._copy_chars)

    def draw(self, candidates: Sequence[Candidate], most: int, rng: random.Random) -> list[Candidate]:
        """Return candidates in the order in which to judge them: each peer's first before any peer's second."""
        piles: dict[str, list[Candidate]] = {}
        for candidate in candidates:
            piles.setdefault(candidate.peer, []).append(candidate)
        for pile in piles.values():
            rng.shuffle(pile)
        drawn: list[Candidate] = []
        for turn in range(max(map(len, piles.values()), default=0)):
            peers = sorted(peer for peer, pile in piles.items() if len(pile) > turn)
            rng.shuffle(peers)
            drawn.extend(piles[peer][turn] for peer in peers)
        return drawn[: DRAWS_PER_SET * self.places(most)]

    def places(self, most: int) -> int:
        """Return how many sets of the lane one pass may hold: its share of J, rounded down, but one at least."""
        return min(most, max(1, int(self.budget))) if self.budget > 0 else 0

    def sets(self, drawn: Sequence[Candidate], moment: Moment) -> Judged:
        """Judge candidates in their order until the places of one pass are taken.

        The weights of all sets together are at most share * J: with a budget below one set, that one weighs less.
        """
        judged = Judged()
        for candidate in drawn:
            if len(judged.sets) == self.places(moment.most):
                break
            judged.looked_at.append(candidate)
            age = moment.age(candidate.round)
            if age is None:
                self.counters.add("bridge", "stale")
                continue
            outcome = self._judge(candidate, moment, age)
            if isinstance(outcome, PeerSet):
                judged.sets.append(outcome)
            elif outcome:
                judged.offenders.append(candidate.peer)
        if judged.sets:
            self.counters.add("bridge", "used", len(judged.sets))
        return judged

    def _judge(self, candidate: Candidate, moment: Moment, age: int) -> PeerSet | bool:
        """Return the set, or whether its peer offended; every refusal is counted."""
        texts, prompt = candidate.foreign.completions, candidate.scorable.prompt
        name = prompt_hash(prompt.text)
        if moment.asked is not None and name not in moment.asked:
            return self._refuse("not_asked", False)
        if len(texts) != self.completions:
            return self._refuse("other_group_size", False)
        max_chars = candidate.scorable.registry.task(prompt.task).max_chars
        rules = TextRules(max_chars, max_tokens=0, special_tokens=self.special_tokens, decode_ids=None)
        for text in texts:
            verdict = check_text(text, None, rules)
            if not verdict.usable:
                return self._refuse(verdict.reason, True)
        self._arrivals += 1
        # counted down: no arrival of a pointer is ever equal
        source = UnsignedSource(candidate.peer, moment.round - age, moment.round, name, -self._arrivals)
        publication = Publication(name, source.key, (moment.round, self._arrivals))
        verdicts = self._duplicates.judge(publication, texts, self._copy_chars)
        kept = [row for row, verdict in enumerate(verdicts) if verdict.usable]
        if 2 * len(kept) < len(texts):
            return self._refuse(next(verdict.reason for verdict in verdicts if not verdict.usable), True)
        if len(kept) < len(texts):
            self.counters.add("bridge", "copied_row", len(texts) - len(kept))
        return self._graded(source, candidate, kept)

    def _graded(self, source: UnsignedSource, candidate: Candidate, kept: Sequence[int]) -> PeerSet | bool:
        """Grade by this node's own verifier. That a completion ended by itself, which this wire cannot say, is not
        assumed: no end is trained."""
        prompt, texts = candidate.scorable.prompt, candidate.foreign.completions
        scores = candidate.scorable.grader.grade([(prompt, texts[row]) for row in kept], most_killed=MOST_KILLED)
        for score in scores:
            if score.reward is None:
                self.counters.add("bridge", unscorable(score.reason).reason)
        if sum(score.reason in KILLS for score in scores) >= MOST_KILLED:
            return self._refuse("verifier_killed", True)
        weight = min(1.0, self.budget)  # beyond one set the number of sets keeps the share
        completions = tuple(
            PeerCompletion(row, texts[row], False, reward_of(score), weight)
            for row, score in zip(kept, scores, strict=True)
        )
        peer = PeerSet(source, prompt, completions)
        if self.mixing.mix == "whole" and peer.uniform:
            return self._refuse("no_variance", False)
        return peer

    def _refuse(self, reason: str, offence: bool) -> bool:
        self.counters.add("bridge", reason)
        return offence
