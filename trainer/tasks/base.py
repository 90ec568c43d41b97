"""What a task is: prompts by (seed, index), and a score for an answer.

Every node rebuilds prompt, answer and score from its own copy of a task; nothing of them is ever taken from a peer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from shoal.protocol.errors import ShoalError

# Modules that a solution in code may honestly use: none of them reaches files, processes or the network.
HARMLESS_MODULES = frozenset(
    {
        "__future__",
        "abc",
        "array",
        "bisect",
        "calendar",
        "cmath",
        "collections",
        "copy",
        "dataclasses",
        "datetime",
        "decimal",
        "enum",
        "fractions",
        "functools",
        "heapq",
        "itertools",
        "json",
        "math",
        "numbers",
        "operator",
        "queue",
        "random",
        "re",
        "statistics",
        "string",
        "textwrap",
        "time",
        "typing",
        "unicodedata",
    }
)


@dataclass(frozen=True, slots=True)
class TaskInvariants:
    """What every honest completion of a task obeys, right or wrong; peers' completions that do not are refused.

    `equations`: literal arithmetic such as 2+2=4 is true as it stands. Off where it is honestly meant otherwise, as in
    puzzles with letters for digits or in counters that wrap around. `imports`: the modules that code may import; None
    where code is not looked at.
    """

    equations: bool = True
    imports: frozenset[str] | None = HARMLESS_MODULES


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
    longest text that a peer's completion may have. A task may have an attribute `invariants` (a `TaskInvariants`); for
    plug-ins without it the default holds: see `invariants_of`.
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


def invariants_of(task: Task) -> TaskInvariants:
    """Return what a task's completions must obey: its own `invariants`, else the default."""
    return getattr(task, "invariants", TaskInvariants())
