"""What the gate remembers between two announcements: accounts, what was seen, who is who. All of it is bounded."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from shoal.defenses.admissions import Admissions
from shoal.defenses.config import DefenseConfig
from shoal.defenses.equivocation import Equivocations
from shoal.defenses.grouped import GroupedMap
from shoal.defenses.newcomers import NEWCOMERS, Newcomers, PrefixOf
from shoal.defenses.quota import HeldAnnouncements, KeyQuota, SenderQuota
from shoal.defenses.verdict import Counters
from shoal.protocol.envelope import Header
from shoal.protocol.manifest import Manifest, SwarmLimits
from shoal.protocol.sequence import SequenceWindow


class GateMemory:
    """Each part bounds itself, and nobody's new names make it forget what those of others have sent."""

    def __init__(self, manifest: Manifest, config: DefenseConfig, counters: Counters, prefix_of: PrefixOf) -> None:
        self._counters = counters
        self.admissions = Admissions(manifest, config, counters)
        self.newcomers = Newcomers(config, counters, prefix_of)
        self.equivocations = Equivocations(config, counters)
        self.senders = SenderQuota(config, counters)
        self.keys = KeyQuota(config, counters, _per_round(manifest.limits))
        self.held = HeldAnnouncements(config)
        self._seen: GroupedMap[str, bytes, int] = GroupedMap(  # by operator
            config.seen, config.seen, partial(counters.add, "header", "evicted_seen")
        )
        # Newcomers have a window of their own: however many come, no known key's numbers are forgotten for them.
        self._sequences, self._new_sequences = SequenceWindow(), SequenceWindow()
        self._forgotten = 0

    def adopt(self, manifest: Manifest) -> None:
        """Judge by a new revision from now on."""
        self.admissions.adopt(manifest)
        self.keys.per_round = _per_round(manifest.limits)

    def known(self, digest: bytes) -> bool:
        """Whether an announcement of this digest was seen, or is held."""
        return self._seen.get(digest) is not None or digest in self.held

    def see(self, operator: str, digest: bytes, round: int) -> None:
        """Remember an announcement for as long as its round is fresh, and a little longer."""
        self._seen.put(operator, digest, round)

    def accept_sequence(self, operator: str, header: Header) -> None:
        """Record a number of a key; raises Malformed for one that may not come."""
        window = self._new_sequences if operator == NEWCOMERS else self._sequences
        window.accept(header.key, header.sequence, header.policy_version)
        evicted = self._sequences.evicted + self._new_sequences.evicted
        if evicted > self._forgotten:
            self._counters.add("header", "evicted_sequences", evicted - self._forgotten)
            self._forgotten = evicted

    def begin(self, current_round: int, oldest_round: int) -> None:
        """Begin a round: new accounts for senders, and what is older than `oldest_round` is forgotten."""
        self.senders.new_round()
        self.keys.expire(oldest_round)
        self.admissions.expire(oldest_round)
        self.newcomers.expire(current_round)
        self.equivocations.expire(oldest_round)
        self._seen.expire(lambda _, round: round >= oldest_round)

    def state(self) -> dict[str, Any]:
        """Return everything remembered as plain types."""
        return {
            "seen": [[operator, digest, number] for operator, digest, number in self._seen.items()],
            "senders": self.senders.state(),
            "keys": self.keys.state(),
            "held": self.held.state(),
            "sequences": self._sequences.state(),
            "new_sequences": self._new_sequences.state(),
            "admissions": self.admissions.state(),
            "newcomers": self.newcomers.state(),
            "equivocations": self.equivocations.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned; a checkpoint of an earlier version lacks some of it."""
        seen: list[list[Any]] = [row if len(row) == 3 else ["", *row] for row in state["seen"]]
        self._seen.replace((str(operator), bytes(digest), int(number)) for operator, digest, number in seen)
        self.senders.restore(state["senders"])
        self.keys.restore(state["keys"])
        self.held.restore(state["held"])
        self._sequences.restore(state["sequences"])
        self._new_sequences.restore(state.get("new_sequences", [0, []]))
        self._forgotten = self._sequences.evicted + self._new_sequences.evicted
        self.admissions.restore(state.get("admissions", []))
        self.newcomers.restore(state.get("newcomers", []))
        self.equivocations.restore(state.get("equivocations", {"witnessed": [], "proofs": []}))


def _per_round(limits: SwarmLimits) -> tuple[int, int]:
    return limits.rollouts_per_key_per_round, limits.bytes_per_key_per_round
