"""Peers' text: what is shown of it is harmless, and what honest models write is let through."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from shoal.defenses.text import TextRules, check_text, safe

RULES = TextRules(max_chars=1000, max_tokens=64, special_tokens=("<|im_end|>",), decode_ids=None)
# Letters, marks, digits, punctuation, symbols and the white space that models write.
honest = st.text(
    st.one_of(st.characters(categories=["L", "N", "P", "Sm", "Sc", "Sk", "So", "Zs"]), st.sampled_from("\n\t\r")),
    max_size=300,
)


@given(st.text(st.characters(), max_size=300), st.integers(0, 120))
def test_what_is_shown_is_printable_within_its_limit_and_stable(text: str, limit: int):
    shown = safe(text, limit)
    assert len(shown) <= limit
    assert shown.isprintable()
    assert not any(unicodedata.category(c) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"} for c in shown)
    assert safe(shown, limit) == shown


@given(honest)
def test_honest_text_is_let_through(text: str):
    fillers = set("\u115f\u1160\u3164\uffa0")  # letters by name, but without a glyph
    assert check_text(text, None, RULES).usable or fillers & set(text)


@given(st.text(max_size=100), st.characters(categories=["Cc", "Cf"]), st.integers(0, 100))
def test_no_hidden_character_is_let_through(text: str, hidden: str, place: int):
    # White space that models write; number signs and the like, which have a glyph; hieroglyphs' joints.
    visible = {*"\n\t\r\u06dd\u070f\u08e2\u0890\u0891\U000110bd\U000110cd", *map(chr, range(0x600, 0x606))}
    visible |= set(map(chr, range(0x13430, 0x13440)))
    changed = text[:place] + hidden + text[place:]
    assert not check_text(changed, None, RULES).usable or hidden in visible
