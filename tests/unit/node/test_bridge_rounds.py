"""Which round the other swarm is in."""

from shoal.node.bridge.rounds import LOOK_AHEAD, SEARCHED, RoundFinder


def read(finder: RoundFinder, peers: dict[int, int]) -> None:
    """One fetch in a swarm in which so many peers have written into these rounds."""
    finder.saw({round: peers[round] for round in finder.window() if round in peers})


def test_it_follows_where_most_have_written() -> None:
    finder = RoundFinder(0, max_age=1)
    for now in range(20):
        read(finder, {now: 10, now + 1: 2})
        assert finder.current == now
        assert [finder.age(now + step) for step in (-2, -1, 0, 1)] == [None, 1, 0, None]


def test_rounds_that_were_skipped_are_no_end() -> None:
    finder = RoundFinder(0, max_age=1)
    read(finder, {0: 3})
    read(finder, {LOOK_AHEAD - 1: 3})
    assert finder.current == LOOK_AHEAD - 1


def test_a_far_jump_is_found_by_searching_on() -> None:
    finder = RoundFinder(7, max_age=1)
    read(finder, {7: 3})
    fetches = 0
    while finder.current != 7 + SEARCHED // 2:
        read(finder, {7 + SEARCHED // 2: 3})
        fetches += 1
        assert fetches < SEARCHED
    assert finder.age(7 + SEARCHED // 2) == 0


def test_a_swarm_that_counts_from_the_beginning_again_is_found() -> None:
    finder = RoundFinder(0, max_age=1)
    finder.current = 300
    for _ in range(2 * SEARCHED):
        read(finder, {2: 3})
        if finder.found:
            break
    assert finder.current == 2


def test_one_who_writes_ahead_moves_nobody_once_three_are_there() -> None:
    finder = RoundFinder(10, max_age=1)
    for now in range(10, 15):
        read(finder, {now: 3} | dict.fromkeys(range(now + 1, now + 5), 1))
        assert finder.current == now


def test_while_nobody_is_found_no_round_is_used() -> None:
    finder = RoundFinder(5, max_age=1)
    assert finder.age(5) is None
    read(finder, {})
    assert finder.age(5) is None


def test_the_bound_on_age_holds() -> None:
    finder = RoundFinder(5, max_age=0)
    read(finder, {4: 3, 5: 3})
    assert (finder.age(4), finder.age(5)) == (None, 0)
