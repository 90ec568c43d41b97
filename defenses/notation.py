"""How arithmetic is written: one completion's text as tokens, whatever the script, the markup or the language of sums.

Normal forms first (full-width, circled and raised digits, LaTeX, HTML), then one pass of one pattern. Every pattern is
linear: no repetition inside a repetition over the same characters.
"""

import html
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

_TAG = re.compile(r"</?[A-Za-z][^<>\n]{0,40}>")
_RAISED = re.compile("[⁰¹²³⁴-⁹⁺⁻]{1,8}")
_LOWERED = re.compile("[₀-₉]{1,8}")
_VULGAR = re.compile("[¼-¾⅐-⅞]")
_CIRCLED = re.compile("[①-⒛⓪⓵-⓾❶-➓㉑-㉟㊱-㊿]")
_MARKS = re.compile("[\u00ad\u0300-\u0337\u0339-\u036f\u200b-\u200f\u2060\u20d0-\u20ff\ufe00-\ufe0f\ufeff]")
_SIGNS = str.maketrans(
    {
        **dict.fromkeys("\u2010\u2011\u2212\u2796\u00af\u02d7", "-"),
        **dict.fromkeys("\u2012\u2013\u2014\u2015", "–"),
        **dict.fromkeys("✕✖\u2a2f⨉·∙⋅\u2217", "×"),
        **dict.fromkeys("•\u204e✱✲", "*"),
        **dict.fromkeys("➗", "÷"),
        **dict.fromkeys("\u2215\u2044\u27cb", "/"),
        **dict.fromkeys("\u2795✚", "+"),
        **dict.fromkeys("꞊═〓", "="),
        **dict.fromkeys("≃≅\u223c", "≈"),
        **dict.fromkeys("\u0445\u0425", "x"),  # the Cyrillic letter that looks like a multiplication sign
        "\u066b": ".",
        "٬": ",",
    }
)
_SHORT_FRACTION = re.compile(r"\\[dt]?frac\s?(\d)\s?(\d)")
_COMMAND = re.compile(r"\\(?:[A-Za-z]{1,24}|[^A-Za-z])\s?")
_LATEX = {
    **dict.fromkeys(("times", "cdot", "ast", "bullet"), "×"),
    **dict.fromkeys(("div",), "÷"),
    **dict.fromkeys(("over",), "/"),
    **dict.fromkeys(("approx", "simeq", "sim", "cong"), "≈"),
    **dict.fromkeys(("equiv",), "≡"),
    **dict.fromkeys(("ne", "neq", "le", "leq", "ge", "geq", "to", "rightarrow", "Rightarrow", "implies"), "≠"),
    **dict.fromkeys(("pmod", "bmod", "mod"), " mod "),
    **dict.fromkeys(("left", "right", "big", "Big", "displaystyle", "quad", "qquad", "circ"), " "),
    **dict.fromkeys(("text", "textbf", "mathrm", "mathbf", "mathit", "boxed", "fbox", "bf", "rm"), " "),
    **dict.fromkeys(("%", "$"), None),
    "\\": "\n",
}
_BRACED_COMMA = re.compile(r"\{,\}")


def listed(words: str) -> list[str]:
    """Return the words of a list that is written as one line."""
    return words.split()


def normal(text: str) -> str:
    """Return the text with every sign of arithmetic in its plain form."""
    text = _TAG.sub(" ", html.unescape(text) if "&" in text else text)
    if not text.isascii():
        text = _VULGAR.sub(lambda found: f" {unicodedata.normalize('NFKC', found.group())} ", text)
        text = _CIRCLED.sub(lambda found: f" {int(unicodedata.numeric(found.group(), 0))} ", text)
        text = _RAISED.sub(lambda found: f"^({unicodedata.normalize('NFKC', found.group())})", text)
        text = _LOWERED.sub(lambda found: f"_{unicodedata.normalize('NFKC', found.group())}", text)
        text = unicodedata.normalize("NFKC", _MARKS.sub("", text))
        text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text).translate(_SIGNS)
    if "\\" in text:
        text = _COMMAND.sub(_command, _SHORT_FRACTION.sub(r"((\1)/(\2))", _BRACED_COMMA.sub(",", text)))
    return text


