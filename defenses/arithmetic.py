"""Exact values of written sums, at a cost that is bounded before anything is computed."""

import math
from dataclasses import dataclass, field
from fractions import Fraction

from shoal.defenses.notation import Kind, Token
from shoal.defenses.numerals import Reading, Unknown, written

LONGEST_SUM = 128  # tokens of one side
DEEPEST = 16  # nested groups
NOISE = 10**9
BESIDE = "beside"  # 2 (3+4): a product, or two things
MOST_BITS = 4096  # of a numerator or a denominator: 9**9**9 has 10^8 digits and is never begun


@dataclass(slots=True)
class Value:
    """The value of one side, and what is needed to compare it.

    `place` is the weight of the last shown digit, None for a computed value; `rounded` tells of an operand with two or
    more decimals.
    """

    number: Fraction
    place: Fraction | None = None
    signs: set[str] = field(default_factory=set[str])
    units: list[str] = field(default_factory=list[str])
    rounded: bool = False


def bounded(number: Fraction) -> Fraction:
    """Return the number; raise Unknown when it is too large to go on with."""
    if number.numerator.bit_length() > MOST_BITS or number.denominator.bit_length() > MOST_BITS:
        raise Unknown
    return number


def power(base: Fraction, exponent: Fraction) -> Fraction:
    """Return base ** exponent for whole exponents, refusing before computing what would be too large."""
    if exponent.denominator != 1 or abs(exponent) > MOST_BITS or (base == 0 and exponent < 0):
        raise Unknown
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits * abs(exponent) > MOST_BITS + bits:
        raise Unknown
    return bounded(base ** int(exponent))


