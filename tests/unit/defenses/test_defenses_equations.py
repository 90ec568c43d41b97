"""Literal equations: honest texts pass, false ones do not, in whatever notation."""

from fractions import Fraction
from random import Random
from typing import Any

import arithmetic_texts
import pytest

from shoal.defenses.arithmetic import Sum, power
from shoal.defenses.equations import UNCHECKED, equations, first_false
from shoal.defenses.notation import Token, normal, tokens
from shoal.defenses.numerals import Reading, Unknown, written


@pytest.mark.parametrize("text", arithmetic_texts.HONEST)
def test_honest_texts_pass(text):
    assert first_false(text, "") is None


@pytest.mark.parametrize("text", ["So 1.5+2=7.", "so 12.5 + 3 = 8", "2,000+2=2", "2+2====5", "2 + 2 ==== 5"])
def test_what_reads_as_something_else_only_with_an_effort_is_false(text):
    assert first_false(text, "") is not None


@pytest.mark.parametrize("text", ["Sums\n1.2+2=4", "2+2=4\n=====\n5 is odd", "==== 5 ====\n2+2=4", "1000+2000=3,000"])
def test_numbered_lines_and_rulers_are_no_part_of_a_sum(text):
    assert first_false(text, "") is None


@pytest.mark.parametrize("text", arithmetic_texts.FALSE)
def test_false_statements_are_found(text):
    assert first_false(text, "") is not None


def test_false_statements_of_two_numbers_are_found_in_every_notation():
    statements = list(arithmetic_texts.false_statements(seed=0, rounds=8))
    missed = [text for text in statements if first_false(text, "") is None]
    assert len(statements) > 1000
    assert missed == []


def test_honest_texts_pass_together_as_one_text():
    honest = [text for text in arithmetic_texts.HONEST if "base" not in text and "binary" not in text]
    assert first_false("\n".join(honest), "") is None


def test_a_false_statement_is_found_in_a_long_honest_text():
    honest = "\n".join(text for text in arithmetic_texts.HONEST[:60] if "mod" not in text)
    assert first_false(f"{honest}\n2 + 2 = 7\n{honest}", "") == "2+2=7"


def test_equations_of_the_prompt_are_quoted_and_not_stated():
    prompt = "Is 2 + 2 = 5 true?"
    assert first_false("It says 2+2=5.", prompt) is None
    assert first_false("It says 2+2=6.", prompt) == "2+2=6"
    assert first_false("2 + 2 = 50", "Is 2 + 2 = 5 true?") == "2+2=50"


def test_bases_and_moduli_of_the_prompt_are_read():
    assert first_false("1 + 1 = 10", "Add the binary numbers.") is None
    assert first_false("1 + 1 = 10", "Add the numbers.") == "1+1=10"
    assert first_false("5 + 4 = 2", "Compute modulo 7.") is None


def test_only_what_can_be_recomputed_is_an_equation():
    found = [(equation.text, equation.holds) for equation in equations("x = 5, 2+2=4, f(2)+1=9, 3-1=1")]
    assert found == [("2+2=4", True), ("3-1=1", False)]


@pytest.mark.parametrize(
    ("text", "reading", "expected"),
    [
        ("1,234.5", Reading(), (Fraction(2469, 2), Fraction(1, 10))),
        ("1.234,5", Reading(comma="eu"), (Fraction(2469, 2), Fraction(1, 10))),
        ("1 000", Reading(), (Fraction(1000), Fraction(1))),
        ("2 1/3", Reading(), (Fraction(7, 3), Fraction(0))),
        ("1.5e3", Reading(), (Fraction(1500), Fraction(100))),
        ("101", Reading(base=2), (Fraction(5), Fraction(0))),
    ],
)
def test_written_numbers(text, reading, expected):
    assert written(text, reading) == expected


@pytest.mark.parametrize("text", ["1,2", "1.2.3", "9" * 500, "1e999", "1,2345"])
def test_numbers_that_are_not_read(text):
    with pytest.raises(Unknown):
        written(text, Reading())


def test_precedence_is_that_of_arithmetic():
    def result(text):
        return Sum(tokens(normal(text)), Reading(), False, False).value().number

    assert result("2+3*4") == 14
    assert result("2-3-4") == -5
    assert result("2^3^2") == 512
    assert result("-3^2") == -9
    assert result("8/4/2") == 1
    assert result("7 // 2 * 2 + 7 % 4") == 9
    assert result("2(3+4)") == 14
    assert result("50%*4") == 2


def test_powers_are_refused_before_they_are_computed():
    assert power(Fraction(2), Fraction(-3)) == Fraction(1, 8)
    for base, exponent in ((9, 9**9), (2, 5000), (10**300, 100)):
        with pytest.raises(Unknown):
            power(Fraction(base), Fraction(exponent))
    for exponent in (Fraction(1, 2), Fraction(-1)):
        with pytest.raises(Unknown):
            power(Fraction(0), exponent)


def test_a_sum_too_long_to_read_from_its_beginning_is_not_judged():
    assert first_false("1+" * 400 + "1=401", "") is None
    assert first_false("1+" * 400 + "1=2", "") is None
    assert first_false("1+" * 40 + "1=2", "") is not None


@pytest.mark.parametrize("text", ["x = 3 -", "=3 \u2212", "2+2 = 4 - ", "1 = 2 - = 3", "= - 3 apples -"])
def test_a_text_that_is_cut_off_behind_a_sign_is_read(text):
    assert first_false(text, "") is None


def test_fragments_in_any_order_are_read_without_an_error():
    rng = Random(4)
    pieces = [*arithmetic_texts.HONEST[::9], *"0123456789+-*/=().,%!^ \n'\"|&_\u2212"]
    for _ in range(1500):
        text = "".join(rng.choice(pieces) for _ in range(rng.randint(1, 12)))
        first_false(text[: rng.randint(1, 60)], "base 7, mod 5")


AMBIGUOUS = (
    "**1,000/0÷2÷3+25%÷10*1,000++(2)0+3^2+3^2/2÷3*/2÷3÷2÷3/(1,000.5+2)÷1.5-2÷3-01.5="  # in every reading, to no end
)


def test_what_is_beyond_the_bounds_of_computing_does_not_pass_unchecked():
    assert first_false(AMBIGUOUS * 3, "") is None
    assert first_false(AMBIGUOUS * 100, "") == UNCHECKED
    assert first_false("= " * 1025, "") == UNCHECKED
    assert first_false("= " * 1025 + "2+2=5", "") == UNCHECKED
    assert first_false("= " * 1020 + "2+2=5", "") == "2+2=5"


def test_the_bounds_leave_room_for_long_honest_text():
    honest = [text for text in arithmetic_texts.HONEST if "base" not in text and "binary" not in text]
    assert first_false("1+1=2,2+2=4,3+3=6," * 400, "") is None
    assert first_false("\n".join(honest) * 20, "") is None
    assert first_false("The sum is 5, which is what it is. " * 800, "") is None


def test_what_is_computed_is_bounded(monkeypatch: pytest.MonkeyPatch):
    worked: list[int] = []

    class Counted(Sum):
        def __init__(self, tokens: list[Token], *reading: Any) -> None:
            worked.append(len(tokens))
            super().__init__(tokens, *reading)

    monkeypatch.setattr("shoal.defenses.equations.Sum", Counted)
    assert first_false(AMBIGUOUS * 100, "") == UNCHECKED
    assert sum(worked) <= 6 * 100 * len(tokens(normal(AMBIGUOUS)))
