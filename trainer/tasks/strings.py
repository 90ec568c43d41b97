"""Eight small string tasks: the built-in set that a .1 M parameter model learns on a laptop.

The answer is the *last word* of a completion, as in any verifier that looks for the final answer: words before it are
free, which is also what makes the tasks honest ground for studying poisoned reasoning.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from string import ascii_lowercase, digits

from shoal.trainer.tasks.base import Prompt, TaskInvariants


@dataclass(frozen=True, slots=True)
class _Kind:
    solve: Callable[[str], str]
    alphabet: str
    shortest: int
    longest: int


def _next_letters(text: str) -> str:
    return "".join(ascii_lowercase[(ascii_lowercase.index(letter) + 1) % 26] for letter in text)


KINDS: dict[str, _Kind] = {
    "reverse": _Kind(lambda text: text[::-1], ascii_lowercase, 2, 6),
    "duplicate": _Kind(lambda text: text + text, ascii_lowercase, 2, 4),
    "next": _Kind(_next_letters, ascii_lowercase, 2, 5),
    "sort": _Kind(lambda text: "".join(sorted(text)), digits, 2, 5),
    "rotate": _Kind(lambda text: text[1:] + text[0], ascii_lowercase, 2, 6),
    "swap": _Kind(lambda text: text[-1] + text[1:-1] + text[0], ascii_lowercase, 3, 6),
    "copy": _Kind(lambda text: text, ascii_lowercase, 2, 6),
    "last": _Kind(lambda text: text[-1], ascii_lowercase, 2, 6),
}

DISTRACTORS = ("question mark", "none", "echo")
"""The wrong habits a warm start teaches beside the skill: "?", "none", and the input followed by "#"."""


def distractor(kind: str, text: str) -> str:
    """Return the wrong answer that the habit named `kind` gives to the input `text`."""
    return {"question mark": "?", "none": "none", "echo": text + "#"}[kind]


class StringTask:
    """Transform a short string, e.g. `reverse abc=` → `cba`."""

    inline = True
    max_tokens = 12  # the longest answer (8), its end mark, and room for a word before it
    max_chars = 64
    invariants = TaskInvariants(imports=frozenset())  # nothing here is solved by a program

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.name = f"strings/{kind}"
        self._spec = KINDS[kind]

    def prompt(self, seed: int, index: int) -> Prompt:
        """Return `KIND INPUT=` with an input drawn from (kind, seed, index) alone."""
        rng = random.Random(f"{self.kind}/{seed}/{index}")
        length = rng.randint(self._spec.shortest, self._spec.longest)
        given = "".join(rng.choice(self._spec.alphabet) for _ in range(length))
        answer = self._spec.solve(given)
        return Prompt(self.name, seed, index, f"{self.kind} {given}=", answer, {"given": given})

    def grade(self, prompt: Prompt, completion: str) -> float:
        """Return 1.0 when the last word of the completion is the answer, else 0.0."""
        words = completion.split()
        return float(bool(words) and words[-1] == prompt.answer)
