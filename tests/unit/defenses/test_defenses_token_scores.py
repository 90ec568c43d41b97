"""The score of each test against values by hand and by brute force, and the bounds that need no null."""

import math
from fractions import Fraction
from itertools import product
from random import Random

import pytest
from evidence_pieces import WORDS, Evidence, evidence_of, sampled

from shoal.defenses.config import DefenseConfig
from shoal.defenses.token_scores import log_binomial_tail, theory_p, token_scores

CONFIG = DefenseConfig()
PLAIN = DefenseConfig(variance_floor=0.5, rare_rank=2)


def by_hand(vouched: tuple[bool, ...] = (False,) * 4) -> Evidence:
    return Evidence(
        surprise=[1.0, 4.0, 0.5, 2.5],
        entropy=[1.0, 2.0, 0.5, 0.5],
        variance=[0.5, 1.5, 0.0, 1.5],
        tail=[0.5, 0.01, 1.0, 0.2],
        rank=[1, 9, 0, 2],
        vouched=list(vouched),
        finished=True,
    )


def test_scores_by_hand() -> None:
    # Excess 0, 2, 0, 2; variances with the floor 1, 2, .5, 2.
    assert token_scores(by_hand(), PLAIN, rare_rate=0.1) == pytest.approx(
        {
            "tail": -math.log(4 * 0.01),
            "surprise": 4 / math.sqrt(5.5),
            "likely": -4 / math.sqrt(5.5),
            "window": 4 / math.sqrt(5.5),
            "prefix": 4 / math.sqrt(5.5),
            "rank": -math.log(6 * 0.01 * 0.81 + 4 * 0.001 * 0.9 + 0.0001),
            "end": 2.5,
        }
    )


def test_only_what_is_not_vouched_for_counts() -> None:
    scores = token_scores(by_hand((False, True, False, False)), PLAIN, rare_rate=0.1)
    assert scores["tail"] == pytest.approx(-math.log(3 * 0.2))
    assert scores["surprise"] == pytest.approx(2 / math.sqrt(3.5))
    assert token_scores(by_hand((True,) * 4), PLAIN, 0.1) == {}


def test_sums_need_some_tokens_and_an_end_needs_an_end_mark() -> None:
    two = token_scores(by_hand((True, True, False, False)), PLAIN, 0.1)
    assert set(two) == {"tail", "end"}
    unfinished = by_hand()
    unfinished.finished = False
    assert "end" not in token_scores(unfinished, PLAIN, 0.1)


def test_windows_equal_a_search_through_all_of_them() -> None:
    random = Random(4)
    for length in (3, 4, 7, 16, 33, 50):
        evidence = sampled(random, length)
        excess = [s - h for s, h in zip(evidence.surprise, evidence.entropy, strict=True)]
        found: dict[int, list[float]] = {}
        for width in (4, 8, 16, 32):
            width = min(width, length)
            for start in range(length - width + 1):
                part = range(start, start + width)
                spread = math.sqrt(sum(evidence.variance[i] for i in part) + width * CONFIG.variance_floor)
                found.setdefault(start, []).append(sum(excess[i] for i in part) / spread)
        scores = token_scores(evidence, CONFIG, 0.01)
        assert scores["window"] == pytest.approx(max(value for values in found.values() for value in values))
        assert scores["prefix"] == pytest.approx(max(found[0]))


def test_a_phrase_shows_in_a_window_and_drowns_in_the_whole() -> None:
    random = Random(5)
    honest = random.choices(range(10), WORDS, k=120)
    middle = evidence_of([*honest[:60], 8, 9, 7, 9, *honest[60:]])
    first = evidence_of([8, 9, 7, 9, *honest])
    plain, inside, ahead = (token_scores(e, CONFIG, 0.01) for e in (evidence_of(honest), middle, first))
    assert inside["window"] > plain["window"] + 3
    assert inside["prefix"] == plain["prefix"]
    assert ahead["prefix"] == ahead["window"] > plain["prefix"] + 3
    assert inside["surprise"] < inside["window"] / 2


@pytest.mark.parametrize(("trials", "rate"), [(1, 0.5), (5, 0.1), (40, 0.03), (120, 0.2)])
def test_the_binomial_tail_equals_exact_fractions(trials: int, rate: float) -> None:
    exact = Fraction(str(rate))
    for successes in range(trials + 1):
        chance = sum(
            math.comb(trials, k) * exact**k * (1 - exact) ** (trials - k) for k in range(successes, trials + 1)
        )
        if successes <= trials * rate:
            assert log_binomial_tail(successes, trials, rate) == 0.0
        else:
            expected = math.log(chance.numerator) - math.log(chance.denominator)
            assert log_binomial_tail(successes, trials, rate) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("p", [[0.6, 0.25, 0.1, 0.05], [0.25] * 4, [0.97, 0.01, 0.01, 0.01]])
@pytest.mark.parametrize("length", [1, 3, 6])
def test_the_bounds_hold_for_every_text_of_a_small_language(p: list[float], length: int) -> None:
    texts = list(product(range(4), repeat=length))
    chances = [math.prod(p[token] for token in text) for text in texts]
    values = [theory_p(evidence_of(text, p)) for text in texts]
    for test in ("tail", "window"):
        for alpha in (0.001, 0.01, 0.1, 0.5):
            false = math.fsum(c for c, v in zip(chances, values, strict=True) if v[test] <= alpha * (1 - 1e-12))
            assert false <= alpha


def test_the_bounds_by_hand() -> None:
    evidence = by_hand()
    found = theory_p(evidence)
    assert found["tail"] == pytest.approx(4 * 0.01)
    total = -math.log(0.5 * 0.01 * 0.2)
    assert found["window"] == pytest.approx(math.exp(-total) * (1 + total + total**2 / 2 + total**3 / 6))
    # Five tokens have two windows of four and one of five; the four alike are the rarest.
    longer = Evidence(tail=[1.0, *[0.1] * 4], vouched=[False] * 5)
    total = 4 * math.log(10)
    assert theory_p(longer)["window"] == pytest.approx(3e-4 * (1 + total + total**2 / 2 + total**3 / 6))
    assert theory_p(evidence_of([0] * 40)) == {"tail": 1.0, "window": 1.0}


def test_a_probability_of_nothing_is_no_error() -> None:
    evidence = by_hand()
    evidence.tail[1] = 0.0
    assert token_scores(evidence, PLAIN, 0.1)["tail"] > 600
    assert theory_p(evidence)["window"] < 1e-100
