"""Reputation over time: the sum against a plain one, and its false alarms and delays worked out by brute force."""

import math
import random
from itertools import count

import msgpack
import numpy as np
import pytest

from shoal.defenses.config import DefenseConfig
from shoal.defenses.newcomers import NEWCOMERS
from shoal.defenses.suspicion import Suspicion, accounts
from shoal.defenses.verdict import Counters

PAROLE = 16
UPPER, ROLLOUT = 12.0, 4.0  # nats
BAD, GOOD = math.log(25), math.log(75 / 99)  # of 25 % against 1 %


def book(counters: Counters | None = None, **changes) -> Suspicion:
    return Suspicion(DefenseConfig(**changes), counters or Counters())


def rollouts(watch: Suspicion, times: int, bad: int, good: int, round: int = 0, name: str = "a") -> None:
    for _ in range(times):
        watch.note(name, bad, good, round)


def test_rows_add_their_log_likelihood_ratios_and_one_rollout_has_a_cap():
    watch = book()
    watch.note("a", 1, 0, 0)
    assert watch.evidence("a", 0) == pytest.approx(3.2189, abs=1e-4)
    watch.note("a", 0, 3, 0)
    assert watch.evidence("a", 0) == pytest.approx(3.2189 - 3 * 0.2776, abs=1e-3)
    watch.note("b", 8, 0, 0)
    assert watch.evidence("b", 0) == ROLLOUT
    watch.note("b", 0, 0, 0)  # nothing was rewarded: nothing was learned
    assert watch.evidence("b", 0) == ROLLOUT


def test_weight_falls_from_the_lower_threshold_to_the_upper_one():
    watch = book(suspicion_half_life=10**9)
    weights = []
    for _ in range(3):
        weights.append(watch.weight("a", 0))
        watch.note("a", 8, 0, 0)
    assert weights == pytest.approx([1.0, 1.0, 0.5])
    assert watch.weight("a", 0) == 0.0
    assert watch.weight("unknown", 0) == 1.0


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_sum_that_one_would_write_down(seed: int):
    rng, watch, now = random.Random(seed), book(), 0
    told: list[tuple[int, float]] = []  # (round, evidence after it)
    for _ in range(200):
        now += rng.randrange(4)
        bad, good = (int(rng.random() < 0.1), rng.randrange(6)) if rng.random() < 0.9 else (0, 0)
        before = told[-1][1] * 2 ** -((now - told[-1][0]) / 64) if told else 0.0
        watch.note("a", bad, good, now)
        if bad + good:
            told.append((now, max(0.0, before + min(4.0, bad * BAD + good * GOOD))))
            assert told[-1][1] < UPPER
            assert watch.evidence("a", now) == pytest.approx(told[-1][1], abs=1e-9)


def test_a_sleeper_has_saved_up_nothing():
    sleeper, fresh = book(), book()
    for round_number in range(200):
        sleeper.note("a", 0, 8, round_number)
    for watch in (sleeper, fresh):
        rollouts(watch, 3, 4, 4, 200)
    assert sleeper.evidence("a", 200) == fresh.evidence("a", 200) == 0.5 * UPPER  # the half-way of parole
    assert sleeper.refused("a", 201)


def test_the_refused_are_let_back_half_way_and_relapse_sooner():
    counters = Counters()
    watch = book(counters)
    rollouts(watch, 3, 8, 0, round=10)
    assert counters.state() == {"reputation/refused_operator": 1}
    assert [watch.refused("a", n) for n in (10, 10 + PAROLE - 1, 10 + PAROLE)] == [True, True, False]
    assert watch.weight("a", 10 + PAROLE) == pytest.approx(0.75)
    rollouts(watch, 2, 8, 0, round=10 + PAROLE)
    assert watch.refused("a", 10 + PAROLE)
    assert counters.get("reputation/refused_operator") == 2


def test_what_was_fetched_before_a_refusal_lengthens_nothing():
    watch = book()
    rollouts(watch, 20, 8, 0, round=0)
    assert not watch.refused("a", PAROLE)
    assert watch.evidence("a", PAROLE) == UPPER / 2


def test_bad_luck_is_forgotten_by_good_rows_and_by_time():
    watch = book()
    rollouts(watch, 2, 8, 0)
    assert watch.weight("a", 0) == 0.5
    assert watch.evidence("a", 64) == pytest.approx(4.0)
    assert watch.weight("a", 64) == pytest.approx(1.0)
    watch.note("a", 0, 8, 0)
    watch.note("a", 0, 20, 0)
    assert watch.evidence("a", 0) == pytest.approx(max(0.0, 8 + 28 * GOOD), abs=1e-6)
    rollouts(watch, 1, 0, 8)
    assert watch.state() == {"accounts": [], "refused": []}, "who is above suspicion takes no place"


