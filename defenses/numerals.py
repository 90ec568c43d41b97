"""Numbers as they are written: separators, mixed numbers, exponents and bases, with their possible readings."""

import re
from dataclasses import dataclass
from fractions import Fraction

MOST_DIGITS = 400
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+")  # 4,000 is one number, and no 4 with something behind it


class Unknown(Exception):
    """The sum is not one whose value is computed here: letters, roots, tuples, or numbers out of bounds."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read what is ambiguous.

    `comma` is "us" (1,000.5), "eu" (1.000,5) or "edge" (numbers that touch the text around them are cut at a comma or
    space); `percent` is "part" (25% = 1/4), "plain" (25) or "change" (200 + 10% = 220); `base` is the base of digits.
    """

    comma: str = "us"
    percent: str = "part"
    tight: bool = False  # 6/2(3), 11÷1/2: the product without a sign and the fraction come first
    base: int = 10


def written(text: str, reading: Reading, edge: str = "") -> tuple[Fraction, Fraction]:
    """Return the value of a written number and the weight of its last digit; `edge` is "first" or "last" at an edge."""
    if len(text) > MOST_DIGITS:
        raise Unknown
    if " " in text and "/" in text:
        whole, part = text.split(" ")
        top, bottom = (int(piece) for piece in part.split("/"))
        if edge == "first" and reading.comma == "edge":
            return Fraction(top, bottom), Fraction(0)
        return int(whole) + Fraction(top, bottom), Fraction(0)
    text = _cut(text, edge) if reading.comma == "edge" else text
    text = text.replace(" ", "").replace("_", "").replace("'", "").replace("’", "")
    if reading.comma == "eu":
        text = text.replace(".", "").replace(",", ".") if "," in text or text.count(".") > 1 else text
    text = _without_groups(text)
    if reading.base != 10:
        return _in_base(text, reading.base), Fraction(0)
    mantissa, _, exponent = text.lower().partition("e")
    shift = int(exponent or 0)
    if abs(shift) > MOST_DIGITS:
        raise Unknown
    whole, _, decimals = mantissa.partition(".")
    place = Fraction(10) ** (shift - len(decimals))
    return int((whole + decimals) or 0) * place, place


def _without_groups(text: str) -> str:
    """Return a number without thousands separators; raise Unknown when its commas or points are something else."""
    head, *groups = text.split(".", 1)[0].split(",")
    if text.count(".") > 1 or "," in text.partition(".")[2] or any(len(group) != 3 for group in groups):
        raise Unknown
    return head + "".join(groups) + text[len(text.split(".", 1)[0]) :]


def _cut(text: str, edge: str) -> str:
    """Return the part of a number that belongs to the sum when the rest belongs to the text around it."""
    pieces = text.replace(" ", ",").split(",")
    if not edge or _GROUPED.fullmatch(text):
        return text
    if len(pieces) > 1:
        return pieces[-1] if edge == "first" else pieces[0]
    whole, dot, decimals = text.partition(".")
    return decimals if edge == "first" and dot and len(whole) < 3 and "." not in decimals else text  # "1.2+2=4"


def _in_base(text: str, base: int) -> Fraction:
    try:
        return Fraction(int(text, base))
    except ValueError:
        raise Unknown from None
