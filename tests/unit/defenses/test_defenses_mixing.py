"""Bounded influence: who is chosen, which rows join, how much they weigh."""

import random
from collections import Counter
from itertools import islice
from typing import NamedTuple

import pytest

from shoal.defenses.mixing import choose, operator_factors, row_factors, share_rows
from shoal.defenses.pointer import Pointer
from shoal.protocol.envelope import Announcement, Header, Kind


def pointer(operator: str, key: bytes, sequence: int) -> Pointer:
    header = Header(Kind.ROLLOUT, 1, bytes(32), key.ljust(32, b"."), 5, 0, bytes(32), sequence, 0, bytes(32))
    return Pointer(Announcement(header, bytes(64)), operator, 5, sequence)


def test_one_loud_peer_of_51_gets_its_share_and_no_more():
    pool = [pointer("loud", b"loud", sequence) for sequence in range(5000)]
    pool += [pointer(f"quiet {i}", b"%d" % i, sequence) for i in range(50) for sequence in range(2)]
    rng = random.Random(0)
    rounds, wanted = 100, 4
    chosen = Counter(p.operator for _ in range(rounds) for p in islice(choose(pool, rng), wanted))
    # Expected 400 / 51 = 7.8 of 400; four standard deviations above are 19. Drawn over pointers it would be 392.
    assert chosen["loud"] <= 19
    assert len(chosen) == 51
    loud = [p.operator for p in islice(choose(pool, rng, fair=False), 400)].count("loud")
    assert loud > 380


def test_nobody_comes_twice_before_everybody_came_once():
    pool = [pointer("loud", b"loud", s) for s in range(100)] + [pointer(f"q{i}", b"%d" % i, 0) for i in range(10)]
    for seed in range(20):
        first = list(islice(choose(pool, random.Random(seed)), 11))
        assert len({p.operator for p in first}) == 11


def test_a_hundred_keys_of_one_operator_gain_nothing():
    pool = [pointer("sybil", b"%d" % i, 0) for i in range(100)]
    pool += [pointer(name, name.encode(), s) for name in ("a", "b", "c") for s in range(100)]
    rng = random.Random(1)
    chosen = Counter(p.operator for _ in range(1000) for p in islice(choose(pool, rng), 2))
    assert 500 - 80 < chosen["sybil"] < 500 + 80  # 2,000 draws at 1/4: four standard deviations are 77


def test_keys_of_an_operator_are_equal_whatever_they_publish():
    pool = [pointer("one", b"loud", s) for s in range(500)] + [pointer("one", b"calm", s) for s in range(5)]
    rng = random.Random(2)
    keys = Counter(next(choose(pool, rng)).key[:4] for _ in range(400))
    assert 160 < keys[b"calm"] < 240


def test_each_pointer_comes_once_in_an_order_that_depends_on_the_generator_only():
    pool = [pointer(f"o{i % 3}", b"%d" % (i % 5), i) for i in range(30)]
    order = [p.arrival for p in choose(pool, random.Random(7))]
    assert sorted(order) == list(range(30))
    assert [p.arrival for p in choose(pool[::-1], random.Random(7))] == order
    assert [p.arrival for p in choose(pool, random.Random(8))] != order
    assert list(choose([], random.Random(0))) == []


def test_a_search_that_goes_on_remembers_who_came():
    pool = [pointer(name, name.encode(), s) for name in ("a", "b", "c") for s in range(50)]
    rng = random.Random(3)
    drawn: Counter[str] = Counter()
    for _ in range(30):
        chosen = next(choose(pool, rng, drawn=drawn))
        pool.remove(chosen)
        drawn[chosen.operator] += 1
        assert max(drawn.values()) - min(drawn[name] for name in "abc") <= 1


class Row(NamedTuple):
    prompt_hash: bytes
    operator: str
    key: bytes
    sequence: int
    row: int


def rows(operator: str, count: int, key: bytes | None = None, prompt: bytes = b"p") -> list[Row]:
    return [Row(prompt, operator, key or operator.encode(), 0, i) for i in range(count)]


def by_operator(shared: list[Row]) -> dict[str, int]:
    return dict(Counter(row.operator for row in shared))


@pytest.mark.parametrize(
    ("offered", "cap", "taken"),
    [
        ({"a": 8, "b": 8}, 8, {"a": 4, "b": 4}),
        ({"a": 8}, 8, {"a": 8}),
        ({"a": 8, "b": 1}, 8, {"a": 4, "b": 1}),  # an unused share is nobody else's
        ({"a": 64, "b": 2, "c": 2}, 6, {"a": 2, "b": 2, "c": 2}),
        ({"a": 3, "b": 3}, 0, {}),
    ],
)
def test_one_operator_gets_at_most_its_equal_share(offered: dict, cap: int, taken: dict):
    offer = [row for name, count in offered.items() for row in rows(name, count)]
    assert by_operator(share_rows(offer, cap)) == taken


def test_shares_that_do_not_divide_differ_by_one_and_favour_no_name():
    first = Counter()
    for number in range(300):
        offer = [row for name in "abc" for row in rows(name, 8, prompt=b"%d" % number)]
        counts = by_operator(share_rows(offer, 8))
        assert sorted(counts.values()) == [2, 3, 3]
        first[min(counts, key=lambda name: counts[name])] += 1
    assert min(first.values()) > 70


def test_many_keys_of_one_operator_share_its_share():
    offer = [row for i in range(100) for row in rows("sybil", 1, key=b"%d" % i)] + rows("honest", 8)
    assert by_operator(share_rows(offer, 8)) == {"sybil": 4, "honest": 4}


def test_joined_rows_are_sorted_and_independent_of_arrival():
    offer = rows("b", 3) + rows("a", 3) + rows("a", 2, prompt=b"o")
    shared = share_rows(offer, 4)
    assert shared == sorted(shared, key=lambda r: (r.prompt_hash, r.key, r.sequence, r.row))
    random.Random(0).shuffle(offer)
    assert share_rows(offer, 4) == shared
    assert by_operator(share_rows(rows("b", 3) + rows("a", 3), 4, fair=False)) == {"a": 3, "b": 1}


def test_no_operator_weighs_more_than_a_typical_one():
    factors = operator_factors({"sybil": 100.0, "a": 2.0, "b": 2.0, "c": 1.0})
    assert factors == {"sybil": 0.02, "a": 1.0, "b": 1.0, "c": 1.0}


def test_silent_operators_and_single_ones():
    assert operator_factors({}) == {}
    assert operator_factors({"a": 0.0}) == {"a": 1.0}
    assert operator_factors({"a": 3.0, "b": 0.0}) == {"a": 1.0, "b": 1.0}
    assert operator_factors({"a": 4.0}, asked=1.0) == {"a": 0.25}


def test_an_equal_share_of_what_was_asked_is_nobodys_to_take():
    # Two operators, four units asked: each may weigh two, whatever little the other one sends.
    assert operator_factors({"a": 4.0, "tiny": 0.01}, asked=4.0) == {"a": 0.5, "tiny": 1.0}
    assert operator_factors({"a": 4.0, "b": 3.0}, asked=4.0) == {"a": 0.75, "b": 1.0}


def test_row_factors_follow_their_operators():
    assert row_factors(["a", "b", "a"], [3.0, 2.0, 1.0]) == [0.5, 1.0, 0.5]
