"""Layer 8, MATH: every literal a∘b=c of a completion is recomputed exactly.

For each equality sign the longest sums on both sides are read. Text is ambiguous: a dash may be a minus or a bullet, a
comma a decimal sign or the end of a sum, 25% a quarter or a count. A statement counts as false only when it is false
in every plausible reading; what has letters, roots or values out of bounds is not judged.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product

from shoal.defenses.arithmetic import BESIDE, Sum, Value, agree
from shoal.defenses.notation import Kind, listed, normal, tokens
from shoal.defenses.numerals import Reading, Unknown
from shoal.defenses.sides import Sides, Spans
from shoal.defenses.units import summable
from shoal.defenses.wording import in_symbols, with_units

MOST_EQUATIONS = 1024  # signs of one text, or one in three tokens of a longer one: honest text has fewer
# Tokens of sums that are computed, all readings counted: at least so many, and so many for each token of the text. The
# honest corpus needs one, and five where every comma is ambiguous; text made for it twenty and more.
LEAST_WORK, WORK = 2048, 6
UNCHECKED = "?"  # stands for what is beyond these bounds
MOST_READINGS = 48
_SPOKEN = re.compile(
    r"[=\uff1d≈≡≃≅\u223c꞊═⩵]|equal|\b(?:is|are|makes?|gives)\b|\\(?:approx|equiv|sim|cong)|&#|&eq", re.IGNORECASE
)
_MODULUS = re.compile(r"\bmod(?:ulo)?\s{0,2}\(?(\d{1,6})", re.IGNORECASE)
_BASE = re.compile(r"\bbase[ -]{0,2}(\d{1,2})\b|\b(binary|octal|hex)|\b(0x)", re.IGNORECASE)
_NAMED = {"binary": 2, "octal": 8, "hex": 16, "0x": 16}
_REMAINDERS = frozenset({"remainder", "r", "rem"})
_VAGUE = frozenset({"is", "are", "gives", "makes", "make"})  # "what they eat in one day is 3 + 5"
# "2 + 2 is 1 more than 3" does not say that 2 + 2 is 1.
_COMPARED = frozenset(
    listed("less more fewer time times greater larger smaller bigger higher lower away short off digit of")
)


@dataclass(frozen=True, slots=True)
class Equation:
    """One recomputed equality: its text in plain form and whether it holds."""

    text: str
    holds: bool


def equations(text: str, around: str = "") -> Iterator[Equation]:
    """Yield the literal equations of `text` that can be recomputed, in order; `around` may name bases and moduli.

    A text with more to compute than honest text has ends with one that is named "?" and does not hold.
    """
    if _SPOKEN.search(text) is not None:
        plain = normal(text)
        yield from _Page(plain, f"{around}\n{plain}").equations()


def first_false(text: str, prompt: str) -> str | None:
    """Return the first false equation that the completion states itself; None when there is none.

    What stands in the prompt is quoted, and no statement of the completion. "?" when there is more to compute than is
    computed: what nobody has checked must not pass.
    """
    quoted: set[str] | None = None
    for found in equations(text, prompt):
        if found.holds:
            continue
        if found.text == UNCHECKED:
            return UNCHECKED
        if quoted is None:
            quoted = {equation.text for equation in equations(prompt)}
        if found.text not in quoted:
            return found.text
    return None


Pair = tuple[tuple[int, int], tuple[int, int]]  # the spans of both sides


class _Page:
    """The tokens of one text, read from equality sign to equality sign."""

    def __init__(self, plain: str, context: str) -> None:
        self._tokens = with_units(in_symbols(tokens(plain)))
        self._sides = Sides(self._tokens)
        self._context = context
        self._values: dict[tuple[int, int, Reading], Value | None] = {}
        self._left = max(LEAST_WORK, WORK * len(self._tokens))

    @cached_property
    def _moduli(self) -> list[int]:
        return sorted({int(found.group(1)) for found in _MODULUS.finditer(self._context)} - {0, 1})[:8]

    @cached_property
    def _bases(self) -> list[int]:
        found = [match.groups("") for match in _BASE.finditer(self._context)]
        named = {int(number) if number else _NAMED[(word or mark).lower()] for number, word, mark in found}
        return sorted(base for base in named if 2 <= base <= 36 and base != 10)[:3]

    def equations(self) -> Iterator[Equation]:
        """Yield every equation that can be recomputed."""
        signs = [place for place, token in enumerate(self._tokens) if token.kind is Kind.EQUALS]
        most = max(MOST_EQUATIONS, len(self._tokens) // 3)
        yield from self._judged(signs[:most])
        if len(signs) > most or self._left < 0:
            yield Equation(UNCHECKED, False)

    def _judged(self, signs: list[int]) -> Iterator[Equation]:
        anchor: tuple[int, int] | None = None  # the last sum of a chain a+b=c=d
        linked = False
        for count, sign in enumerate(signs):
            chained = count + 1 < len(signs)
            since = signs[count - 1] + 1 if count else 0
            left = self._sides.left(sign, since)
            right = self._sides.right(sign + 1, signs[count + 1] if chained else len(self._tokens), chained)
            anchor = anchor if linked else None
            if left.found and self._has_sign(*left.found[0]):
                anchor = left.found[0]
            elif anchor is not None and not self._differ(left, right):
                left = Spans([anchor])
            linked = right.whole
            if self._means_equal(sign, left, right):
                yield from self._judge(left, right, since, self._tokens[sign].text[0] in "≈~")
            self._values.clear()
            if self._left < 0:
                return

    def _differ(self, left: Spans, right: Spans) -> bool:
        """Whether two plain numbers of a chain count different things: 60 minutes = 1 hour."""
        if not left.found or not right.found:
            return False
        values = self._value(left.found[0], Reading(), True), self._value(right.found[-1], Reading(), False)
        return None not in values and self._pair((left.found[0], right.found[-1]), Reading()) is None

    def _has_sign(self, start: int, end: int) -> bool:
        return any(token.kind in (Kind.OPERATOR, Kind.FRACTION) for token in self._tokens[start + 1 : end]) or (
            self._tokens[start].kind is Kind.FRACTION
        )

    def _means_equal(self, sign: int, left: Spans, right: Spans) -> bool:
        """Whether the sign says that both sides are equal: a congruence does not, nor does "is" before "more than"."""
        text = self._tokens[sign].text
        if text == "≡":
            return not self._moduli
        if not right.found or not text.isalpha():
            return bool(right.found)
        if text in _VAGUE and not (left.found and self._has_sign(*left.found[0])):
            return False
        end = right.found[0][1]
        after = self._tokens[end].text.lower() if end < len(self._tokens) else ""
        return after not in _COMPARED and self._tokens[end - 1].unit not in _COMPARED

    def _judge(self, left: Spans, right: Spans, since: int, about: bool) -> Iterator[Equation]:
        """Yield the equation, if there is one, with whether any reading of it holds."""
        if not left.found or not right.found:
            return
        pairs = list(product(left.found[:3], right.found[:3]))
        readings = self._readings(self._texts(left.found[0], since, right.found[0][1]))
        stated = next((found for r in readings for pair in pairs if (found := self._stated(pair, r))), None)
        if stated is None:
            return
        about = about or right.about
        spans, sides = stated
        holds = agree(*sides, about) or self._in_context(sides, spans[1][1])
        yield Equation(self._text(*spans), holds or self._otherwise(pairs, readings, about))

    def _stated(self, spans: Pair, reading: Reading) -> tuple[Pair, tuple[Value, Value]] | None:
        """Return the spans and their values where they can be recomputed and at least one is a sum."""
        sides = self._pair(spans, reading)
        return (spans, sides) if sides and (sides[0].signs | sides[1].signs) - {"sign", BESIDE} else None

    def _pair(self, spans: Pair, reading: Reading) -> tuple[Value, Value] | None:
        left, right = (self._value(span, reading, first) for span, first in zip(spans, (True, False), strict=True))
        if left is None or right is None or not summable([*left.units, *right.units]):
            return None
        return left, right

    def _value(self, span: tuple[int, int], reading: Reading, first: bool) -> Value | None:
        key = (*span, reading)
        if key not in self._values:
            self._left -= span[1] - span[0]
            try:
                if self._left < 0:
                    raise Unknown
                self._values[key] = Sum(self._tokens[span[0] : span[1]], reading, first, not first).value()
            except Unknown:
                self._values[key] = None
        return self._values[key]

    def _otherwise(self, pairs: list[Pair], readings: list[Reading], about: bool) -> bool:
        """Whether any reading holds."""
        for reading, pair in islice(product(readings, pairs), MOST_READINGS):
            stated = self._stated(pair, reading)
            if stated is not None and agree(*stated[1], about):
                return True
        return False

    def _texts(self, left: tuple[int, int], since: int, end: int) -> list[str]:
        """Return the texts of one equation's tokens. Of a chain a+b=c=d that is a+b and d, never what is between:
        each link would be read again for each that follows."""
        start, stop = left
        far = self._tokens[start:stop] if start < since else []
        return [token.text for token in [*far, *self._tokens[max(start, since) : end]]]

    def _readings(self, texts: list[str]) -> list[Reading]:
        """Return the readings for which this equation gives a reason, the plain one first."""
        commas = ["us"]
        if any("," in text or text.count(".") > 1 for text in texts):
            commas.append("eu")
        if "." in texts[0] or any("," in text or " " in text for text in texts):
            commas.append("edge")
        percents = ["part", "plain", "change"] if "%" in texts else ["part"]
        divided = "/" in texts and ("(" in texts or "÷" in texts)
        tight = [False, True] if divided or ("(" in texts and "÷" in texts) else [False]
        readings = [Reading(*parts) for parts in product(commas, percents, tight)]
        return readings + [Reading(base=base) for base in self._bases]

    def _in_context(self, sides: tuple[Value, Value], end: int) -> bool:
        """Whether it is a division with remainder, or holds for a modulus that the text names."""
        left, right = sides[0].number, sides[1].number
        following = {token.text.lower() for token in self._tokens[end : end + 4]}
        if "/" in sides[0].signs and following & _REMAINDERS and left // 1 == right:
            return True
        if "/" in sides[0].signs and any(word[:1] == "r" and word[1:].isdigit() for word in following):
            return left // 1 == right
        return any((left - right) % modulus == 0 for modulus in self._moduli)

    def _text(self, left: tuple[int, int], right: tuple[int, int]) -> str:
        return "=".join("".join(token.text for token in self._tokens[start:end]) for start, end in (left, right))
