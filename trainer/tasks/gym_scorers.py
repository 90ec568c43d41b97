"""Own scorers in place of reasoning-gym's where those evaluate the answer as code or can be passed without an answer.

Each entry says what the library's own scorer does. A full score here is a full score there, except for the holes that
are named. Partial credit of the replaced scorers is not kept.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

Scorer = Callable[[str, Mapping[str, Any], Any], float]
"""(answer, entry, the generator's dataset object) → score in [0, 1]."""

LONGEST_FORMULA = 400


def _same_text(answer: str, entry: Mapping[str, Any], _dataset: Any) -> float:
    return float(answer == entry["answer"].strip())


def _one_of_the_boards(answer: str, entry: Mapping[str, Any], _dataset: Any) -> float:
    return float(answer in entry["metadata"]["valid_answers"])


_ARITHMETIC = re.compile(r"\s*(?:(\d{1,9})|([-+*/()]))")


def arithmetic(text: str) -> tuple[Fraction, list[int]] | None:
    """Return the value of a formula of whole numbers, + - * / and brackets, and the numbers in it; None if it is none.

    Values are exact. There is no power and no name, so that the cost is bounded by the length.
    """
    tokens: list[str] = []
    position = 0
    text = text.strip()
    while position < len(text) <= LONGEST_FORMULA:
        match = _ARITHMETIC.match(text, position)
        if match is None:
            return None
        tokens.append(match[1] or match[2])
        position = match.end()
    try:
        value, rest = _sum(tokens)
    except (IndexError, ZeroDivisionError, ValueError, RecursionError):
        return None
    return None if rest else (value, [int(token) for token in tokens if token.isdigit()])


def _sum(tokens: list[str]) -> tuple[Fraction, list[str]]:
    value, tokens = _product(tokens)
    while tokens and tokens[0] in "+-":
        right, rest = _product(tokens[1:])
        value, tokens = (value + right if tokens[0] == "+" else value - right), rest
    return value, tokens


def _product(tokens: list[str]) -> tuple[Fraction, list[str]]:
    value, tokens = _factor(tokens)
    while tokens and tokens[0] in "*/":
        right, rest = _factor(tokens[1:])
        value, tokens = (value * right if tokens[0] == "*" else value / right), rest
    return value, tokens


def _factor(tokens: list[str]) -> tuple[Fraction, list[str]]:
    head, rest = tokens[0], tokens[1:]
    if head == "-":
        value, rest = _factor(rest)
        return -value, rest
    if head == "(":
        value, rest = _sum(rest)
        if rest[0] != ")":
            raise ValueError("unbalanced")
        return value, rest[1:]
    return Fraction(int(head)), rest  # ValueError for an operator where a number belongs


def _puzzle24(answer: str, entry: Mapping[str, Any], _dataset: Any) -> float:
    """The library takes any four numbers in range and truncates, so that `6*4*1*1` would solve every puzzle."""
    return _formula_hits(answer, list(entry["metadata"]["numbers"]), Fraction(24))


def _countdown(answer: str, entry: Mapping[str, Any], _dataset: Any) -> float:
    return _formula_hits(answer, list(entry["metadata"]["numbers"]), Fraction(entry["metadata"]["target"]))


def _formula_hits(answer: str, numbers: list[int], target: Fraction) -> float:
    result = arithmetic(answer)
    return float(result is not None and result[0] == target and sorted(result[1]) == sorted(numbers))


_TOKEN = re.compile(r"\s*(?:([A-Za-z]+)|(\d{1,12}(?:\.\d{1,12})?)|(\*\*|[-+*/()]))")
_FUNCTIONS = frozenset(
    {
        *("sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
        *("exp", "log", "ln", "sqrt", "Abs", "E", "pi", "C"),
    }
)


def is_plain_formula(text: str, variable: str) -> bool:
    """Return whether a text holds only numbers, operators, elementary functions and the variable.

    What this admits cannot name an attribute, an object or `Integral` (whose derivative is its integrand, so that it
    would answer every question); it can still be costly, which the worker's limits bound.
    """
    text = text.strip()
    position = 0
    while position < len(text) <= LONGEST_FORMULA:
        match = _TOKEN.match(text, position)
        if match is None or (match[1] and match[1] not in _FUNCTIONS and match[1] != variable):
            return False
        position = match.end()
    return 0 < len(text) <= LONGEST_FORMULA


def _integral(answer: str, entry: Mapping[str, Any], dataset: Any) -> float:
    if not is_plain_formula(answer, entry["metadata"]["variable"]):
        return 0.0
    return float(dataset.score_answer(answer=answer, entry=entry) >= 1.0)


def _sorted_numbers(answer: str, entry: Mapping[str, Any], dataset: Any) -> float:
    """The library accepts NaN in every place, since no comparison with it fails."""
    values = json.loads(answer.replace("'", '"'))
    finite = isinstance(values, list) and all(math.isfinite(float(value)) for value in values)
    return float(dataset.score_answer(answer=answer, entry=entry)) if finite else 0.0


def _complex(answer: str, entry: Mapping[str, Any], dataset: Any) -> float:
    """The library takes the least of 1 and a distance, which for NaN is 1."""
    unreal = re.search("nan|inf", answer, re.IGNORECASE)
    return 0.0 if unreal else float(dataset.score_answer(answer=answer, entry=entry))


def _true_or_false(answer: str, entry: Mapping[str, Any], _dataset: Any) -> float:
    """The library compares the truth values of two texts: any text equals any other."""
    return float(answer.casefold() == str(entry["answer"]).casefold())


_PROBABILITY = re.compile(r"(\d{1,12}(?:\.\d{1,12})?(?:e-\d{1,2})?)(?:\s*/\s*(\d{1,12}))?")


def _probability(answer: str, entry: Mapping[str, Any], _dataset: Any) -> float:
    """The library counts matching leading digits of the shorter number, so that `0` would answer everything.

    Its tolerance of 1e-4 stays, but at most a hundredth of the value: `0` must not stand for a small one either.
    """
    match = _PROBABILITY.fullmatch(answer)
    if match is None or (match[2] and not int(match[2])):
        return 0.0
    given, expected = Fraction(match[1]) / int(match[2] or 1), Fraction(entry["answer"])
    return float(abs(given - expected) <= min(Fraction(1, 10_000), expected / 100))


OWN: dict[str, Scorer] = {
    "binary_matrix": _same_text,  # eval(answer), for a tenth of the reward
    "spiral_matrix": _same_text,  # eval(answer), for a tenth
    "string_insertion": _same_text,  # eval(answer), for a tenth
    "n_queens": _one_of_the_boards,  # eval(answer), for a half
    "puzzle24": _puzzle24,  # sympy's parse_expr, which is eval
    "countdown": _countdown,  # the same
    "simple_integration": _integral,  # the same, then simplify()
    "number_sorting": _sorted_numbers,
    "complex_arithmetic": _complex,
    "game_of_life_halting": _true_or_false,
    "coin_flip": _probability,
}

EVALUATORS = frozenset({"simple_integration"})
"""Generators whose scoring still hands (fenced) text to an evaluator: each completion gets a fresh process."""