def chain(rate: float, rows: int, up: bool, grid: float = 0.02) -> np.ndarray:
    """The sum as a Markov chain on a grid, rounded against the claim: `up` finds at least as many alarms."""
    states = round(UPPER / grid)
    matrix = np.zeros((states, states + 1))  # the last one: refused
    for bad in range(rows + 1):
        probability = math.comb(rows, bad) * rate**bad * (1 - rate) ** (rows - bad)
        step = min(ROLLOUT, bad * BAD + (rows - bad) * GOOD) / grid
        whole = math.ceil(step - 1e-9) if up else math.floor(step + 1e-9)
        for state in range(states):
            matrix[state, min(states, max(0, state + whole))] += probability
    return matrix


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_an_honest_peer_with_one_bad_row_in_a_hundred_is_refused_less_than_once_in_a_million(rows: int):
    """Without decay, which only lowers the sum. Each refusal is followed by a start half-way."""
    matrix = chain(0.01, rows, up=True)
    states = len(matrix)
    now, refusals = np.eye(states)[0], 0.0
    for _ in range(10_000 // rows):
        after = now @ matrix
        refusals += after[states]
        now = after[:states]
        now[states // 2] += after[states]
    assert refusals < 0.01  # in 10,000 rows


@pytest.mark.parametrize(
    ("rate", "rows", "median", "nearly_all"), [(0.5, 4, 4, 8), (0.5, 8, 3, 5), (0.25, 4, 8, 20), (1.0, 4, 3, 3)]
)
def test_an_attacker_is_refused_within_so_many_rollouts(rate: float, rows: int, median: int, nearly_all: int):
    matrix = chain(rate, rows, up=False)
    states = len(matrix)
    now, refused = np.eye(states)[0], [0.0]
    for _ in range(nearly_all):
        after = now @ matrix
        refused.append(refused[-1] + after[states])
        now = after[:states]
    assert refused[median] > 0.5
    assert refused[nearly_all] > 0.99


@pytest.mark.parametrize(("gap", "most"), [(0, 12), (4, 12), (12, 20)])
def test_the_code_itself_finds_an_attacker_however_seldom_it_is_drawn(gap: int, most: int):
    """Half of its rewarded rows are bad, four to a rollout, one rollout every `gap` rounds."""
    for seed in range(200):
        rng, watch = random.Random(seed), book()
        for drawn in count(1):
            bad = sum(rng.random() < 0.5 for _ in range(4))
            watch.note("a", bad, 4 - bad, gap * drawn)
            if watch.refused("a", gap * drawn):
                break
            assert drawn < most


def test_the_code_itself_leaves_the_honest_alone():
    counters = Counters()
    watch, rng, lowest = book(counters), random.Random(3), 1.0
    for drawn in range(25_000):  # a hundred thousand rows
        bad = sum(rng.random() < 0.01 for _ in range(4))
        watch.note("a", bad, 4 - bad, 4 * drawn)
        lowest = min(lowest, watch.weight("a", 4 * drawn))
    assert counters.get("reputation/refused_operator") == 0
    assert lowest > 0.0


def test_a_clock_that_ran_ahead_refuses_nobody_for_years():
    watch = book()
    rollouts(watch, 3, 8, 0, round=10**6)
    assert watch.refused("a", 10**6)
    assert not watch.refused("a", 10)
    assert watch.evidence("a", 10) == UPPER / 2
    rollouts(watch, 2, 8, 0, round=10)
    assert watch.refused("a", 10)
    assert not watch.refused("a", 10 + PAROLE)


def test_thousands_of_names_flush_no_refusal_and_every_eviction_is_counted():
    counters = Counters()
    watch = book(counters, subjects=5)
    rollouts(watch, 3, 8, 0)
    for number in range(5000):
        watch.note(f"other {number}", 1, 0, 0)
    assert watch.refused("a", 0)
    assert counters.get("reputation/evicted_operator") == 4995
    assert len(watch.state()["accounts"]) == 5
    for number in range(6):
        rollouts(watch, 3, 8, 0, name=f"bad {number}")
    assert counters.get("reputation/evicted_refused") == 2
    assert not watch.refused("a", 0)  # the one refused longest ago


def test_state_comes_back():
    watch = book()
    rollouts(watch, 3, 8, 0, round=5, name="refused")
    rollouts(watch, 1, 1, 1, round=6, name="watched")
    again = book()
    again.restore(msgpack.unpackb(msgpack.packb(watch.state())))
    assert again.state() == watch.state()
    for name in ("refused", "watched", "unknown"):
        assert again.weight(name, 7) == watch.weight(name, 7)
        assert again.refused(name, 7) == watch.refused(name, 7)


def test_with_the_layer_off_nothing_is_noted():
    watch = Suspicion(DefenseConfig.without(["reputation"]), Counters())
    rollouts(watch, 20, 8, 0)
    assert (watch.weight("a", 0), watch.refused("a", 0)) == (1.0, False)
    assert watch.state() == {"accounts": [], "refused": []}


def test_an_operator_answers_for_its_keys_and_newcomers_for_themselves():
    key = bytes(range(32))
    assert accounts("ada", key) == ("ada", key.hex())
    assert accounts(key.hex(), key) == (key.hex(),)
    assert accounts(NEWCOMERS, key) == (key.hex(),)
