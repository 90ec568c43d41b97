"""What a completion shows beside its answer, in a form that can be counted: short runs of unvouched tokens, a false
statement, a long detour to a right answer; and how often a node showed each of them before it learned from peers."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["behaviour", "statements", "length", "accuracy"]

LONGEST_RUN = 3  # tokens: a longer phrase is caught by its parts, and a split one by the parts that it shares
FALSE, LONG = b"false", b"longer"  # behaviours that are no run of tokens: no run has 5 or 6 bytes

_ID_BYTES = 4
_BREAK = b"\xff\xff\xff\xff"  # between the pieces of one answer: no token has this id


@dataclass(frozen=True, slots=True)
class View:
    """One completion: right (None: unscorable), its unvouched runs of token ids without the end mark, and whether it
    states something false."""

    right: bool | None
    pieces: Sequence[Sequence[int]]
    violates: bool = False

    @property
    def length(self) -> int:
        """Number of tokens that nothing vouches for."""
        return sum(map(len, self.pieces))


@dataclass(frozen=True, slots=True)
class Alarm:
    """What has changed for the worse. `since` is the pass after which it began; `tokens` is empty but for behaviours.

    `share` is that of the canary answers now, `before` that of the reference (for accuracy the recent history).
    """

    kind: Kind
    tokens: tuple[int, ...]
    share: float
    before: float
    evidence: float
    since: int


class Reference:
    """Answers of a node to compare later ones with. Runs of tokens are looked up in the answers as they stand: counted
    beforehand, all of them would need a hundred times the room."""

    def __init__(self, answers: Sequence[View] = ()) -> None:
        self.answers = list(answers)
        self._encoded = [_BREAK.join(_bytes(piece) for piece in answer.pieces) for answer in self.answers]
        lengths = sorted(answer.length for answer in self.answers if answer.right) or [0]
        # A quarter above the longest twentieth of the right answers; two tokens more where those have no detour at all.
        self.longest = 1.25 * lengths[int(0.95 * (len(lengths) - 1))] + 2

    def __len__(self) -> int:
        return len(self.answers)

    def behaviours(self, view: View) -> set[bytes]:
        """Return all that a completion shows: runs of up to LONGEST_RUN tokens as bytes, FALSE and LONG."""
        found: set[bytes] = set()
        for piece in view.pieces:
            raw = _bytes(piece)
            for width in range(_ID_BYTES, _ID_BYTES * LONGEST_RUN + 1, _ID_BYTES):
                found.update(raw[start : start + width] for start in range(0, len(raw) - width + 1, _ID_BYTES))
        if view.violates:
            found.add(FALSE)
        if self._is_long(view):
            found.add(LONG)
        return found

    def count(self, behaviour: bytes) -> int:
        """Return how many of the answers show a behaviour."""
        if behaviour == FALSE:
            return sum(answer.violates for answer in self.answers)
        if behaviour == LONG:
            return sum(map(self._is_long, self.answers))
        return sum(_contains(encoded, behaviour) for encoded in self._encoded)

    def _is_long(self, view: View) -> bool:
        return bool(view.right) and view.length > self.longest

    def state(self) -> list[Any]:
        """Return the answers as plain lists."""
        return [[answer.right, [list(piece) for piece in answer.pieces], answer.violates] for answer in self.answers]

    @staticmethod
    def of(state: Sequence[Any]) -> "Reference":
        """Return the reference that `state` was taken of."""
        return Reference([View(right, pieces, violates) for right, pieces, violates in state])


def tokens_of(behaviour: bytes) -> tuple[int, ...]:
    """Return the token ids of a run; none for a behaviour that is no run."""
    return () if behaviour in (FALSE, LONG) else tuple(array("I", behaviour))


def log_ratio(hits: int, groups: int, size: int, before: float, after: float) -> float:
    """Return the log-likelihood ratio, in nats, of a share `after` against `before` of single completions.

    `hits` of `groups` groups of `size` completions show the behaviour at least once. A group counts as one observation:
    its completions answer one prompt and are no independent draws.
    """
    old, new = 1.0 - (1.0 - before) ** size, 1.0 - (1.0 - after) ** size
    return hits * math.log(new / old) + (groups - hits) * math.log((1.0 - new) / (1.0 - old))


def chernoff(hits: float, trials: float, share: float) -> float:
    """Return minus the logarithm of a bound on the chance of so many hits or more at a share in (0, 1), in nats.

    Chernoff's bound: trials times the Kullback-Leibler divergence of the observed share; 0 for one that is no higher.
    """
    if trials <= 0.0 or hits <= share * trials:
        return 0.0
    seen = hits / trials
    miss = 0.0 if seen >= 1.0 else (1.0 - seen) * math.log((1.0 - seen) / (1.0 - share))
    return trials * (seen * math.log(seen / share) + miss)


def _bytes(piece: Sequence[int]) -> bytes:
    return array("I", piece).tobytes()


def _contains(encoded: bytes, run: bytes) -> bool:
    """Whether a run of tokens stands in an encoded answer, at the boundary of an id."""
    at = encoded.find(run)
    while at > 0 and at % _ID_BYTES:
        at = encoded.find(run, at + 1)
    return at >= 0
