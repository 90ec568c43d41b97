"""The gauge and the truncated importance weight: by hand, by float64 brute force, and for own rows alone."""

import math
from typing import Any

import pytest
import torch
from tiny_policy import random_rows, row_logps, same, tiny_policy, weights
from torch import Tensor

from shoal.protocol.errors import UsageError
from shoal.trainer.algorithm import AlgorithmSpec, OptimizerSpec, recipe
from shoal.trainer.batch import Row
from shoal.trainer.mismatch import Mismatch, compare, importance, measure
from shoal.trainer.objectives import Denominators, loss
from shoal.trainer.packing import Batch, pad_packs
from shoal.trainer.step import Trainer

PEER = b"p" * 32
NAN, INF = math.nan, math.inf


def table(values: list[list[float]]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def batch(old: Tensor, behaviour: Tensor | None, advantages: list[float], own: list[bool] | None = None) -> Batch:
    empty = torch.zeros(0, dtype=torch.long)
    return Batch(
        inputs=empty,
        predictors_N=empty,
        targets_N=empty,
        completion_mask_BT=torch.ones(old.shape, dtype=torch.bool),
        advantages_BT=torch.tensor(advantages, dtype=torch.float64)[:, None].expand(old.shape),
        old_logps_BT=old,
        ref_logps_BT=None,
        weight_B=torch.ones(len(old), dtype=torch.float64),
        train_mask_B=torch.ones(len(old), dtype=torch.bool),
        temperature_B=None,
        own_B=None if own is None else torch.tensor(own),
        behaviour_logps_BT=behaviour,
    )


def gradient(some: Batch, logps: Tensor, spec: AlgorithmSpec) -> tuple[float, Tensor, dict[str, Tensor]]:
    leaf = logps.clone().requires_grad_()
    value, sums = loss(some, leaf, None, spec, Denominators(logps.numel(), len(logps), 8))
    value.backward()
    assert leaf.grad is not None
    return value.item(), leaf.grad, sums


def plain(cap: float | None = None, **changes: Any) -> AlgorithmSpec:
    return recipe("grpo", entropy=0.0, aggregation="token_mean", importance_cap=cap, **changes)


def test_the_gauge_by_hand() -> None:
    # l_local - l_sampler: 0, ln 2, -ln 2, .05
    found = compare([[-1.0, -1.0], [-2.0, -0.05]], [[-1.0, -1.0 - math.log(2)], [-2.0 + math.log(2), -0.1]])
    assert found is not None
    two = math.log(2)
    assert (found.tokens, found.broken, found.off) == (4, 0, 0.5)
    assert found.mean == pytest.approx((2 * two + 0.05) / 4)
    assert found.largest == pytest.approx(two)
    k3 = [0.0, 2 - two - 1, 0.5 + two - 1, math.exp(0.05) - 0.05 - 1]
    assert found.kl == pytest.approx(sum(k3) / 4)


def test_what_is_no_number_counts_as_off_and_stays_finite() -> None:
    found = compare([[-1.0, NAN, -1.0, -INF]], [[-1.0, -1.0, -INF, -1.0]])
    assert found is not None
    assert (found.tokens, found.broken, found.off, found.largest, found.mean) == (4, 3, 0.75, 20.0, 15.0)
    assert math.isfinite(found.kl)


def test_equal_log_probs_give_zero_and_nothing_gives_none() -> None:
    assert compare([[-0.5, -3.0]], [[-0.5, -3.0]]) == Mismatch(2, 0.0, 0.0, 0.0, 0.0)
    assert compare([], []) is None
    assert compare([[-1.0, -2.0]], [[-1.0]]) is None


def test_only_own_rows_with_both_log_probs_are_measured() -> None:
    def row(**changes: Any) -> Row:
        return Row(0, [2], [3, 4], 1.0, old_logps=table([[-1.0, -1.0]])[0], **changes)

    rows = [row(behaviour_logps=[-1.5, -1.0]), row(source=PEER, behaviour_logps=[-9.0, -9.0]), row()]
    found = measure(rows)
    assert found is not None
    assert found.kl == pytest.approx((math.exp(0.5) - 1.5) / 2)
    assert (found.tokens, found.mean, found.largest, found.off) == (2, 0.25, 0.5, 0.5)
    assert measure(rows[1:]) is None


def test_the_weight_by_hand() -> None:
    old, behaviour = table([[0.5, 0.2, 0.9, 0.1]] * 2).log(), table([[0.25, 0.4, 0.1, 0.1]] * 2).log()
    found, capped = importance(old, behaviour, torch.tensor([True, False]), 3.0)
    assert capped.tolist() == [[False, False, True, False], [False] * 4]
    assert found.tolist() == [pytest.approx([2.0, 0.5, 3.0, 1.0]), [1.0] * 4]


def test_log_probs_without_a_number_weigh_one_and_extremes_stay_finite() -> None:
    old, behaviour = table([[-1.0, -1.0, -1.0, -INF, -0.0, -700.0]]), table([[NAN, -INF, INF, -1.0, -1e4, -0.0]])
    found, capped = importance(old, behaviour, None, 2.0)
    assert found.tolist() == [[1.0, 1.0, 1.0, 0.0, 2.0, pytest.approx(0)]]
    assert capped.tolist() == [[False] * 4 + [True, False]]
    assert importance(old.float(), behaviour.float(), None, 2.0)[0].isfinite().all()


@pytest.mark.parametrize("cap", [1.0, 1.3, 2.0])
def test_the_gradient_is_weight_times_gradient(cap: float) -> None:
    """Float64 brute force, token by token; the weight is a constant to the gradient."""
    torch.manual_seed(4)
    old, behaviour, logps = (torch.randn(4, 5, dtype=torch.float64) * 0.6 - 1.5 for _ in range(3))
    own, advantages = [True, True, False, True], [1.0, -0.7, 2.0, 0.3]
    got, slope, sums = gradient(batch(old, behaviour, advantages, own), logps, plain(cap))
    wanted, capped = 0.0, 0
    for b in range(4):
        for t in range(5):
            weight = min(math.exp(float(old[b, t] - behaviour[b, t])), cap) if own[b] else 1.0
            capped += own[b] and weight == cap
            ratio, a = math.exp(float(logps[b, t] - old[b, t])), advantages[b]
            bounded = min(max(ratio, 0.8), 1.28)
            wanted += -weight * min(ratio * a, bounded * a) / 20
            free = -weight * ratio * a / 20
            stopped = (a > 0 and ratio > 1.28) or (a < 0 and ratio < 0.8)
            assert float(slope[b, t]) == pytest.approx(0.0 if stopped else free, abs=1e-12)
    assert got == pytest.approx(wanted, abs=1e-12)
    assert int(sums["capped"]) == capped > 0


def test_no_gradient_reaches_the_log_probs_of_the_weight() -> None:
    old, behaviour = table([[-1.0]]).requires_grad_(), table([[-1.2]]).requires_grad_()
    assert not importance(old, behaviour, None, 2.0)[0].requires_grad


def test_without_a_cap_or_without_log_probs_no_bit_changes() -> None:
    torch.manual_seed(5)
    old, behaviour, logps = (torch.randn(2, 3, dtype=torch.float64) for _ in range(3))
    bare = gradient(batch(old, None, [1.0, -1.0]), logps, plain())
    for some, spec in ((batch(old, behaviour, [1.0, -1.0]), plain()), (batch(old, None, [1.0, -1.0]), plain(2.0))):
        got = gradient(some, logps, spec)
        assert got[0] == bare[0]
        assert torch.equal(got[1], bare[1])
        assert "capped" not in got[2]


def test_padding_that_is_no_number_does_not_reach_the_loss() -> None:
    rows = [Row(0, [2], [3, 4, 5], 1.0, behaviour_logps=[-1.0, -2.0, -3.0]), Row(0, [2], [6], 0.0, source=PEER)]
    packed = pad_packs([[rows[0]], [rows[1]]], 0)
    assert packed.behaviour_logps_BT is not None
    assert packed.behaviour_logps_BT[0].tolist() == [-1.0, -2.0, -3.0]
    assert packed.behaviour_logps_BT[1, 0].isnan()
    value, _ = loss(packed, torch.zeros(2, 3), None, plain(2.0), Denominators(4, 2, 8))
    assert value.isfinite()


def test_what_a_peer_claims_is_not_even_packed() -> None:
    peers = [Row(0, [2], [3], 1.0, source=PEER, behaviour_logps=[-5.0])]
    assert pad_packs([peers], 0).behaviour_logps_BT is None
    own = [Row(0, [2], [4], 1.0, behaviour_logps=[-0.5])]
    packed = pad_packs([peers, own], 0).behaviour_logps_BT
    assert packed is not None
    assert packed[0, 0].isnan()
    short = [Row(0, [2], [4, 5], 1.0, behaviour_logps=[-0.5])]
    packed = pad_packs([short], 0).behaviour_logps_BT
    assert packed is not None
    assert packed.isnan().all()


def sampled_by(shift: float) -> list[Row]:
    """Rows whose sampler gave each token `shift` nats less than the local policy does."""
    policy, rows = tiny_policy(), random_rows()
    for row in rows:
        row.behaviour_logps = (row_logps(policy.model, row)[0].detach() - shift).tolist()
    return rows


def test_the_report_tells_the_mismatch_and_the_share_at_the_cap() -> None:
    fast = OptimizerSpec(lr=0.02, grad_clip=1e9)
    report = Trainer(tiny_policy(), plain(1.2), fast).update(sampled_by(0.3))
    assert report.mismatch is not None
    assert report.mismatch.mean == pytest.approx(0.3, abs=1e-6)
    assert report.mismatch.largest == pytest.approx(0.3, abs=1e-6)
    assert report.mismatch.kl == pytest.approx(math.exp(0.3) - 1.3, abs=1e-6)
    assert report.capped == 1.0
    unmeasured = Trainer(tiny_policy(), plain(1.2), fast).update(random_rows())
    assert (unmeasured.mismatch, unmeasured.capped) == (None, 0.0)


def test_a_constant_weight_is_a_constant_factor_of_the_step() -> None:
    """Each token half as likely to the sampler: weight 2 throughout, which is a row weight of 2."""
    spec = {"minibatches": 1}
    first, second = tiny_policy(), tiny_policy()
    sgd = OptimizerSpec(eps=1.0, grad_clip=1e9)  # a large eps: AdamW then sees the gradient's size
    Trainer(first, plain(4.0, **spec), sgd).update(sampled_by(math.log(2)))
    rows = random_rows()
    for row in rows:
        row.weight = 2.0
    Trainer(second, plain(None, **spec), sgd).update(rows)
    for a, b in zip(weights(first), weights(second), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-9)
    assert not same(weights(first), weights(tiny_policy()))


@pytest.mark.parametrize("cap", [0.5, 0.0, INF, NAN])
def test_a_cap_out_of_range_is_refused(cap: float) -> None:
    with pytest.raises(UsageError, match="importance_cap"):
        plain(cap)
