"""Any reasoning-gym generator as a task `rg/NAME`.

The library takes seconds to import, so it is loaded when the first such task is made. Its generators draw item i of
seed s from `Random(s + i)`: one dataset object, re-seeded, gives any item at once. Its scorers are used only where they
do not evaluate the answer (docs/decisions/verifier-fences.md); all of them run in a verifier worker.
"""

import contextlib
import hashlib
import io
import threading
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields
from functools import cache
from typing import Any

from shoal.protocol.errors import UsageError
from shoal.trainer.tasks import gym_scorers
from shoal.trainer.tasks.answers import ask, final_answer, first_answer
from shoal.trainer.tasks.base import Prompt, TaskInvariants

OWN_KEYS = ("shots", "shot_seed", "instruction", "partial", "max_tokens", "max_chars")
_UNSTABLE = "its items differ between processes (they follow the order of a set), so that no peer could rebuild them"
REFUSED = {
    "codeio": "it runs the programs of its data set in the training process to make an item",
    "composite": "it mixes other generators: name them as tasks of their own, with weights",
    "intermediate_integration": _UNSTABLE,
    "isomorphic_strings": _UNSTABLE,
    "knight_swap": _UNSTABLE,
    "list_functions": _UNSTABLE,
    "polynomial_multiplication": _UNSTABLE,
    "ransom_note": _UNSTABLE,
    "word_ladder": _UNSTABLE,
}
# These precompute all items of a seed when they are made, so each item gets a dataset of its own.
SEEDED_WHEN_MADE = frozenset({"acre", "gsm_symbolic"})

PRINTING = frozenset({"bf"})  # what it compiles, to standard output

# Where a + b = c is honestly not plain arithmetic: columns of a puzzle with carries, cells that wrap at 256, letters
# that wrap at 26. Sums in other bases and with remainders are read by the bases and moduli that the text names, and
# hexadecimal and clock literals are left alone, so generators about those keep the check.
OTHER_ARITHMETIC = frozenset({"bf", "caesar_cipher", "cryptarithm"})

# Some generators seed numpy, which takes 32 bits: seeds and indices are folded so that their sum fits, and the worked
# examples come from the top of that range, which no drawn prompt reaches.
SEEDS, INDICES = 2**31, 2**30
SHOT_BASE, SHOT_SEEDS, MAX_SHOTS = 0xF000_0000, 2**20, 16
# What the library's scorers raise at an answer of the wrong form, which is a wrong answer.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
FULL_SCORE = 1.0 - 1e-9  # float noise only: .99 would let "nearly right" of a graded scorer through


@cache
def _library() -> Any:
    import reasoning_gym.factory as factory  # 2.6 s: not at start

    return factory


def gym_names() -> tuple[str, ...]:
    """Return the names of all usable reasoning-gym generators, sorted."""
    return tuple(sorted(set(_library().DATASETS) - set(REFUSED)))


