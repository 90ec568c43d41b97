"""Which round the other swarm is in."""

from shoal.node.bridge.rounds import LOOK_AHEAD, SEARCHED, RoundFinder


def read(finder: RoundFinder, *latest: int) -> None:
    """One fetch in a swarm whose peers have come so far; only the window is seen."""
    finder.saw([round for round in latest if round in finder.window()])


def test_it_follows_what_half_have_reached() -> None:
    finder = RoundFinder(0, max_age=1)
    for now in range(20):
        read(finder, *[now] * 10, *[now + 1] * 9)
        assert finder.current == now
        assert [finder.age(now + step) for step in (-2, -1, 0, 1)] == [None, 1, 0, 0]


def test_rounds_that_were_skipped_are_no_end() -> None:
    finder = RoundFinder(0, max_age=1)
    read(finder, 0, 0, 0)
    read(finder, *[LOOK_AHEAD - 1] * 3)
    assert finder.current == LOOK_AHEAD - 1


def test_a_far_jump_is_found_by_searching_on() -> None:
    finder, far = RoundFinder(7, max_age=1), 7 + SEARCHED // 2
    read(finder, 7, 7, 7)
    fetches = 0
    while finder.current != far:
        read(finder, far, far, far)
        fetches += 1
        assert fetches < SEARCHED
    assert finder.age(far) == 0


def test_one_that_begins_late_is_found_at_its_beginning() -> None:
    finder = RoundFinder(0, max_age=1)
    for _ in range(5):
        read(finder)
    read(finder, 0)
    assert (finder.found, finder.current) == (True, 0)


def test_a_swarm_that_counts_from_the_beginning_again_is_found() -> None:
    finder = RoundFinder(0, max_age=1)
    finder.current = 300
    for _ in range(2 * SEARCHED):
        read(finder, 2, 2, 2)
        if finder.found:
            break
    assert finder.current == 2


def test_one_who_writes_ahead_makes_no_other_stale_not_even_a_single_one() -> None:
    finder = RoundFinder(10, max_age=1)
    for now in range(10, 15):
        read(finder, now, now + LOOK_AHEAD)
        assert finder.age(now) == 0


def test_one_who_lags_holds_nobody_back() -> None:
    finder = RoundFinder(10, max_age=1)
    for now in range(10, 15):
        read(finder, now, now, now - 4)
        assert finder.current == now


def test_while_nobody_is_found_no_round_is_used() -> None:
    finder = RoundFinder(5, max_age=1)
    assert finder.age(5) is None
    read(finder)
    assert finder.age(5) is None


def test_the_bound_on_age_holds() -> None:
    finder = RoundFinder(5, max_age=0)
    read(finder, 4, 5, 5)
    assert (finder.age(4), finder.age(5)) == (None, 0)
