"""Equivocation: two headers with one sequence number, both validly signed by one key. It proves itself.

An honest node commits its numbers to the disk before it uses them and never signs two headers under one. So whoever
sees two knows all there is to know, and needs nobody's word: gossip carries both announcements to everybody, and each
node compares for itself. There is no message that accuses, hence no false accusation: only the holder of a key can make
the proof against it. What counts is the header; one header signed twice, or under another form of the signature, is the
same statement.

The ban is the key's. A key that takes its place, by the founder's list or a new invite, begins anew, as does whatever
key its owner makes for himself; evidence about the operator as a whole stays where reputation keeps it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from shoal.defenses.bounded import BoundedMap
from shoal.defenses.config import DefenseConfig
from shoal.defenses.grouped import GroupedMap
from shoal.defenses.verdict import Counters
from shoal.protocol.envelope import Announcement


@dataclass(frozen=True, slots=True)
class Proof:
    """Two announcements of one key, each validly signed, with one sequence number and different headers."""

    first: Announcement
    second: Announcement

    @property
    def key(self) -> bytes:
        """The key that contradicted itself."""
        return self.first.header.key


class Equivocations:
    """Keeps the announcements that are fresh, compares each new one with them, and bans who contradicts itself.

    What is handed in was verified: a forged header proves nothing. Bounded by operator: one that signs much makes room
    with its own announcements, so nobody flushes what is known of another. Bans survive restarts through the state.
    """

    def __init__(self, config: DefenseConfig, counters: Counters) -> None:
        self._counters = counters
        self._witnessed: GroupedMap[str, tuple[bytes, int], Announcement] = GroupedMap(
            config.witnessed, config.witnessed, partial(counters.add, "reputation", "evicted_witness")
        )
        self._proofs: BoundedMap[bytes, Proof] = BoundedMap(
            config.proofs, partial(counters.add, "reputation", "evicted_proof")
        )

    def witness(self, announcement: Announcement, operator: str) -> bool:
        """Keep a verified announcement of this swarm; True when it contradicts an earlier one, which bans its key."""
        header = announcement.header
        name = (header.key, header.sequence)
        earlier = self._witnessed.get(name)
        if earlier is None:
            self._witnessed.put(operator, name, announcement)
            return False
        if earlier.header == header:
            return False
        if header.key not in self._proofs:
            self._proofs.put(header.key, Proof(earlier, announcement))
            self._counters.add("reputation", "banned_key")
        return True

    def banned(self, key: bytes) -> bool:
        """Whether a key has contradicted itself."""
        return key in self._proofs

    def proofs(self) -> list[Proof]:
        """Return the evidence, one pair for each banned key, the oldest first; anybody can verify it."""
        return [proof for _, proof in self._proofs.items()]

    def expire(self, oldest_round: int) -> None:
        """Forget the announcements of rounds before `oldest_round`: another one like them would be refused as stale."""
        self._witnessed.expire(lambda _, announcement: announcement.header.round >= oldest_round)

    def state(self) -> dict[str, Any]:
        """Return everything remembered as plain lists."""
        return {
            "witnessed": [[operator, announcement.encode()] for operator, _, announcement in self._witnessed.items()],
            "proofs": [[proof.first.encode(), proof.second.encode()] for proof in self.proofs()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        kept = [(str(operator), Announcement.decode(bytes(data))) for operator, data in state["witnessed"]]
        self._witnessed.replace((operator, (a.header.key, a.header.sequence), a) for operator, a in kept)
        pairs = [Proof(*(Announcement.decode(bytes(data)) for data in pair)) for pair in state["proofs"]]
        self._proofs.replace((proof.key, proof) for proof in pairs)
