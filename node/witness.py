"""Who watches what a node publishes and fetches. The loop, the gatherer and the publisher never wait for it."""

from dataclasses import dataclass, field
from typing import Protocol

from shoal.defenses.pointer import Pointer
from shoal.defenses.screen import Screened
from shoal.defenses.verdict import Verdict
from shoal.node.sets import OwnSet, PeerSet


class Witness(Protocol):
    """Is told of every rollout that leaves the node or comes to it. Called in the event loop: it only takes notes."""

    def published(self, own: OwnSet, announcement: bytes, blob: bytes) -> None:
        """An own set is about to be announced; its blob is served already."""
        ...

    def fetched(self, pointer: Pointer, blob: bytes, screened: Screened | Verdict, peer: PeerSet | None) -> None:
        """A peer's rollout was fetched and judged; `peer` is what is left of it, None when it was refused."""
        ...


class NoWitness:
    """Sees nothing: the witness of a node that keeps no ledger."""

    def published(self, own: OwnSet, announcement: bytes, blob: bytes) -> None:
        """Forget it."""

    def fetched(self, pointer: Pointer, blob: bytes, screened: Screened | Verdict, peer: PeerSet | None) -> None:
        """Forget it."""


NO_WITNESS = NoWitness()


@dataclass(frozen=True, slots=True)
class Published:
    """An own set with the announcement and the blob by which it went out."""

    own: OwnSet
    announcement: bytes
    blob: bytes


@dataclass(frozen=True, slots=True)
class Fetched:
    """A peer's rollout with the verdict on it, and what was left of it."""

    pointer: Pointer
    blob: bytes
    screened: Screened | Verdict
    peer: PeerSet | None


@dataclass(slots=True)
class PassNotes:
    """What one pass published and fetched: the witness of a node that keeps a ledger.

    It is as small as one pass: whoever records the pass takes the notes away.
    """

    out: list[Published] = field(default_factory=list[Published])
    came: list[Fetched] = field(default_factory=list[Fetched])

    def published(self, own: OwnSet, announcement: bytes, blob: bytes) -> None:
        """Note what went out."""
        self.out.append(Published(own, announcement, blob))

    def fetched(self, pointer: Pointer, blob: bytes, screened: Screened | Verdict, peer: PeerSet | None) -> None:
        """Note what came."""
        self.came.append(Fetched(pointer, blob, screened, peer))

    def take(self) -> "PassNotes":
        """Return the notes so far and begin anew."""
        taken = PassNotes(self.out, self.came)
        self.out, self.came = [], []
        return taken
