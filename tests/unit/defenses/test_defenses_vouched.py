"""Where the answer stands, which tokens it vouches for, and what is left to be judged."""

import pytest

from shoal.defenses.vouched import answer_span, pieces, vouched_tokens


@pytest.mark.parametrize(
    ("text", "answer", "found"),
    [
        ("The answer is 42.", "42", "The answer is [42]."),
        ("42 is 42", "42", "42 is [42]"),
        ("42 then 421", "42", "[42] then 421"),
        ("x42 42x 42_", "42", None),
        ("it is 42.5 or 4,200", "42", None),
        ("it is 42.5", "5", None),
        ("in 3.42", "42", None),
        ("sum: 42, done", "42", "sum: [42], done"),
        ("so.42", "42", "so.[42]"),
        ("x = -12.5;", "-12.5", "x = [-12.5];"),
        ("cba", " cba\n", "[cba]"),
        ("a-b a-b", "a-b", "a-b [a-b]"),
        ("abab ab a", "ab", "abab [ab] a"),
        ("?!?!?", "?!?", "?![?!?]"),
        ("x?!?x", "?!?", "x[?!?]x"),
        ("a!a!ab", "a!a", "[a!a]!ab"),
        (".5", "5", ".[5]"),
        ("1,5", "5", None),
        ("no answer", "42", None),
        ("", "42", None),
        ("anything", "  ", None),
    ],
)
def test_the_last_place_where_the_answer_stands_alone(text: str, answer: str, found: str | None) -> None:
    span = answer_span(text, answer)
    shown = None if span is None else f"{text[: span[0]]}[{text[span[0] : span[1]]}]{text[span[1] :]}"
    assert shown == found


def test_a_long_text_of_near_answers_costs_one_pass() -> None:
    assert answer_span("a" * 60_000, "a") is None


def test_only_tokens_wholly_inside_the_answer_are_vouched() -> None:
    text = "so 12 34."
    offsets = [(0, 2), (3, 5), (5, 6), (6, 7), (7, 9), (9, 9)]  # so|12| |3|4.|end
    assert answer_span(text, "12 34") == (3, 8)
    assert vouched_tokens(offsets, (3, 8), finished=True) == [False, True, True, True, False, False]


def test_white_space_before_the_answer_and_the_end_mark_are_not_vouched() -> None:
    assert vouched_tokens([(0, 3), (3, 5)], (3, 5), finished=False) == [False, True]
    assert vouched_tokens([(0, 3), (3, 5)], (3, 5), finished=True) == [False, False]
    assert vouched_tokens([(3, 5), (5, 5)], (3, 5), finished=False) == [True, False]
    assert vouched_tokens([], (0, 1), finished=True) == []


def test_without_an_answer_nothing_is_vouched() -> None:
    assert vouched_tokens([(0, 1), (1, 2)], None, finished=True) == [False, False]


@pytest.mark.parametrize(
    ("vouched", "runs"),
    [
        ("....", [[0, 1, 2, 3]]),
        ("..v.", [[0, 1], [3]]),
        ("vv.v", [[2]]),
        (".vv.", [[0], [3]]),
        ("vvvv", []),
        ("", []),
    ],
)
def test_pieces_are_what_nothing_vouches_for(vouched: str, runs: list[list[int]]) -> None:
    assert pieces(range(len(vouched)), [mark == "v" for mark in vouched]) == runs


def test_every_id_needs_its_mark() -> None:
    with pytest.raises(ValueError, match="zip"):
        pieces([1, 2], [True])