def combine(sign: str, left: Fraction, right: Fraction) -> Fraction:
    """Return left ∘ right exactly; raise Unknown for a division by nothing and for numbers out of bounds."""
    if sign == "+":
        return bounded(left + right)
    if sign in "-–":
        return bounded(left - right)
    if sign in ("*", "×", BESIDE):
        return bounded(left * right)
    if sign in ("^", "**"):
        return power(left, right)
    if right == 0:
        raise Unknown
    if sign in ("/", "÷"):
        return bounded(left / right)
    return Fraction(left // right) if sign == "//" else bounded(left % right)


class Sum:
    """A recursive-descent parser over one side's tokens that computes as it reads."""

    def __init__(self, tokens: list[Token], reading: Reading, first: bool, last: bool) -> None:
        if len(tokens) > LONGEST_SUM:
            raise Unknown
        self._tokens, self._reading = tokens, reading
        self._edges = {0: "first"} if first else {}
        if last:
            self._edges[len(tokens) - 1] = "last"
        self._at = self._depth = 0
        self._result = Value(Fraction(0))

    def value(self) -> Value:
        """Return the value of the whole side; raise Unknown when it is no sum to the end."""
        number = self._sum()[0]
        if self._at != len(self._tokens):
            raise Unknown
        self._result.number = number
        if self._result.signs - {"sign", BESIDE}:
            self._result.place = None
        return self._result

    def _peek(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _take(self, *signs: str) -> str:
        token = self._peek()
        if token is None or token.kind is not Kind.OPERATOR or token.text not in signs:
            return ""
        self._at += 1
        return token.text

    def _sum(self) -> tuple[Fraction, bool]:
        number, percent = self._term()
        while sign := self._take("+", "-", "–"):
            self._result.signs.add(sign)
            right, part = self._term()
            if part and self._reading.percent == "change":
                right = bounded(number * right)
            number, percent = combine(sign, number, right), False
        return number, percent

    def _term(self) -> tuple[Fraction, bool]:
        number, percent = self._signed()
        while True:
            sign = self._take("*", "×", "/", "÷", "//", "mod")
            if not sign and self._product_follows():
                sign = "*" if not self._tokens[self._at].spaced else BESIDE
            if not sign:
                return number, percent
            right, _ = self._signed()
            self._result.signs.add("/" if sign == "÷" else sign)
            number, percent = combine(sign, number, right), False

    def _product_follows(self) -> bool:
        token = self._peek()
        return token is not None and token.kind in (Kind.OPEN, Kind.FRACTION) and not token.fresh

    def _fraction_follows(self) -> bool:
        token = self._peek()
        mixed = any(other.text == "÷" for other in self._tokens)
        return mixed and token is not None and token.text == "/" and not token.spaced

    def _signed(self) -> tuple[Fraction, bool]:
        signs = 0
        while sign := self._take("+", "-", "–"):
            self._result.signs.add("sign")
            signs += sign != "+"
        number, percent = self._powered()
        return (-number if signs % 2 else number), percent

    def _powered(self) -> tuple[Fraction, bool]:
        number, percent = self._operand()
        if self._take("^", "**"):
            self._result.signs.add("^")
            self._enter()
            number = power(number, self._signed()[0])
            self._depth -= 1
        while self._reading.tight and (self._product_follows() or self._fraction_follows()):
            sign = self._take("/") or "*"
            self._result.signs.add(sign)
            number = combine(sign, number, self._operand()[0])
        return number, percent

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise Unknown

    def _operand(self) -> tuple[Fraction, bool]:
        token = self._peek()
        if token is None or token.kind not in (Kind.NUMBER, Kind.OPEN, Kind.FRACTION):
            raise Unknown
        at = self._at
        self._at += 1
        if token.kind is Kind.FRACTION:
            top, bottom = self._operand()[0], self._operand()[0]
            self._result.signs.add("/")
            number = combine("/", top, bottom)
        elif token.kind is Kind.OPEN:
            number = self._group()
        else:
            number = self._number(token, self._edge(at, token))
        return self._suffixed(number)

    def _edge(self, at: int, token: Token) -> str:
        """Return at which edge of the sum a number may be cut; a point numbers a line only where the line begins."""
        edge = self._edges.get(at, "")
        return "" if edge == "first" and "." in token.text and not token.fresh else edge

    def _number(self, token: Token, edge: str) -> Fraction:
        number, place = written(token.text, self._reading, edge)
        self._result.place = place
        self._result.rounded |= 0 < place <= Fraction(1, 100)
        if token.unit:
            self._result.units.append(token.unit + token.power)
        else:
            self._result.units.append("")
        return number

    def _group(self) -> Fraction:
        self._enter()
        at = self._at
        number, percent = self._sum()
        end = self._peek()
        if end is None or end.kind is not Kind.CLOSE or percent:
            raise Unknown
        if self._at == at + 1 and self._is_sequence(at):
            raise Unknown
        self._at += 1
        self._depth -= 1
        if end.unit:
            self._result.units.append(end.unit + end.power)
        return number

    def _is_sequence(self, at: int) -> bool:
        """Whether a group of one number is a list, [3], or a pair, (3,4)."""
        return self._tokens[at - 1].text == "[" or ("," in self._tokens[at].text and self._reading.comma != "us")

    def _suffixed(self, number: Fraction) -> tuple[Fraction, bool]:
        percent = False
        while (token := self._peek()) is not None and token.kind is Kind.OPERATOR and token.text in "!%":
            self._at += 1
            if token.text == "%":
                percent = True
                if self._reading.percent != "plain":
                    number /= 100
                    self._result.place = None if self._result.place is None else self._result.place / 100
            else:
                self._result.signs.add("!")
                number = _factorial(number)
        return number, percent


def _factorial(number: Fraction) -> Fraction:
    if number.denominator != 1 or not 0 <= number <= 200:
        raise Unknown
    return Fraction(math.factorial(int(number)))


def agree(left: Value, right: Value, about: bool) -> bool:
    """Return whether two sides are honestly equal: exactly, or at the precision at which one of them is shown."""
    if left.number == right.number:
        return True
    return _shows(left, right, about) or _shows(right, left, about) or _near(left, right, about)


def _shows(exact: Value, shown: Value, about: bool) -> bool:
    """Whether the plain number `shown` is `exact` as rounded, or cut off, at its last place."""
    if shown.place is None or shown.place == 0:
        return False
    off = abs(exact.number - shown.number)
    if shown.place < 1:
        longer = (exact.number / shown.place).denominator != 1
        return 2 * off <= shown.place or (longer and shown.place <= Fraction(1, 100) and off < shown.place)
    if about:
        return 2 * off <= shown.place
    # 100/7 = 14 is what people write; 7/2 = 4 is not
    return "/" in exact.signs and 2 * off <= shown.place and 50 * off <= abs(exact.number)


def _near(left: Value, right: Value, about: bool) -> bool:
    """Whether the sides differ by no more than rounding in between explains."""
    off, size = abs(left.number - right.number), max(abs(left.number), abs(right.number))
    if about:
        return 20 * off <= size
    if (left.rounded or right.rounded) and NOISE * off <= max(size, Fraction(1)):
        return True  # 10.9166666666666668 - 10 as a computer shows it
    products = (left.signs | right.signs) & {"*", "×", "/"}
    whole = all(side.place is None or side.place >= 1 for side in (left, right))
    return bool(products) and (left.rounded or right.rounded) and whole and 200 * off <= size
