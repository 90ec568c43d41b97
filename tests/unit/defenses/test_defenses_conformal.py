"""P-values from samples of good scores: counted inside the sample, continued beyond it, deaf to what is trimmed."""

import math
from random import Random

import pytest

from shoal.defenses.conformal import FIT, ScoreSample, tail_p


def exponential(count: int, scale: float = 1.0) -> list[float]:
    """The quantiles of an exponential distribution: a sample without chance in it."""
    return [-scale * math.log(1 - (at + 0.5) / count) for at in range(count)]


def test_inside_the_sample_it_is_the_conformal_p_value() -> None:
    random = Random(1)
    scores = [random.gauss(0, 1) for _ in range(160)]
    ranked = sorted(scores)
    for score in [*ranked[:-11], -5.0, 0.1234]:
        expected = (1 + sum(other >= score for other in scores)) / 161
        assert tail_p(ranked, score, slope=0.3) == pytest.approx(expected)


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_beyond_the_sample_the_tail_goes_on_as_it_began(scale: float) -> None:
    ranked = exponential(4096, scale)
    for score in (6 * scale, 12 * scale, 20 * scale):
        # The slope has its standard error on top (1/16 for 256 fitted scores), so p errs upwards.
        p = tail_p(ranked, score, slope=0.01)
        assert math.exp(-score / scale) < p < math.exp(-(score / scale) / (1 + 2 / 16)) * 1.2


def test_it_never_rises_with_the_score() -> None:
    random = Random(2)
    ranked = sorted(random.expovariate(1) for _ in range(200))
    values = [tail_p(ranked, at / 10, slope=0.3) for at in range(-10, 200)]
    assert values == sorted(values, reverse=True)
    assert 0 < values[-1] < 1e-4
    assert values[0] == 1.0


def test_the_slope_of_theory_holds_where_the_sample_has_none() -> None:
    ranked = [2.0] * 64
    assert tail_p(ranked, 2.0, slope=1.0) == 1.0
    assert tail_p(ranked, 5.0, slope=1.0) == pytest.approx((1 + 4) / 65 * math.exp(-3))
    assert tail_p(ranked, 5.0, slope=0.5) == pytest.approx((1 + 4) / 65 * math.exp(-6))


def test_the_height_of_what_is_trimmed_decides_nothing() -> None:
    honest = exponential(180)
    far, near = (sorted([*honest, *[height] * 20]) for height in (1000.0, 8.0))
    for score in (5.0, 9.0, 30.0):
        assert tail_p(far, score, 1.0, trim=20) == tail_p(near, score, 1.0, trim=20)
    assert tail_p(far, 30.0, 1.0) > 0.05 > 5e-4 > tail_p(far, 30.0, 1.0, trim=20)


def test_trimming_a_clean_sample_changes_the_tail_little() -> None:
    ranked = exponential(4096)
    for score in (5.0, 8.0):
        assert 0.7 < tail_p(ranked, score, 0.01, trim=409) / tail_p(ranked, score, 0.01) < 2.5


@pytest.mark.parametrize("count", [1, 2, 15, FIT, FIT + 1])
def test_few_scores_give_no_small_p_inside(count: int) -> None:
    ranked = exponential(count)
    assert 0 < tail_p(ranked, ranked[-1], 1.0) <= 1
    assert tail_p(ranked, ranked[0], 1.0) == 1.0


def test_the_oldest_score_goes_first() -> None:
    sample = ScoreSample(3, [5.0, 1.0, 3.0])
    assert (list(sample.ranked), sample.median) == ([1.0, 3.0, 5.0], 3.0)
    sample.add(2.0)
    assert (list(sample.ranked), sample.state(), len(sample)) == ([1.0, 2.0, 3.0], [1.0, 3.0, 2.0], 3)
    sample.add(3.0)
    sample.add(3.0)
    assert list(sample.ranked) == [2.0, 3.0, 3.0]


def test_a_sample_is_the_same_after_a_round_trip() -> None:
    sample = ScoreSample(5, [0.5, -1.0, 7.0, 7.0, 2.0, 3.0])
    again = ScoreSample(5, sample.state())
    assert (again.state(), again.ranked) == (sample.state(), sample.ranked)
