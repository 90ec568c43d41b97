"""The bounds on age, lag and sequence, against models that remember everything."""

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocol.errors import Malformed
from shoal.protocol.staleness import Clock, Freshness, LagClock, SequenceCounter, SequenceWindow, freshness, round_at

rounds = st.integers(0, 10**9)


@given(rounds, rounds, st.integers(0, 20))
def test_what_is_fresh_is_within_the_bound(current: int, round: int, max_age: int):
    judged = freshness(current, round, max_age)
    age = current - round
    assert (judged is Freshness.FRESH) == (0 <= age <= max_age)
    assert (judged is Freshness.EARLY) == (age == -1)


@given(rounds, st.integers(0, 20))
def test_what_is_held_becomes_fresh_in_its_own_round(current: int, max_age: int):
    assert freshness(current, current + 1, max_age) is Freshness.EARLY
    assert freshness(current + 1, current + 1, max_age) is Freshness.FRESH


@given(st.integers(0, 2**31), st.integers(1, 10**6), st.integers(0, 10**6), st.floats(0, 1, exclude_max=True))
def test_a_round_holds_its_slot_of_time(genesis: int, seconds: int, number: int, part: float):
    clock = Clock(lambda: 0.0, genesis, seconds)
    start = clock.start_of(number)
    assert round_at(start, genesis, seconds) == number
    now = min(start + part * seconds, clock.start_of(number + 1) - 1e-3)
    assert round_at(now, genesis, seconds) == number


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[int, int]]:
    """(round, updates) at each step of a node that sometimes sleeps through rounds and always makes progress."""
    round = updates = 0
    steps: list[tuple[int, int]] = []
    for _ in range(draw(st.integers(1, 30))):
        round += draw(st.integers(0, 3))
        steps.append((round, updates))
        updates += draw(st.integers(0, 2))
    return steps


@given(lives(), st.integers(0, 29))
def test_lag_is_exact_across_any_restart(steps: list[tuple[int, int]], restart: int):
    """Failure 29. The model remembers every step; the node is restarted somewhere, and enters its round again."""
    clock = LagClock()
    began: dict[int, int] = {}
    for number, (round, updates) in enumerate(steps):
        if number == restart:
            fresh = LagClock()
            fresh.restore(msgpack.unpackb(msgpack.packb(clock.state())))
            clock = fresh
        clock.began(round, updates)
        began.setdefault(round, updates)
        for asked in range(round + 2):
            known = [other for other in began if other <= asked]
            start = began[max(known)] if known else began[min(began)]
            assert clock.lag(asked, updates) == updates - start


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=30), st.integers(0, 5))
def test_lag_is_never_understated_and_exact_for_rounds_that_were_seen(story: list[tuple[int, bool]], more: int):
    """The truth knows how many updates were complete when each round began, the node saw only some rounds begin."""
    clock = LagClock()
    truth: list[int] = []
    updates = 0
    for number, (done, seen) in enumerate(story):
        truth.append(updates)
        if seen or number == 0:
            clock.began(number, updates)
        updates += done
    for number, (_, seen) in enumerate(story):
        lag = clock.lag(number, updates + more)
        assert lag >= updates + more - truth[number]
        if seen or number == 0:
            assert lag == updates + more - truth[number]


class Model:
    """A sequence window that keeps everything it ever accepted."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.accepted: dict[int, int] = {}

    def judge(self, sequence: int, version: int) -> str:
        if self.accepted and sequence <= max(self.accepted) - self.size:
            return "sequence_too_old"
        if sequence in self.accepted:
            return "replayed_sequence"
        before = [v for s, v in self.accepted.items() if s < sequence]
        after = [v for s, v in self.accepted.items() if s > sequence]
        if max(before, default=version) > version or min(after, default=version) < version:
            return "version_fell"
        self.accepted[sequence] = version
        return "accepted"


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40), st.integers(0, 8)), max_size=60),
    st.integers(1, 12),
    st.integers(0, 59),
)
def test_the_window_judges_as_one_that_remembers_everything(
    messages: list[tuple[int, int, int]], size: int, restart: int
):
    window = SequenceWindow(size=size)
    models = [Model(size), Model(size)]
    for number, (peer, sequence, version) in enumerate(messages):
        if number == restart:
            state: Any = msgpack.unpackb(msgpack.packb(window.state()))
            window = SequenceWindow(size=size)
            window.restore(state)
        expected = models[peer].judge(sequence, version)
        if expected == "accepted":
            window.accept(bytes([peer]) * 32, sequence, version)
        else:
            with pytest.raises(Malformed) as caught:
                window.accept(bytes([peer]) * 32, sequence, version)
            assert caught.value.reason == expected


@given(st.lists(st.integers(0, 20), min_size=1, max_size=10), st.integers(1, 8))
def test_no_number_is_used_twice_over_any_crashes(lives: list[int], block: int):
    disk = [0]
    used: list[int] = []
    for length in lives:
        counter = SequenceCounter(block=block, persist=lambda end: disk.__setitem__(0, end), start=disk[0])
        for _ in range(length):
            number = counter.next()
            assert number < disk[0]
            used.append(number)
    assert len(set(used)) == len(used)
    assert used == sorted(used)
