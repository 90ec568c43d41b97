"""How far the sums on both sides of an equality sign reach, and where else they may as well begin or end."""

from dataclasses import dataclass, field

from shoal.defenses.arithmetic import LONGEST_SUM
from shoal.defenses.notation import Kind, Token, listed
from shoal.defenses.wording import ABOUT, BENT, FILLER, PARTS

_LABELS = frozenset(
    listed("step case part line question problem example option day week round equation section no row")
)
_UNREADABLE = frozenset("_|&√∛±∓∑∏∫@")
_OPAQUE = (Kind.WORD, Kind.OPAQUE)
PROSE = 3  # words in a row before or after a dash make it punctuation


@dataclass(slots=True)
class Spans:
    """The spans (start, end) that one side may have, the longest first; none when it has an unknown."""

    found: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    about: bool = False  # "equals about"
    whole: bool = False  # reaches the next equality sign


def partners(tokens: list[Token]) -> dict[int, int]:
    """Return, for every matched bracket, the place of the other one."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for place, token in enumerate(tokens):
        if token.kind is Kind.OPEN:
            opened.append(place)
        elif token.kind is Kind.CLOSE and opened:
            start = opened.pop()
            pairs[start], pairs[place] = place, start
    return pairs


def _is_word(token: Token) -> bool:
    """Whether a token is a word rather than the name of a number."""
    return token.text.isalpha() and len(token.text) > 1


class Sides:
    """Reads the sides of equality signs in one list of tokens."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._partner = partners(tokens)

    def left(self, end: int, floor: int) -> Spans:
        """Return the spans of the sum that ends before `end`, not beginning before `floor`."""
        cuts: list[int] = []
        dashes: list[int] = []
        limit = end - LONGEST_SUM
        floor = max(floor, limit)
        at = end - 1
        while True:
            while at > floor and self._tokens[at].text in ("!", "%"):
                at -= 1
            begin = self._begin(at, floor)
            if begin is None:
                starts = self._without_operand(at, floor, end)
                break
            before = begin - 1
            if before < floor:
                starts = [begin]
                break
            token = self._tokens[before]
            if token.kind is Kind.OPERATOR and token.text not in ("!", "%"):
                self._note_cut(before, cuts, dashes)
                at = before - 2 if self._is_signed(before, floor) else before - 1
            elif self._product_between(before, begin):
                cuts += [] if self._in_fraction(before) else [begin]
                at = before
            else:
                starts = [] if self._bends(before, begin) else [begin]
                cuts += dashes if token.text.lower() in _LABELS else []
                break
        if not starts or min(starts) <= limit:  # too long to be read from its beginning
            return Spans()
        return Spans([(start, end) for start in sorted({*starts, *cuts})])

    def _begin(self, at: int, floor: int) -> int | None:
        """Return where the operand that ends at `at` begins; None when no number or group ends there."""
        if at < floor or self._tokens[at].quoted:
            return None
        kind = self._tokens[at].kind
        begin = at if kind is Kind.NUMBER else self._partner.get(at, -1) if kind is Kind.CLOSE else -1
        if begin < floor:
            return None
        return begin - 1 if begin > floor and self._tokens[begin - 1].kind is Kind.FRACTION else begin

    def _without_operand(self, at: int, floor: int, end: int) -> list[int]:
        """Return the starts where something else than an operand stands before a sign or before the equality."""
        sign = at + 1
        if sign >= end or self._tokens[sign].kind is not Kind.OPERATOR:
            return []
        token = self._tokens[sign]
        if at >= floor:
            before = self._tokens[at]
            if token.text == "-" and token.spaced and not self._tokens[sign + 1].spaced and _is_word(before):
                return [sign, sign + 1]  # so -1 + 3 = 2
            if before.kind in _OPAQUE:
                return [sign + 1] if self._dash_after_prose(sign) else []
            if before.quoted or before.kind is Kind.CLOSE or before.text in _UNREADABLE:
                return []
        if token.text not in ("+", "-", "–"):
            return [sign + 1]
        bullet = sign + 1 < end and self._tokens[sign + 1].spaced
        return [sign, sign + 1] if bullet else [sign]

    def _dash_after_prose(self, sign: int) -> bool:
        token = self._tokens[sign]
        if token.text not in ("-", "–") or not token.spaced:
            return False
        words = self._tokens[max(sign - PROSE, 0) : sign]
        return token.text == "–" or (len(words) == PROSE and all(word.text.isalpha() for word in words))

    def _note_cut(self, sign: int, cuts: list[int], dashes: list[int]) -> None:
        """Note that the sum may as well begin at this sign: a bullet, or a dash between phrases."""
        token = self._tokens[sign]
        if token.fresh or (token.text == "–" and token.spaced):
            cuts += [sign + 1] if token.text in ("*", "×", "/", "÷") else [sign, sign + 1]
        elif token.text == "-" and token.spaced:
            dashes.append(sign + 1)

    def _is_signed(self, sign: int, floor: int) -> bool:
        """Whether this is the sign of a number after an operation: 5 - -3."""
        before = sign - 1
        if self._tokens[sign].text not in ("+", "-") or before < floor:
            return False
        return self._tokens[before].kind is Kind.OPERATOR and self._tokens[before].text not in ("!", "%")

    def _product_between(self, before: int, begin: int) -> bool:
        """Whether a group follows a number or a group directly, which is a product without a sign."""
        group = self._tokens[begin]
        ended = self._tokens[before].kind in (Kind.NUMBER, Kind.CLOSE)
        return group.kind in (Kind.OPEN, Kind.FRACTION) and ended and not group.fresh

    def _in_fraction(self, close: int) -> bool:
        opened = self._partner.get(close, 0)
        return opened > 0 and self._tokens[opened - 1].kind is Kind.FRACTION

    def _bends(self, before: int, begin: int) -> bool:
        """Whether the token before the first operand changes its value: a function, "half of", a subscript."""
        token = self._tokens[before]
        if token.kind is not Kind.WORD:
            return token.text in _UNREADABLE and token.text != "|"
        if self._tokens[begin].kind is Kind.OPEN and not self._tokens[begin].spaced:
            return True
        if token.text.lower() != "of":
            return token.text.lower() in BENT
        previous = self._tokens[before - 1] if before else token
        return previous.kind in (Kind.NUMBER, Kind.OPERATOR) or previous.text.lower() in PARTS

    def right(self, start: int, ceiling: int, chained: bool) -> Spans:
        """Return the spans of the sum that begins at `start`; `chained` when another equality stands at `ceiling`."""
        spans = Spans()
        while start < ceiling and self._tokens[start].text.lower() in ABOUT | FILLER:
            spans.about |= self._tokens[start].text.lower() in ABOUT
            start += 1
        if start + 1 == ceiling and self._tokens[start].kind is Kind.WORD and not self._tokens[start].fresh:
            spans.whole = chained  # 2+2=x=4
        limit = start + LONGEST_SUM
        ceiling = min(ceiling, limit)
        cuts: list[int] = []
        at, full = start, start
        while (end := self._end(at, ceiling)) is not None:
            cuts += [] if cuts or not chained else [end]
            full = end
            if end >= ceiling:
                break
            token = self._tokens[end]
            if token.text == "_":
                return spans
            if self._product_between(end - 1, end):
                cuts.append(end)
                at = end
                continue
            if token.kind is not Kind.OPERATOR:
                break
            cuts += [end] if self._may_end(end, ceiling) else []
            at = end + 1
        if full == limit or (end is None and (at >= limit or self._is_unknown(at, ceiling))):
            return spans
        spans.whole = chained and full == ceiling
        ends = {full, *cuts[0 if spans.whole else int(chained and len(cuts) > 0) :]} - {start}
        spans.found = [(start, place) for place in sorted(ends, reverse=True)]
        return spans

    def _end(self, at: int, ceiling: int) -> int | None:
        """Return where the operand that begins at `at` ends, its signs and marks included; None when none does."""
        limit = at + 3
        while at < min(ceiling, limit) and self._tokens[at].text in ("+", "-", "–"):
            at += 1
        groups = 1
        if at < ceiling and self._tokens[at].kind is Kind.FRACTION:
            at, groups = at + 1, 2
        for _ in range(groups):
            if at >= ceiling or self._tokens[at].kind not in (Kind.NUMBER, Kind.OPEN):
                return None
            at = at + 1 if self._tokens[at].kind is Kind.NUMBER else self._partner.get(at, ceiling) + 1
            if at > ceiling:
                return None
        while at < ceiling and self._tokens[at].text in ("!", "%"):
            at += 1
        return at

    def _may_end(self, sign: int, ceiling: int) -> bool:
        """Whether the sum may as well end before this sign: a bullet on a new line, or a dash before a phrase."""
        token = self._tokens[sign]
        if token.fresh or (token.text == "–" and token.spaced):
            return True
        after = sign + 2
        words = after < ceiling and self._tokens[after].kind is Kind.WORD
        counted = sign + 1 < ceiling and bool(self._tokens[sign + 1].unit)  # a text that is cut off ends with a sign
        return token.text == "-" and token.spaced and (words or counted)

    def _is_unknown(self, at: int, ceiling: int) -> bool:
        """Whether a sign is followed by a letter or a word, rather than by the end of the sum or a dash and prose."""
        if at >= ceiling or self._tokens[at].kind not in _OPAQUE:
            return False
        sign = self._tokens[at - 1]
        words = self._tokens[at : at + PROSE]
        dash = sign.text in ("-", "–") and sign.spaced
        prose = len(words) == PROSE and all(word.text.isalpha() for word in words)
        return not (dash and (sign.text == "–" or prose))
