"""What a completion shows, counted against tables made by hand and by brute force."""

import math
from array import array

import pytest

from shoal.defenses.behaviour import FALSE, LONG, Reference, View, chernoff, log_ratio, tokens_of


def run(*ids: int) -> bytes:
    return array("I", ids).tobytes()


def test_a_completion_shows_its_runs_up_to_three_tokens_within_each_piece() -> None:
    found = Reference().behaviours(View(False, [[7, 8, 9, 7], [1]]))
    short = {run(7), run(8), run(9), run(1)}
    assert found == short | {run(7, 8), run(8, 9), run(9, 7), run(7, 8, 9), run(8, 9, 7)}
    assert {tokens_of(behaviour) for behaviour in found if len(behaviour) == 8} == {(7, 8), (8, 9), (9, 7)}


def test_answers_are_counted_once_each_and_runs_never_cross_pieces_or_ids() -> None:
    # The bytes of (0x0100, 0x0200) hold those of the id 0x00020000 across a boundary; it is in no answer.
    answers = [View(True, [[1, 2], [3]]), View(False, [[1, 2, 1, 2]]), View(False, [[0x0100, 0x0200]]), View(True, [])]
    reference = Reference(answers)
    assert reference.count(run(1, 2)) == 2
    assert reference.count(run(2, 3)) == 0
    assert reference.count(run(0x0200)) == 1
    assert reference.count(run(0x00020000)) == 0
    assert len(reference) == 4


@pytest.mark.parametrize("wanted", [run(5), run(5, 6), run(6, 5, 6)])
def test_looking_up_is_what_collecting_would_give(wanted: bytes) -> None:
    answers = [View(False, [[(i * j) % 4 + 4 for j in range(6)], [i % 3 + 5]]) for i in range(40)]
    reference = Reference(answers)
    assert reference.count(wanted) == sum(wanted in reference.behaviours(answer) for answer in answers)


def test_false_statements_and_long_detours_to_right_answers_are_behaviours_too() -> None:
    short, long, wrong = View(True, [[1] * 8]), View(True, [[1] * 13]), View(False, [[1] * 40], violates=True)
    reference = Reference([short] * 19 + [wrong])
    assert reference.longest == 12.0  # a quarter above 8, and two tokens
    assert LONG not in reference.behaviours(short)
    assert LONG in reference.behaviours(long)
    assert LONG not in reference.behaviours(wrong), "what is not right is not lifted by its reward"
    assert FALSE in reference.behaviours(wrong)
    assert (reference.count(FALSE), reference.count(LONG)) == (1, 0)
    assert tokens_of(FALSE) == tokens_of(LONG) == ()


def test_right_answers_without_any_detour_leave_room_for_two_tokens() -> None:
    reference = Reference([View(True, [])] * 30 + [View(False, [[1] * 9])] * 30)
    assert LONG not in reference.behaviours(View(True, [[1, 2]]))
    assert LONG in reference.behaviours(View(True, [[1, 2, 3]]))


def test_a_group_is_one_observation() -> None:
    # 0.5 to 0.75 for single completions, two of three; for pairs 0.75 to 0.9375.
    assert math.isclose(log_ratio(2, 3, 1, 0.5, 0.75), 2 * math.log(1.5) + math.log(0.5))
    assert math.isclose(log_ratio(1, 2, 2, 0.5, 0.75), math.log(1.25) + math.log(0.25))


def test_the_bound_bounds_the_exact_tail() -> None:
    for hits, trials, share in ((9, 10, 0.5), (20, 20, 0.8), (30, 200, 0.05)):
        tail = math.fsum(math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(hits, trials + 1))
        nats = chernoff(hits, trials, share)
        assert tail * 0.999999 <= math.exp(-nats) <= 30 * tail
    assert chernoff(4, 10, 0.5) == 0.0
    assert chernoff(0, 0, 0.5) == 0.0


def test_a_reference_survives_its_state() -> None:
    reference = Reference([View(True, [[1, 2], [3]]), View(None, [], True), View(False, [[4]])])
    again = Reference.of(reference.state())
    assert again.state() == reference.state()
    assert again.answers == reference.answers
    assert again.count(run(1, 2)) == 1
    assert again.longest == reference.longest