class GymTask:
    """One generator with one configuration.

    Config keys of this class: `shots` worked examples (drawn with `shot_seed`) before the question, `instruction` as
    the first line, `partial` (keep the generator's partial credit; off, only a full score counts), `max_tokens`,
    `max_chars`. All others go to the generator.
    """

    inline = False
    isolate: bool

    def __init__(self, generator: str, config: Mapping[str, Any] | None = None) -> None:
        config = dict(config or {})
        self.generator = generator
        self.name = f"rg/{generator}"
        self.shots = _whole(self.name, config, "shots", (0, 0, MAX_SHOTS))
        self.shot_seed = _whole(self.name, config, "shot_seed", (0, 0, SHOT_SEEDS - 1))
        self.max_tokens = _whole(self.name, config, "max_tokens", (1, 256, 2**20))
        self.max_chars = _whole(self.name, config, "max_chars", (1, 16_384, 65_536))
        self.instruction: str = _typed(self.name, config, "instruction", "")
        self.partial: bool = _typed(self.name, config, "partial", False)
        # scorers that parse with sympy or execute code get a fresh process for each completion
        self.isolate = generator in gym_scorers.EVALUATORS
        self.invariants = TaskInvariants(equations=generator not in OTHER_ARITHMETIC)
        self._settings = config
        self._dataset = self._make(seed=0)
        self._lock = threading.Lock()  # an item is drawn by re-seeding the one object
        self.examples = self._draw_examples()

    def prompt(self, seed: int, index: int) -> Prompt:
        """Return item `index` of seed `seed`; for seeds below 2^31 and indices below 2^30 the library's own one."""
        entry = self._item(seed % SEEDS, index % INDICES)
        text = ask(entry["question"], self.examples, self.instruction)
        return Prompt(self.name, seed, index, text, reference(entry), entry)

    def grade(self, prompt: Prompt, completion: str) -> float:
        """Return the score of the answer in `completion`: 1.0 or 0.0, or the generator's own with `partial`."""
        if self.shots:
            answer = first_answer(completion, multiline="\n" in (prompt.answer or ""))
        else:
            answer = final_answer(completion)
        if not answer:
            return 0.0
        if prompt.answer is not None and answer == prompt.answer.strip():
            answer = prompt.answer  # a reference may begin or end with white space, which the cut removed
        score = self._score(answer, deepcopy(dict(prompt.entry)))  # some scorers write into the entry
        return score if self.partial else float(score >= FULL_SCORE)

    def _score(self, answer: str, entry: dict[str, Any]) -> float:
        scorer = gym_scorers.OWN.get(self.generator)
        try:
            if scorer is not None:
                return float(scorer(answer, entry, self._dataset))
            return float(self._dataset.score_answer(answer=answer, entry=entry))
        except UNREADABLE:
            return 0.0

    def warm_up(self) -> None:
        """Grade one reference answer, so that a worker's first real item does not pay for imports."""
        prompt = self.prompt(0, 0)
        self.grade(prompt, prompt.answer or "")

    def _draw_examples(self) -> list[tuple[str, str]]:
        """Return the worked examples (question, answer), which no drawn prompt can name."""
        entries = [self._item(SHOT_BASE + self.shot_seed * MAX_SHOTS, index) for index in range(self.shots)]
        examples = [(entry["question"], reference(entry) or "") for entry in entries]
        if not all(answer for _, answer in examples):
            raise UsageError(f"task {self.name}: has no reference answers to show as worked examples; set shots = 0")
        return examples

    def _item(self, seed: int, index: int) -> dict[str, Any]:
        if self.generator in SEEDED_WHEN_MADE:
            return self._make(_mixed(seed, index))[0]
        printed = contextlib.redirect_stdout(io.StringIO()) if self.generator in PRINTING else contextlib.nullcontext()
        with self._lock, printed:
            self._dataset.seed = self._dataset.config.seed = seed
            return self._dataset[index]

    def _make(self, seed: int) -> Any:
        library = _library()
        dataset_type, config_type = library.DATASETS[self.generator]
        valid = sorted({setting.name for setting in fields(config_type)} - {"seed", "size"})
        unknown = sorted(set(self._settings) - set(valid))
        if unknown:
            raise UsageError(
                f"task {self.name}: unknown config key {', '.join(unknown)}; valid are {', '.join([*OWN_KEYS, *valid])}"
            )
        try:
            config = config_type(seed=seed, size=1, **self._settings)
            dataset = dataset_type(config=config)
        except (AssertionError, ValueError, TypeError) as error:
            raise UsageError(f"task {self.name}: bad config {self._settings}: {error}") from error
        if self.generator not in SEEDED_WHEN_MADE:
            dataset.size = dataset.config.size = INDICES  # the object is virtual: only a bound that some check
        return dataset


def reference(entry: Mapping[str, Any]) -> str | None:
    """Return the reference answer of an entry; where several are right, the generator's example."""
    answer = entry["answer"]
    if answer is None:
        answer = entry["metadata"].get("example_answer")
    return None if answer is None else str(answer)


def _mixed(seed: int, index: int) -> int:
    """Return a 32-bit seed for (seed, index); worked examples keep the range that is theirs."""
    if seed >= SHOT_BASE:
        return seed + index
    digest = hashlib.sha256(f"shoal/gym-seed/1/{seed}/{index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % SHOT_BASE


def _whole(name: str, config: dict[str, Any], key: str, bounds: tuple[int, int, int]) -> int:
    least, default, most = bounds
    value = _typed(name, config, key, default)
    if not least <= value <= most:
        raise UsageError(f"task {name}: {key} must be from {least} to {most}, got {value}")
    return value


def _typed(name: str, config: dict[str, Any], key: str, default: Any) -> Any:
    value = config.pop(key, default)
    if type(value) is not type(default):
        raise UsageError(f"task {name}: {key} must be like {default!r}, got {value!r}")
    return value
