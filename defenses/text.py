"""Peers' text: what may be trained on (layer 6) and how it may be shown (layer 15)."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from shoal.defenses.verdict import ACCEPTED, Verdict, reject

# C0 without tab, line feed and carriage return, which models write honestly; DEL and C1.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# Marks and overrides that change the order in which a person reads, and the line and paragraph separators.
_BIDI = re.compile("[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# Characters without a glyph, among them the tag block, in which a whole message hides.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0"
    "\ufff9-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)

MOST_MARKS = 30
"""Marks in a row on one letter; no language needs more (Unicode Standard Annex 15, Stream-Safe Text Format).

Normal forms put them in order in quadratic time: half a second for 16,000 of them."""
_MARKS_IN_DISGUISE = "\uff9e\uff9f"  # half-width letters that a normal form makes marks


@dataclass(frozen=True, slots=True)
class TextRules:
    """What the text policy needs to know: the length cap, the forbidden strings, and how our tokenizer decodes.

    `decode_ids` is None when the rollout's tokenizer is not ours; `vocabulary` 0 means that its size is not known.
    """

    max_chars: int
    max_tokens: int
    special_tokens: tuple[str, ...]
    decode_ids: Callable[[Sequence[int]], str] | None
    vocabulary: int = 0


def check_text(text: str, ids: Sequence[int] | None, rules: TextRules) -> Verdict:
    """Judge one completion of a peer; `ids` are the token ids it sent, or None.

    Strict UTF-8 is the decoder's matter: what comes here is text already.
    """
    if len(text) > rules.max_chars:
        return reject("text", "too_long")
    for pattern, reason in ((_CONTROL, "control_character"), (_BIDI, "bidi_character"), (_INVISIBLE, "zero_width")):
        if pattern.search(text):
            return reject("text", reason)
    if not text.isascii() and _is_stacked(text):
        return reject("text", "stacked_marks")
    special = _special_pattern(rules.special_tokens)
    if special is not None and special.search(text):
        return reject("text", "special_token")
    return ACCEPTED if ids is None else _check_ids(text, ids, rules)


def _is_stacked(text: str) -> bool:
    """Whether more marks than any language needs follow each other."""
    marks = 0
    for character in text:
        is_mark = unicodedata.category(character)[0] == "M" or character in _MARKS_IN_DISGUISE
        marks = marks + 1 if is_mark else 0
        if marks > MOST_MARKS:
            return True
    return False


def _check_ids(text: str, ids: Sequence[int], rules: TextRules) -> Verdict:
    if len(ids) > rules.max_tokens:
        return reject("text", "too_many_tokens")
    if rules.decode_ids is None:
        return ACCEPTED
    if rules.vocabulary and any(token >= rules.vocabulary for token in ids):
        return reject("text", "token_out_of_range")
    return ACCEPTED if rules.decode_ids(ids) == text else reject("text", "ids_differ_from_text")


@lru_cache(maxsize=8)
def _special_pattern(tokens: tuple[str, ...]) -> re.Pattern[str] | None:
    """Compile the forbidden strings, longest first; None when there are none."""
    words = sorted({token for token in tokens if token}, key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, words))) if words else None


def safe(text: str, limit: int = 200) -> str:
    r"""Return peers' text as one printable line of at most `limit` characters, for every screen, log and report.

    Control characters (line breaks too: a log line stays one line), ESC, bidi, zero-width, private, unassigned and
    surrogate characters, and every space but the plain one, appear as \xNN, \uNNNN or \UNNNNNNNN; what is cut off is
    marked by an ellipsis. Markup of the place where it is shown (HTML, a console's brackets) is that place's to escape.
    """
    pieces: list[str] = []
    length = 0
    for character in text:
        piece = _escaped(character)
        if length + len(piece) > limit:
            return _cut(pieces, limit)
        pieces.append(piece)
        length += len(piece)
    return "".join(pieces)


def _escaped(character: str) -> str:
    if character.isprintable() and _INVISIBLE.match(character) is None:
        return character
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _cut(pieces: list[str], limit: int) -> str:
    """Join pieces so that an ellipsis still fits; an escape is never cut in the middle."""
    length = sum(map(len, pieces))
    while pieces and length > limit - 1:
        length -= len(pieces.pop())
    return "".join(pieces) + ("…" if limit > 0 else "")
