"""The text policy and the sanitiser."""

import random
import string

import pytest

from shoal.defenses.text import TextRules, check_text, safe

RULES = TextRules(max_chars=100, max_tokens=4, special_tokens=("<|im_end|>", "<s>", ""), decode_ids=None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a\x00b", "control_character"),
        ("\x1b[2J", "control_character"),
        ("bell\x07", "control_character"),
        ("del\x7f", "control_character"),
        ("c1\x9b31m", "control_character"),
        ("abc\u202ecba", "bidi_character"),
        ("\u2066x\u2069", "bidi_character"),
        ("mark\u200f", "bidi_character"),
        ("line\u2028separator", "bidi_character"),
        ("zero\u200bwidth", "zero_width"),
        ("\ufeffbom", "zero_width"),
        ("joined\u2060", "zero_width"),
        ("tag\U000e0041", "zero_width"),
        ("filler\u3164", "zero_width"),
        ("over<|im_end|>", "special_token"),
        ("<s>", "special_token"),
        ("x" * 101, "too_long"),
        ("e" + "\u0301" * 31, "stacked_marks"),
        ("e" + "\u0315\u0320" * 16, "stacked_marks"),
        ("\u0f73" * 31, "stacked_marks"),  # of class 0, and two marks in a normal form
        ("\u30ab" + "\uff9e\u0334" * 16, "stacked_marks"),  # half-width voice marks become marks
    ],
)
def test_what_no_honest_completion_holds_is_refused(text: str, reason: str):
    verdict = check_text(text, None, RULES)
    assert (verdict.usable, verdict.layer, verdict.reason) == (False, "text", reason)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "two\nlines\twith tab\r\n",
        "x" * 100,
        "größe 水 π ≠ 3 👍🏽",
        "\ufffd",
        "a < b | c > d",
        "<|im_start",
        "e" + "\u0301" * 30,
        "e\u0301\u0323" * 30,
        "\u0e01\u0e34\u0e48 \u0928\u093f\u0930\u094d\u0926\u0947\u0936 \uff76\uff9e",
    ],
)
def test_honest_text_passes(text: str):
    assert check_text(text, None, RULES).usable


def test_ids_must_decode_to_the_text():
    rules = TextRules(100, 4, (), decode_ids=lambda ids: "".join(map(chr, ids)), vocabulary=128)
    assert check_text("ab", (97, 98), rules).usable
    assert check_text("ac", (97, 98), rules).reason == "ids_differ_from_text"
    assert check_text("ab", (97, 4_000_000_000), rules).reason == "token_out_of_range"
    assert check_text("abcde", (97, 98, 99, 100, 101), rules).reason == "too_many_tokens"


def test_ids_of_another_tokenizer_are_only_counted():
    assert check_text("ab", (1, 2), RULES).usable
    assert check_text("ab", (1, 2, 3, 4, 5), RULES).reason == "too_many_tokens"


def test_no_honest_text_is_refused():
    rng = random.Random(0)
    alphabet = string.ascii_letters + string.digits + string.punctuation + " \n\täöüßéñ中文字ждюعربيहिन्दी🙂🚀"
    refused = 0
    for _ in range(2000):
        text = "".join(rng.choices(alphabet, k=rng.randint(0, 99)))
        refused += not check_text(text, None, TextRules(100, 4, ("<|im_end|>", "<|endoftext|>"), None)).usable
    assert refused == 0


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("a\nb\tc\r", r"a\x0ab\x09c\x0d"),
        ("\x9b", r"\x9b"),
        ("\u202eabc", r"\u202eabc"),
        ("\u200b\ufeff", r"\u200b\ufeff"),
        ("\ue000\U000f0000", r"\ue000\U000f0000"),
        ("\ud800", r"\ud800"),
        ("\u2028", r"\u2028"),
        ("\U000e0041", r"\U000e0041"),
        ("\u3164\xa0", r"\u3164\xa0"),
        ("größe 水 👍", "größe 水 👍"),
    ],
)
def test_what_is_shown_has_no_hidden_characters(text: str, shown: str):
    assert safe(text) == shown


@pytest.mark.parametrize(
    ("limit", "shown"),
    [(0, ""), (1, "…"), (4, "abc…"), (6, "abc…"), (8, r"abc\x1b…"), (9, r"abc\x1bde"), (10, r"abc\x1bde")],
)
def test_what_is_shown_is_cut_outside_of_escapes(limit: int, shown: str):
    assert safe("abc\x1bde", limit) == shown
