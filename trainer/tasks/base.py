"""What a task is: prompts by (seed, index), and a score for an answer.

Every node rebuilds prompt, answer and score from its own copy of a task; nothing of them is ever taken from a peer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from shoal.protocol.errors import ShoalError


@dataclass(frozen=True, slots=True)
class Prompt:
    """One task instance, named (task, seed, index).

    `text` is what the policy reads before any chat template; `answer` is the reference answer where there is one;
    `entry` holds whatever else the scorer needs. Verifier workers rebuild all of it from the name.
    """

    task: str
    seed: int
    index: int
    text: str
    answer: str | None = None
    entry: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Unscorable(ShoalError):
    """An answer got no score: the verifier was stopped or refused. It counts as unknown, never as wrong."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"unscorable ({reason}){': ' + detail if detail else ''}")
        self.reason = reason


class Task(Protocol):
    """A family of prompts with one verifier.

    `inline` is True where grading is a plain string comparison, cheap and safe enough for the training process;
    everything else is graded in a killable worker. `max_tokens` is the suggested cap of a completion, `max_chars` the
    longest text that a peer's completion may have.
    """

    name: str
    inline: bool
    max_tokens: int
    max_chars: int

    def prompt(self, seed: int, index: int) -> Prompt:
        """Return the instance named (seed, index): equal on every node and in every process."""
        ...

    def grade(self, prompt: Prompt, completion: str) -> float:
        """Return the reward of a completion in [0, 1]; raise `Unscorable` when none can be given."""
        ...
