import pytest

from shoal.protocol.staleness import Clock, Freshness, LagClock, freshness, round_at


@pytest.mark.parametrize(
    ("now", "round"), [(100.0, 0), (109.999, 0), (110.0, 1), (99.999, -1), (90.0, -1), (89.9, -2), (1100.0, 100)]
)
def test_rounds_are_slots_of_the_clock(now: float, round: int):
    assert round_at(now, genesis=100.0, round_seconds=10.0) == round


def test_the_clock_reads_what_it_is_given():
    now = 125.0
    clock = Clock(lambda: now, genesis=100, round_seconds=10)
    assert clock.round() == 2
    assert clock.start_of(2) == 120.0
    assert clock.seconds_left(2) == 5.0
    assert clock.seconds_left(3) == 15.0
    assert clock.seconds_left(1) == 0.0
    now = 130.0
    assert clock.round() == 3


def test_a_round_has_a_length():
    with pytest.raises(ValueError, match="longer than 0"):
        Clock(lambda: 0.0, genesis=0, round_seconds=0)


@pytest.mark.parametrize(
    ("age", "judged"),
    [
        (-3, Freshness.AHEAD),
        (-2, Freshness.AHEAD),
        (-1, Freshness.EARLY),
        (0, Freshness.FRESH),
        (4, Freshness.FRESH),
        (5, Freshness.STALE),
        (10**9, Freshness.STALE),
    ],
)
def test_freshness_by_age(age: int, judged: Freshness):
    assert freshness(current_round=50, round=50 - age, max_age_rounds=4) is judged


def test_a_bound_of_zero_is_synchronous():
    assert [freshness(7, round, 0) for round in (6, 7, 8)] == [Freshness.STALE, Freshness.FRESH, Freshness.EARLY]


def test_lag_counts_the_updates_since_a_round_began():
    lag = LagClock()
    lag.began(10, 3)
    lag.began(11, 4)
    assert lag.lag(10, 4) == 1
    assert lag.lag(11, 4) == 0
    assert lag.lag(11, 6) == 2


def test_entering_a_round_again_changes_nothing():
    """Failure 36: a restart in a round already entered; and a clock that is set back."""
    lag = LagClock()
    lag.began(10, 3)
    lag.began(11, 4)
    lag.began(11, 5)
    lag.began(10, 5)
    lag.began(9, 5)
    assert [lag.lag(round, 5) for round in (9, 10, 11)] == [2, 2, 1]


def test_a_round_slept_through_never_understates_the_lag():
    lag = LagClock()
    lag.began(10, 3)
    lag.began(14, 7)
    assert lag.lag(12, 9) == 6  # from round 10 on, though round 12 may have begun later
    assert lag.lag(99, 9) == 2
    assert lag.lag(1, 9) == 6
    assert LagClock().lag(1, 9) == 9


def test_memory_is_bounded_and_forgets_the_oldest():
    lag = LagClock(memory=3)
    for round in range(10):
        lag.began(round, round * 2)
    assert lag.state() == [[7, 8, 9], [14, 16, 18]]
    assert lag.lag(2, 20) == 6


def test_lag_is_the_same_after_a_restart():
    lag = LagClock()
    for round, updates in ((3, 0), (4, 1), (9, 5)):
        lag.began(round, updates)
    again = LagClock()
    again.restore(lag.state())
    lag.began(12, 8)
    again.began(12, 8)
    assert [again.lag(round, 11) for round in range(20)] == [lag.lag(round, 11) for round in range(20)]
