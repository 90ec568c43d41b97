"""Whatever a peer writes, the invariants give a verdict, and true equations are never refused."""

import sys
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.defenses.equations import first_false
from shoal.defenses.imports import forbidden_import
from shoal.defenses.notation import normal, tokens

PIECES = st.sampled_from(
    [
        *"0123456789+-*/=^%().,:[]{}!$_&|~<>#'\"\n\t \\√½²₂①×÷–≈≡",
        "\\frac", "\\times", "\\boxed{", "**", "==", "9**9**9", "1e999", "10^400", "mod 7", "(mod 0)", "twenty", "plus",
        "equals", "is", "of", "apples", "x", "3x", "0x1f", "import q", "from q import", "exec('", "```", "__import__",
        "1,000", "1 000", "1.000,5", "10:30", "2024-01-01", "50%", "½", "1 1/2", "base 99", "base 2", "lambda:", "not ",
    ]
)  # fmt: skip
WHOLE = st.integers(-10_000, 10_000)


@given(st.lists(PIECES, max_size=60).map("".join))
@settings(max_examples=400)
def test_any_text_gets_an_answer(text):
    assert first_false(text, text) is None  # what the prompt says is quoted
    first_false(text, "")
    forbidden_import(text, frozenset())


@given(st.text(max_size=200))
def test_any_characters_become_tokens(text):
    assert len(tokens(normal(text))) <= 4 * len(text) + 40 * text.count("㊿") + 32


@given(WHOLE, WHOLE, st.sampled_from(["+", "-", "*"]), st.integers(1, 50))
def test_exactly_the_true_equations_hold(a, b, sign, off):
    right = {"+": a + b, "-": a - b, "*": a * b}[sign]
    statement = f"{a} {sign} {b} = "
    assert first_false(f"so {statement}{right}.", "") is None
    assert first_false(f"so {statement}{right + off}.", "") is not None


@given(st.integers(1, 10_000), st.integers(2, 999), st.integers(1, 6))
def test_quotients_hold_at_the_precision_shown(a, b, places):
    shown = round(Fraction(a, b), places)
    written = f"{int(shown * 10**places):0{places + 1}d}"
    assert first_false(f"{a}/{b} = {written[:-places]}.{written[-places:]}", "") is None


@given(PIECES, PIECES, st.integers(1, 40))
@settings(max_examples=200)
def test_work_grows_with_the_length_and_not_faster(first, second, count):
    """Count what the interpreter does: four times the text costs less than eight times the work."""
    short, long = ((first + second) * (count + 60) * times for times in (1, 4))
    assert _work(long) <= 8 * _work(short) + 2000


@pytest.mark.parametrize("link", ["=2", " is 2", "=2 apples"])
def test_a_chain_costs_by_its_length(link):
    """Each link of a+b=c=d is held against the sum before all of them: none is read again for those that follow."""
    short, long = ("1+1" + link * count for count in (250, 1000))
    assert _work(long) <= 6 * _work(short)


def _work(text: str) -> int:
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        first_false(text, "")
        forbidden_import(text, frozenset())
    finally:
        sys.setprofile(None)
    return calls
