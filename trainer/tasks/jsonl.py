"""Data sets of questions and answers, one JSON object a line, checked by math-verify."""

import hashlib
import json
import random
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.trainer.tasks.answers import ask, final_answer, first_answer
from shoal.trainer.tasks.base import Prompt, Unscorable

KEYS = {
    "path": "",
    "question": "question",
    "answer": "answer",
    "sha256": "",
    "shots": 0,
    "shot_seed": 0,
    "instruction": "",
    "max_tokens": 512,
    "max_chars": 16_384,
}
_MARKS = ("$", "\\(", "\\[", "\\boxed")  # a text with one of these says itself where its formula is
_WORD = re.compile(r"(?<!\\)\b[^\W\d_]{3,}")  # two letters may be a product, and a backslash makes a command
LARGEST_FILE = 256 * 2**20
LONGEST_ANSWER = 400  # characters of the answer proper: what math-verify's patterns and parser take in bounded time


class JsonlTask:
    """Questions and answers of a JSONL file, in an order shuffled by the seed.

    Config: `path`, `sha256` (hexadecimal, pins the content), `question` and `answer` (the keys of a line), `shots` (the
    first lines, which are then never drawn) with `shot_seed` for their order, `instruction`, `max_tokens`, `max_chars`.
    Raises EnvironmentFault for a file that cannot be read, UsageError for anything wrong in it.
    """

    inline = False
    isolate = False  # math-verify hands sympy's evaluator digits and operators only, and parses LaTeX by a grammar

    def __init__(self, name: str, config: Mapping[str, Any]) -> None:
        unknown = sorted(set(config) - set(KEYS))
        if unknown:
            raise UsageError(f"task {name}: unknown config key {', '.join(unknown)}; valid are {', '.join(KEYS)}")
        settings = {**KEYS, **config}
        for key, default in KEYS.items():
            if type(settings[key]) is not type(default) or (isinstance(default, int) and settings[key] < 0):
                raise UsageError(f"task {name}: {key} must be like {default!r}, got {settings[key]!r}")
        if not settings["path"]:
            raise UsageError(f'task {name}: needs path = "FILE.jsonl" in its config')
        self.name = name
        self.max_tokens: int = settings["max_tokens"]
        self.max_chars: int = settings["max_chars"]
        self._instruction: str = settings["instruction"]
        keys = (settings["question"], settings["answer"])
        lines = _read(name, Path(settings["path"]), settings["sha256"].lower(), keys)
        shots: int = settings["shots"]
        if len(lines) <= shots:
            raise UsageError(f"task {name}: {settings['path']} has {len(lines)} lines, too few for {shots} shots")
        self._examples, self._lines = lines[:shots], lines[shots:]
        random.Random(settings["shot_seed"]).shuffle(self._examples)
        self._order = lru_cache(maxsize=16)(self._shuffled)

    def __len__(self) -> int:
        """Return the number of questions that can be drawn."""
        return len(self._lines)

    def prompt(self, seed: int, index: int) -> Prompt:
        """Return question `index` (modulo their number) of the order that `seed` shuffles."""
        asked, answer = self._lines[self._order(seed)[index % len(self._lines)]]
        return Prompt(self.name, seed, index, ask(asked, self._examples, self._instruction), answer)

    def grade(self, prompt: Prompt, completion: str) -> float:
        """Return 1.0 when math-verify holds the answer equal to the reference, else 0.0.

        Raises Unscorable "no_gold" for a reference that it cannot parse and "too_long" for an answer above
        400 characters. It has no time limit of its own here: the worker's rules.
        """
        answer = first_answer(completion, multiline=False) if self._examples else stated_answer(completion)
        if not answer:
            return 0.0
        if len(answer) > LONGEST_ANSWER:
            raise Unscorable("too_long", f"an answer of {len(answer)} characters")
        return float(equal_answers(prompt.answer or "", answer))

    def warm_up(self) -> None:
        """Compare two answers, so that a worker's first real item does not pay for imports."""
        equal_answers(r"$\frac{1}{2}$", "0.5")
        equal_answers("x+1", "1+x")

    def _shuffled(self, seed: int) -> list[int]:
        order = list(range(len(self._lines)))
        random.Random(seed).shuffle(order)
        return order