def _command(found: re.Match[str]) -> str:
    name = found.group()[1:].strip() or " "
    if name in ("frac", "dfrac", "tfrac", "cfrac"):
        return "\\frac"
    if name in _LATEX:
        plain = _LATEX[name]
        return name if plain is None else plain
    return " " if not name.isalpha() else f" {name} "


class Kind(Enum):
    """What a token is to arithmetic."""

    NUMBER = auto()
    OPAQUE = auto()  # a time, a date, a hexadecimal number: a value that is not recomputed
    WORD = auto()
    OPERATOR = auto()
    EQUALS = auto()
    OPEN = auto()
    CLOSE = auto()
    FRACTION = auto()  # LaTeX: the next two groups are numerator and denominator
    MARK = auto()  # ends any expression


@dataclass(slots=True)
class Token:
    """One token; `fresh` after a line break, `spaced` after white space, `unit` the noun that follows a number."""

    kind: Kind
    text: str
    fresh: bool = False
    spaced: bool = False
    unit: str = ""
    power: str = ""  # the exponent of the unit
    quoted: bool = False


_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,3}(?:[ '’]\d{3})+(?![\d/])|\d{1,3}(?:_\d{3})+(?!\d)|\d+)"
_PATTERN = re.compile(
    r"(?P<space>[ \t\r\f\v]+)|(?P<line>\n)"
    r"|(?P<opaque>\d{1,2}:\d{2}(?::\d{2})?(?![\d:])|(?:1[89]|2[01])\d\d-[01]\d-[0-3]\d(?!\d)"
    r"|\d{1,2}/\d{1,2}/(?:1[89]|2[01])\d\d(?!\d)|0[xXbBoO][0-9a-fA-F]+)"
    r"|(?P<mixed>\d{1,4} \d{1,3}/\d{1,3}(?![\d/.]))"
    rf"|(?P<number>\d{{1,3}}(?:\.\d{{3}})+,\d+|\d{{1,4}}(?:\.\d+){{2,}}|{_DIGITS}(?:[.,]\d+)?(?:[eE][+-]?\d{{1,4}}(?!\w))?|(?<![\w.])\.\d+)"
    r"|(?P<word>[^\W\d_]\w*)"
    r"|(?P<frac>\\frac)"
    r"|(?P<mark>={4,}(?![ \t]*[-+(]?\d)|=+>|!=|<=|>=|=<|->|<-|=/=|[-+*/]=(?!=)|[≠<>])"
    r"|(?P<equals>=+|≈=?|~=|≡|:=|≡)"
    r"|(?P<operator>\*\*|//|[-–+*×/÷^%!])"
    r"|(?P<open>[(\[{])|(?P<close>[)\]}])"
    r"|(?P<blank>&(?=[ ]?[=≈])|[`~$€£¥₹°\ufffc])"
    r"|(?P<quote>[\"“”'\u2018’«»])"
    r"|(?P<other>.)",
    re.DOTALL,
)
_KINDS = {
    "opaque": Kind.OPAQUE,
    "mixed": Kind.NUMBER,
    "number": Kind.NUMBER,
    "word": Kind.WORD,
    "frac": Kind.FRACTION,
    "mark": Kind.MARK,
    "equals": Kind.EQUALS,
    "operator": Kind.OPERATOR,
    "open": Kind.OPEN,
    "close": Kind.CLOSE,
    "quote": Kind.MARK,
    "other": Kind.MARK,
}


def tokens(text: str) -> list[Token]:
    """Return the tokens of a normalised text, in order."""
    return _without_emphasis(list(_scan(text)))


def _without_emphasis(found: list[Token]) -> list[Token]:
    """Return the tokens without emphasis by asterisks, and with percent signs told apart."""
    out: list[Token] = []
    opened = 0
    for place, token in enumerate(found):
        opened = 0 if token.fresh else max(opened - 1, 0)
        after = found[place + 1] if place + 1 < len(found) else None
        if token.kind is not Kind.OPERATOR or token.text not in ("*", "**"):
            if token.text == "%" and after is not None and _divides(token, after):
                token.text = "mod"
            out.append(token)
            continue
        signed = (
            after is not None and after.text in ("+", "-") and place + 2 < len(found) and not found[place + 2].spaced
        )
        if opened or not (_between_operands(out[-1] if out else None, token, after, signed)):
            # a bullet at the beginning of a line opens nothing
            opened = 0 if opened or after is None or after.spaced else _EMPHASIS
            if after is not None:
                after.spaced, after.fresh = True, after.fresh or token.fresh
            continue
        out.append(token)
    return out


_EMPHASIS = 24  # tokens at most between the two marks


def _divides(sign: Token, after: Token) -> bool:
    """Whether a percent sign takes the remainder of a division by what follows."""
    operand = after.kind in (Kind.NUMBER, Kind.OPEN, Kind.FRACTION) and not after.fresh
    return operand and (sign.spaced or not after.spaced)


def _between_operands(before: Token | None, sign: Token, after: Token | None, signed: bool) -> bool:
    if before is None or after is None or (sign.fresh and not after.spaced):
        return False
    if before.kind not in (Kind.NUMBER, Kind.CLOSE, Kind.WORD, Kind.OPAQUE) and before.text not in ("!", "%"):
        return False
    if after.text in ("*", "**"):
        return sign.spaced and after.spaced  # **2** * **3**
    if Kind.WORD in (before.kind, after.kind) and sign.spaced != after.spaced:
        return False
    return signed or after.kind in (Kind.NUMBER, Kind.OPEN, Kind.WORD, Kind.FRACTION, Kind.OPAQUE)


def _scan(text: str) -> Iterator[Token]:
    position, fresh, spaced, currency = 0, True, True, ""
    while position < len(text):
        found = _PATTERN.match(text, position)
        assert found is not None  # the last alternative takes any character
        name, piece = found.lastgroup or "", found.group()
        if name == "mixed" and not _is_mixed(piece):
            piece, name = piece.split(" ", 1)[0], "number"
        before, position = position, position + len(piece)
        if name in ("space", "line", "blank"):
            fresh, spaced = fresh or name == "line", spaced or name != "blank"
            currency = piece if name == "blank" and piece in "$€£¥₹" else currency
            continue
        token = Token(_KINDS[name], piece, fresh, spaced)
        if token.kind is Kind.NUMBER:
            token.unit = currency
            token.quoted = _quoted(text, before, position)
        elif token.kind is Kind.WORD and piece[0] in "xX" and before and text[before - 1].isdigit():
            if piece[1:2].isdigit():  # 3x4: the letter between digits is a product
                token.kind, token.text, position = Kind.OPERATOR, "*", before + 1
        elif piece == "_" and not _subscript(text, before):
            continue  # emphasis
        yield token
        fresh, spaced, currency = False, False, ""


def _is_mixed(piece: str) -> bool:
    numerator, denominator = piece.split(" ")[1].split("/")
    return int(numerator) < int(denominator)


def _subscript(text: str, at: int) -> bool:
    before, after = text[at - 1 : at], text[at + 1 : at + 2]
    return (before.isalnum() or before in (")", "}")) and (after.isalnum() or after == "{")


def _quoted(text: str, start: int, end: int) -> bool:
    """Whether a number is in quotation marks of its own: a string of digits."""
    return start > 0 and end < len(text) and text[start - 1] in "\"'“\u2018" and text[end] in "\"'”’"
