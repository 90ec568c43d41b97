"""What an attack is: it may change what its node samples, and send whatever its own key can sign."""

# ruff: noqa: ARG002 (one interface for all attacks: not each of them uses everything that it is handed)

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from shoal.defenses.config import DefenseConfig
from shoal.defenses.token_scores import TokenEvidence
from shoal.protocol.envelope import Announcement, Header

Sign = Callable[[Header], bytes]
"""Signs a header with the attacker's own key and returns the encoded announcement."""


@dataclass(frozen=True, slots=True)
class Draft:
    """An honest rollout before it is sealed, as graded locally; `answer` is the gold answer (None: there is none).

    `round` is the swarm's round for which it was sampled.
    """

    prompt_text: str
    answer: str | None
    task: str
    completions: tuple[str, ...]
    rewards: tuple[float, ...]
    correct: tuple[bool, ...]
    round: int = 0


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What an attacker's node lets its attack know: it runs the same program, so all that a receiver computes by.

    `tokens` counts a text's tokens. `reads` gives a prompt and completions to the attacker's own model, with the answer
    that the verifier would vouch for (None: nothing). `rounds` is how long the run lasts where that is known.
    """

    config: DefenseConfig
    max_tokens: int
    tokens: Callable[[str], int]
    reads: Callable[[str, Sequence[str], str | None], Sequence[TokenEvidence]]
    rounds: int | None = None


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message: the announcement's bytes and the blob served for it."""

    announcement: bytes
    blob: bytes


@dataclass(frozen=True, slots=True)
class Expected:
    """What is expected before the run: the layer that stops it, or "partial" or "none", and why."""

    layer: str
    why: str


class Attack:
    """An honest node by default; an attack overrides what it does otherwise."""

    name: ClassVar[str]
    expected: ClassVar[Expected]
    needs: ClassVar[int] = 12
    """Longest completion, in tokens of the built-in model, that its plant needs beside an answer."""

    def __init__(self) -> None:
        self._sign: Sign | None = None
        self._last_sequence = -1
        self.knowledge: Knowledge | None = None
        self.place, self.of = 0, 1

    def know(self, knowledge: Knowledge) -> None:
        """Hand in what its node knows; without it (in the laboratory) an attack works from its arguments."""
        self.knowledge = knowledge

    def enlist(self, place: int, of: int) -> None:
        """Say which of how many colluders this one is."""
        self.place, self.of = place, of

    def arm(self, sign: Sign) -> None:
        """Hand in the attacker's own key; attacks that send other messages need it."""
        self._sign = sign

    def poison(self, draft: Draft, rng: Random) -> Draft:
        """Return the rollout to publish instead of the honest one."""
        return draft

    def overhear(self, announcement: bytes, blob: bytes) -> None:
        """Take note of an honest peer's message."""

    def messages(self, sent: Outgoing, rng: Random) -> list[Outgoing]:
        """Return what to send instead of the one honest message."""
        return [sent]

    def shown(self, completion: str) -> bool:
        """Whether a completion (of an honest node) shows the planted behaviour."""
        return False

    def triggered(self, prompt_text: str) -> bool:
        """Whether the behaviour is planted on this prompt; most attacks plant theirs everywhere."""
        return True

    def state(self) -> dict[str, Any]:
        """Return what the attack remembers as plain types."""
        return {"last_sequence": self._last_sequence}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self._last_sequence = int(state["last_sequence"])

    def _signed(self, header: Header) -> bytes:
        """Sign with the own key. Raises RuntimeError when the attack was not armed."""
        if self._sign is None:
            raise RuntimeError(f"attack {self.name!r} needs a key: call arm first")
        return self._sign(header)

    def _next_sequence(self, honest: int) -> int:
        """Return a sequence number that this key has not used, at or above the honest one."""
        self._last_sequence = max(self._last_sequence + 1, honest)
        return self._last_sequence


def header_of(message: Outgoing) -> Header:
    """Return the header of an own message."""
    return Announcement.decode(message.announcement).header