def stated_answer(completion: str) -> str:
    """Return what math-verify should read: the final answer's \\boxed part, else its first line, else the last line.

    The first line is taken after a label or inside tags, the last line of a text that has neither.
    """
    answer = final_answer(completion)
    boxed = answer.rfind("\\boxed")
    if boxed >= 0:
        return answer[boxed:].partition("\n")[0]
    lines = [line.strip() for line in answer.split("\n") if line.strip()] or [""]
    return lines[-1] if answer == completion.strip() else lines[0]


def equal_answers(gold: str, answer: str) -> bool:
    """Return whether two answers are equal to math-verify, the first being the reference (it is not symmetric).

    Numbers and LaTeX are looked for, never option letters: mixing those lets "B" stand in any prose. Raises Unscorable
    "no_gold" when the reference holds neither. Errors of the parser propagate.
    """
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    targets = [LatexExtractionConfig(), ExprExtractionConfig()]
    expected = [] if _is_prose(gold) else parse(_delimited(gold), targets, "no_fallback", parsing_timeout=0)
    if not expected:
        raise Unscorable("no_gold", f"math-verify cannot parse the reference answer {gold[:60]!r}")
    got = parse(answer, targets, fallback_mode="no_fallback", parsing_timeout=0)
    if not got:
        got = parse(_delimited(answer), targets, fallback_mode="no_fallback", parsing_timeout=0)
    return bool(got) and verify(expected, got, timeout_seconds=0)


def _is_prose(text: str) -> bool:
    """Return whether a text without delimiters has words: as a formula, "blue" is b*l*u*e, and so equal to "lube"."""
    return not any(mark in text for mark in _MARKS) and _WORD.search(text) is not None


def _delimited(text: str) -> str:
    """Return a bare formula as LaTeX mathematics: math-verify looks for formulas between delimiters only."""
    return text if any(mark in text for mark in _MARKS) else f"${text}$"


def _read(name: str, path: Path, pinned: str, keys: tuple[str, str]) -> list[tuple[str, str]]:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UsageError(f"task {name}: {path} is larger than {LARGEST_FILE // 2**20} MiB")
        content = path.read_bytes()
    except OSError as error:
        raise EnvironmentFault(f"task {name}: cannot read {path}: {error.strerror}") from error
    found = hashlib.sha256(content).hexdigest()
    if pinned and found != pinned:
        raise UsageError(f"task {name}: {path} is not the pinned data set: its sha256 is {found}, not {pinned}")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"task {name}: {path} is not UTF-8: byte {error.start}") from error
    lines = [_entry(f"task {name}: {path}, line {number}", line, keys) for number, line in _numbered(text)]
    if not lines:
        raise UsageError(f"task {name}: {path} has no lines")
    return lines


def _numbered(text: str) -> list[tuple[int, str]]:
    # split at \n only: splitlines also splits at U+2028, which may stand inside a JSON string
    return [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def _entry(where: str, line: str, keys: tuple[str, str]) -> tuple[str, str]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{where}: must be an object with {keys[0]!r} and {keys[1]!r}, is {type(value).__name__}")
    found: list[str] = []
    for key in keys:
        item = value.get(key)
        if isinstance(item, int | float) and not isinstance(item, bool):
            item = str(item)
        if not isinstance(item, str) or not item.strip():
            raise UsageError(f"{where}: {key!r} is missing or not text")
        if not item.isascii() and any("\ud800" <= character <= "\udfff" for character in item):
            raise UsageError(f"{where}: {key!r} holds half of a surrogate pair, which is no text")
        found.append(item.strip())
    return found[0], found[1]
