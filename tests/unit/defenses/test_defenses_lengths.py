"""Lengths: padding weighs little or is refused, honest peers who write somewhat more pass or weigh a bit less."""

import random

import msgpack
import pytest

from shoal.defenses.config import DefenseConfig
from shoal.defenses.lengths import LengthMemory
from shoal.defenses.verdict import Action, Counters

TASK = "strings/reverse"


def memory(**changes) -> LengthMemory:
    return LengthMemory(DefenseConfig(**changes), Counters())


def heard(store: LengthMemory, operator: str, lengths, task: str = TASK) -> list[float]:
    """The weights of these rows; 0 for a refused one."""
    return [store.judge(task, operator, length).weight for length in lengths]


def spoken(store: LengthMemory, lengths, task: str = TASK) -> None:
    for length in lengths:
        store.own(task, length, rewarded=True)


def short(rng: random.Random, count: int) -> list[int]:
    return [rng.randint(2, 9) for _ in range(count)]


def test_the_usual_length_is_the_lower_median_of_the_operators_upper_lengths():
    store = memory(length_least=8)
    assert store.usual(TASK) is None
    spoken(store, range(1, 11))  # nine in ten stay at or below 10: the tenth of ten, counted from 1
    assert store.usual(TASK) == 10
    heard(store, "a", [20] * 10)
    assert store.usual(TASK) == 10
    heard(store, "b", [30] * 10)
    assert store.usual(TASK) == 20
    heard(store, "c", [40] * 10)
    assert store.usual(TASK) == 20
    assert store.usual("strings/copy") is None


def test_one_terse_stranger_gets_no_honest_peer_refused():
    store = memory()
    spoken(store, [100] * 40)
    heard(store, "terse", [1] * 64)
    assert store.usual(TASK) == 100
    assert heard(store, "honest", [90] * 8) == [1.0] * 8
    heard(store, "terse too", [1] * 64)
    assert store.usual(TASK) == 90  # own 100, honest 90, and two terse ones: the nearer of the two in the middle


def test_wrong_own_answers_and_few_rows_say_nothing():
    store = memory(length_least=8)
    for _ in range(50):
        store.own(TASK, 1, rewarded=False)
    assert store.usual(TASK) is None
    spoken(store, [5] * 7)
    assert store.usual(TASK) is None


def test_a_receiver_that_solves_nothing_yet_refuses_nobody():
    store = memory()
    for _ in range(100):
        store.own(TASK, 2, rewarded=False)
    assert heard(store, "skilled", short(random.Random(0), 50)) == pytest.approx([1.0] * 50, abs=0.6)
    assert all(weight > 0 for weight in heard(store, "reasoner", [300] * 20))


@pytest.mark.parametrize("own", [True, False])
def test_honest_short_answers_pass(own):
    rng, store = random.Random(1), memory()
    if own:
        spoken(store, short(rng, 40))
    weights = [weight for _ in range(40) for peer in "abc" for weight in heard(store, peer, short(rng, 4))]
    assert min(weights) > 0
    assert sum(weight < 1 for weight in weights) <= 0.02 * len(weights)


def test_padded_short_answers_weigh_little():
    rng, store = random.Random(2), memory()
    spoken(store, short(rng, 40))
    for peer in "ab":
        heard(store, peer, short(rng, 40))
    weights = heard(store, "padder", [11] * 40)
    assert weights[0] == 1.0  # one long row is no habit
    assert weights[-1] == pytest.approx(0.2 / (40 / 45) * (9 / 11) ** 2)
    assert sum(weights) < 0.25 * 40


def test_padded_reasoning_is_refused_and_the_longest_that_is_not_weighs_little():
    rng, store = random.Random(3), memory()
    spoken(store, [rng.randint(150, 300) for _ in range(64)])
    for peer in "ab":
        heard(store, peer, [rng.randint(150, 300) for _ in range(64)])
    verdict = store.judge(TASK, "padder", 1024)
    assert (verdict.action, verdict.layer, verdict.reason) == (Action.REJECT, "invariants", "too_long")
    assert sum(heard(store, "careful", [570] * 40)) < 0.15 * 40


def test_an_honest_peer_who_writes_somewhat_more_is_weighed_and_not_refused():
    rng, store = random.Random(4), memory()
    spoken(store, [rng.randint(150, 300) for _ in range(64)])
    heard(store, "a", [rng.randint(150, 300) for _ in range(64)])
    weights = heard(store, "wordy", [rng.randint(195, 390) for _ in range(200)])
    assert min(weights) > 0.1
    assert sum(weights) / len(weights) > 0.6


def test_fewer_than_half_of_the_operators_do_not_move_the_usual_length():
    rng, store = random.Random(5), memory()
    spoken(store, short(rng, 64))
    for peer in "abc":
        heard(store, peer, short(rng, 64))
    before = store.usual(TASK)
    for padder in "xyz":
        heard(store, padder, [1000] * 64)
    assert store.usual(TASK) <= 9
    assert before <= 9


def test_two_strangers_alone_get_nobody_refused():
    store = memory()
    heard(store, "a", [5] * 20)
    heard(store, "b", [5] * 20)
    assert min(heard(store, "c", [500] * 30)) >= 0.2
    heard(store, "d", [5] * 20)
    heard(store, "e", [5] * 20)
    assert store.judge(TASK, "c", 500).action is Action.REJECT


def test_the_quota_of_a_prompt_holds_for_all_operators_together():
    store = memory()
    spoken(store, [5] * 20)
    verdicts = [store.judge(TASK, f"new{number}", 9, prompt=b"p") for number in range(12)]
    assert [verdict.action for verdict in verdicts[:1]] == [Action.ACCEPT]
    assert verdicts[-1].action is Action.WEIGH
    assert verdicts[-1].weight == pytest.approx(0.2 / (12 / 17) * (5 / 9) ** 2)
    assert store.judge(TASK, "another", 9, prompt=b"q").action is Action.ACCEPT


def test_strangers_do_not_displace_the_own_lengths():
    store = memory(length_operators=4)
    spoken(store, [5] * 20)
    for number in range(50):
        heard(store, f"sybil{number}", [5])
    assert store._counters.get("invariants/evicted_length_operator") > 0
    assert store.judge(TASK, "padder", 500).action is Action.REJECT


def test_memory_is_bounded_and_evictions_are_counted():
    store = memory(length_tasks=3, length_operators=4, length_window=10, prompts=5)
    for number in range(400):
        store.judge(f"task{number % 7}", f"peer{number % 11}", number, prompt=bytes([number % 23]))
    spoken(store, range(30), task="task0")
    state = store.state()
    assert len(state["tasks"]) == 3
    assert all(len(operators) <= 4 for _, operators in state["tasks"])
    assert all(len(lengths) <= 10 for _, operators in state["tasks"] for _, lengths in operators)
    assert len(state["prompts"]) == 5
    counts = store._counters.state()
    assert min(counts[f"invariants/evicted_length_{what}"] for what in ("task", "prompt")) > 0


def test_the_state_makes_an_equal_memory():
    rng, store = random.Random(6), memory()
    spoken(store, short(rng, 20))
    for peer in "abc":
        for length in short(rng, 20):
            store.judge(TASK, peer, length, prompt=rng.randbytes(1))
    other = memory()
    other.restore(msgpack.unpackb(msgpack.packb(store.state())))
    assert other.state() == store.state()
    later = [(peer, rng.randint(2, 14)) for peer in "abcd" * 10]
    assert [store.judge(TASK, *row) for row in later] == [other.judge(TASK, *row) for row in later]
