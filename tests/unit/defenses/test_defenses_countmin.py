"""The sketch: never too little, exact while it is nearly empty, halved as a whole."""

import random
from collections import Counter

import msgpack
import numpy as np

from shoal.defenses.countmin import MOST, CountMin


def keys(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def counted(bits: int, draws: int, seed: int = 0) -> tuple[CountMin, Counter[int]]:
    rng = random.Random(seed)
    pool = [rng.getrandbits(64) for _ in range(draws)]
    sketch, exact = CountMin(bits), Counter()
    for _ in range(draws):
        batch = set(rng.choices(pool, k=5))
        sketch.add(keys(*batch))
        exact.update(batch)
    return sketch, exact


def test_counts_are_exact_while_the_sketch_is_nearly_empty():
    sketch, exact = counted(16, 50)
    assert {key: int(sketch.get(keys(key))[0]) for key in exact} == dict(exact)
    assert sketch.get(keys(12345))[0] == 0


def test_counts_are_never_too_low_in_a_crowd():
    sketch, exact = counted(6, 400)
    assert all(sketch.get(keys(key))[0] >= count for key, count in exact.items())
    assert max(int(sketch.get(keys(key))[0]) for key in exact) <= sum(exact.values())


def test_halving_halves_and_rounds_down():
    sketch = CountMin(10)
    for _ in range(5):
        sketch.add(keys(7))
    sketch.add(keys(1 << 40))
    sketch.halve()
    assert sketch.get(keys(7, 1 << 40)).tolist() == [2, 0]


def test_a_counter_stays_at_its_most():
    sketch = CountMin(4)
    for row in sketch._rows:
        row[:] = MOST - 1
    sketch.add(keys(1))
    sketch.add(keys(1))
    assert sketch.get(keys(1)).tolist() == [MOST]


def test_the_state_makes_an_equal_sketch():
    sketch, exact = counted(8, 100)
    other = CountMin(8)
    other.restore(msgpack.unpackb(msgpack.packb(sketch.state())))
    assert other.state() == sketch.state()
    other.add(keys(*exact))
    assert other.state() != sketch.state()
