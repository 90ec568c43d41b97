"""Bounded influence, for whatever peers send."""

import random
from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.defenses.mixing import operator_factors, row_factors, share_rows

positive = st.floats(1e-6, 1e6)
masses = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), positive, min_size=1, max_size=12)


class Row(NamedTuple):
    prompt_hash: bytes
    operator: str
    key: bytes
    sequence: int
    row: int


offers = st.lists(
    st.builds(
        Row,
        st.sampled_from([b"p", b"q"]),
        st.sampled_from("abcd"),
        st.binary(min_size=1, max_size=1),
        st.integers(0, 3),
        st.integers(0, 7),
    ),
    max_size=60,
    unique=True,
)


@given(masses, st.floats(0, 1e6))
def test_factors_only_shrink_and_no_operator_exceeds_the_cap(by_operator: dict[str, float], asked: float):
    factors = operator_factors(by_operator, asked)
    ordered = sorted(by_operator.values())
    share = asked / len(ordered)
    cap = max(share, ordered[(len(ordered) - 1) // 2]) if len(ordered) > 1 or not asked else share
    for operator, mass in by_operator.items():
        assert 0.0 < factors[operator] <= 1.0 or asked < 1e-300
        assert mass * factors[operator] <= cap * (1 + 1e-9)
        assert factors[operator] == 1.0 or mass > cap


@given(st.lists(positive, min_size=2, max_size=10), st.integers(1, 9), positive, st.floats(0, 1e3), st.booleans())
def test_a_minority_weighs_at_most_as_an_honest_operator_or_an_equal_share(honest, attackers, huge, asked, tiny):
    attackers = min(attackers, len(honest) - 1)
    sent = huge * (1e-9 if tiny else 1e9)
    everyone = {f"honest {i}": mass for i, mass in enumerate(honest)} | {f"bad {i}": sent for i in range(attackers)}
    factors = operator_factors(everyone, asked)
    share = asked / len(everyone)
    for number in range(attackers):
        assert sent * factors[f"bad {number}"] <= max(max(honest), share) * (1 + 1e-9)
    for number, mass in enumerate(honest):  # and nobody is pushed below an equal share of what was asked
        assert mass * factors[f"honest {number}"] >= min(mass, share) * (1 - 1e-9)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), positive), min_size=1, max_size=30), st.randoms(use_true_random=False)
)
def test_rows_weigh_alike_in_any_order_and_under_any_number_of_keys(rows, rng: random.Random):
    factors = dict(zip((name for name, _ in rows), row_factors(*zip(*rows, strict=True)), strict=True))
    shuffled = list(rows)
    rng.shuffle(shuffled)
    again = dict(zip((name for name, _ in shuffled), row_factors(*zip(*shuffled, strict=True)), strict=True))
    assert {name: pytest.approx(factor) for name, factor in factors.items()} == again
    halves = [(name, mass / 2) for name, mass in rows for _ in range(2)]
    split = dict(zip((name for name, _ in halves), row_factors(*zip(*halves, strict=True)), strict=True))
    assert {name: pytest.approx(factor) for name, factor in factors.items()} == split


@given(offers, st.integers(0, 12))
def test_shared_rows_keep_the_cap_and_equal_shares(offer: list[Row], cap: int):
    shared = share_rows(offer, cap)
    assert len(set(shared)) == len(shared)
    assert set(shared) <= set(offer)
    assert shared == sorted(shared, key=lambda r: (r.prompt_hash, r.key, r.sequence, r.row))
    for prompt in (b"p", b"q"):
        operators = {row.operator for row in offer if row.prompt_hash == prompt}
        taken = Counter(row.operator for row in shared if row.prompt_hash == prompt)
        assert sum(taken.values()) <= cap
        assert all(count <= -(-cap // len(operators)) for count in taken.values())
        if cap >= len(operators):
            assert set(taken) == operators
