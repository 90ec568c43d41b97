"""Properties that hold for any rewards and any grouping."""

import math
import statistics

import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.trainer.advantages import advantages
from shoal.trainer.algorithm import AlgorithmSpec, recipe

SPECS = [
    recipe("grpo"),
    recipe("dr_grpo"),
    recipe("grpo", baseline="mixed"),
    recipe("grpo", scale_peers=True),
    recipe("grpo", scale_peers=True, baseline="mixed"),
    recipe("grpo", centre="median", scale="mad", shape="noise_aware"),
]
reward = st.one_of(st.just(math.nan), st.sampled_from([0.0, 1.0]), st.floats(0, 1, width=32))
# (reward, group, baseline mask, own)
row = st.tuples(reward, st.integers(0, 2), st.booleans(), st.booleans())
rows = st.lists(row, min_size=1, max_size=16)
Rows = list[tuple[float, int, bool, bool]]


def take(some: Rows, spec: AlgorithmSpec) -> list[float]:
    rewards, uid, baseline, own = zip(*some, strict=True)
    return advantages(
        torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(uid),
        torch.tensor(baseline),
        torch.tensor(own),
        spec,
    ).tolist()


def by_definition(some: Rows, spec: AlgorithmSpec) -> list[float]:
    """The same in plain Python, one row at a time."""
    result = []
    for reward, uid, _, own in some:
        group = [r for r in some if r[1] == uid]
        base = [r for r in group if r[2] and not math.isnan(r[0])]
        if spec.baseline == "local" and (own or any(r[2] and r[3] for r in group)):
            base = [r for r in base if r[3]]  # an own row is measured against own rows or not at all
        if len(base) < 2 or math.isnan(reward):
            result.append(0.0)
            continue
        values = [r[0] for r in base]
        divide = own or spec.scale_peers
        if spec.centre == "median":
            result.append(by_the_median(reward, values, divide) * flips(values, spec.flip_rate))
            continue
        centred = reward - statistics.fmean(values)
        divide = divide and spec.scale == "group_std"
        result.append(centred / (statistics.stdev(values) + 1e-4) if divide else centred)
    return result


def by_the_median(reward: float, values: list[float], divide: bool) -> float:
    """MC-GRPO of one row: the rescaled distance to the median over its deviation."""
    middle = statistics.median_low(values)
    off = [abs(v - middle) for v in values if abs(v - middle) > 1e-12]
    if not divide or not off:
        return (reward - middle) / 1e-3 if divide else reward - middle
    deviation = max(statistics.median_low([abs(v - middle) for v in values]), statistics.fmean(off) / 2)
    return (reward - middle) / (deviation + 1e-3) * len(values) / len(off)


def flips(values: list[float], p: float) -> float:
    """The weight of S-GRPO with its e gone to 0."""
    q = statistics.fmean(values)
    t = min(max((q - p) / (1 - 2 * p), 0.0), 1.0)
    return (1 - 2 * p) * math.sqrt(t * (1 - t) / (q * (1 - q))) if 0 < q < 1 else 0.0


@given(rows, st.sampled_from(SPECS))
def test_equal_to_an_independent_reference(some: Rows, spec: AlgorithmSpec) -> None:
    for got, expected in zip(take(some, spec), by_definition(some, spec), strict=True):
        assert abs(got - expected) < 1e-6


@given(rows, st.sampled_from(SPECS), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(some: Rows, spec: AlgorithmSpec, random: object) -> None:
    order = list(range(len(some)))
    random.shuffle(order)  # type: ignore[attr-defined]
    straight, shuffled = take(some, spec), take([some[i] for i in order], spec)
    for place, index in enumerate(order):
        assert abs(shuffled[place] - straight[index]) < 1e-9


@given(rows, row, st.sampled_from(SPECS))
def test_a_row_outside_the_baseline_changes_no_other_row(some: Rows, extra: tuple, spec: AlgorithmSpec) -> None:
    masked = (extra[0], extra[1], False, extra[3])
    assert take([*some, masked], spec)[:-1] == take(some, spec)


@given(rows, st.lists(row, max_size=8))
def test_peers_cannot_move_the_local_baseline(some: Rows, peers: Rows) -> None:
    local = [(r[0], r[1], r[2], True) for r in some]
    foreign = [(r[0], r[1], r[2], False) for r in peers]
    for spec in (recipe("grpo"), recipe("dr_grpo")):
        assert take(local + foreign, spec)[: len(local)] == take(local, spec)


@given(st.lists(st.floats(0, 1, width=32), min_size=2, max_size=12))
def test_under_the_median_the_advantages_of_a_group_are_bounded_in_sum(rewards: list[float]) -> None:
    spec = recipe("grpo", centre="median", scale="mad")
    assert sum(map(abs, take([(r, 0, True, True) for r in rewards], spec))) <= 2 * len(rewards)


@given(st.lists(st.floats(0, 1, width=32), min_size=2, max_size=12), st.floats(-3, 3, width=32))
def test_grpo_sums_to_zero_and_ignores_a_shift(rewards: list[float], shift: float) -> None:
    spec = recipe("grpo")
    straight = take([(r, 0, True, True) for r in rewards], spec)
    shifted = take([(r + shift, 0, True, True) for r in rewards], spec)
    assert abs(sum(straight)) < 1e-6
    assert max(abs(a - b) for a, b in zip(straight, shifted, strict=True)) < 1e-5
