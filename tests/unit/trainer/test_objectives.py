"""The loss against hand-worked values and float64 brute force."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from shoal.trainer.algorithm import AlgorithmSpec, recipe
from shoal.trainer.objectives import AGGREGATIONS, GATES, Denominators, k3, loss
from shoal.trainer.packing import Batch

PLAIN = recipe("grpo", entropy=0.0)


def batch(
    lengths: list[int],
    advantages: list[float],
    old: Tensor | None = None,
    width: int | None = None,
    **changes: Any,
) -> Batch:
    rows, width = len(lengths), width or max(lengths)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    empty = torch.zeros(0, dtype=torch.long)
    fields = {
        "inputs": empty,
        "predictors_N": empty,
        "targets_N": empty,
        "completion_mask_BT": mask,
        "advantages_BT": torch.tensor(advantages, dtype=torch.float64)[:, None] * mask,
        "old_logps_BT": torch.zeros(rows, width, dtype=torch.float64) if old is None else old,
        "ref_logps_BT": None,
        "weight_B": torch.ones(rows, dtype=torch.float64),
        "train_mask_B": torch.ones(rows, dtype=torch.bool),
        "temperature_B": None,
    }
    return Batch(**(fields | changes))


def evaluate(
    some: Batch, logps: Tensor, spec: AlgorithmSpec = PLAIN, entropy: Tensor | None = None, rows: int | None = None
) -> tuple[float, Tensor]:
    """Loss and its gradient by the log-probs."""
    leaf = logps.double().clone().requires_grad_()
    lengths = some.completion_mask_BT.sum(1)[some.train_mask_B]
    denominators = Denominators(int(lengths.sum()), rows or len(lengths), spec.max_tokens)
    value, _ = loss(some, leaf, entropy, spec, denominators)
    value.backward()
    assert leaf.grad is not None
    return value.item(), leaf.grad


def one_token(ratio: float, advantage: float, spec: AlgorithmSpec = PLAIN) -> tuple[float, float]:
    value, gradient = evaluate(batch([1], [advantage]), torch.tensor([[math.log(ratio)]], dtype=torch.float64), spec)
    return value, gradient.item()


@pytest.mark.parametrize("ratio", [0.3, 0.79, 0.81, 1.0, 1.27, 1.29, 5.0])
@pytest.mark.parametrize("advantage", [-2.0, 1.5])
def test_the_clip_stops_the_gradient_exactly_where_it_should(ratio: float, advantage: float) -> None:
    value, gradient = one_token(ratio, advantage)
    clipped = min(max(ratio, 0.8), 1.28)
    assert value == pytest.approx(-min(ratio * advantage, clipped * advantage))
    outside = (advantage > 0 and ratio > 1.28) or (advantage < 0 and ratio < 0.8)
    assert gradient == pytest.approx(0.0 if outside else -ratio * advantage)


def test_dual_clip_floors_the_objective_of_negatives() -> None:
    spec = recipe("grpo", entropy=0.0, dual_clip=3.0)
    assert one_token(2.9, -1.0, spec) == pytest.approx((2.9, 2.9))
    assert one_token(5.0, -1.0, spec) == pytest.approx((3.0, 0.0))
    assert one_token(5.0, 1.0, spec) == pytest.approx((-1.28, 0.0))


def test_a_log_ratio_of_hundreds_stays_finite() -> None:
    value, _ = evaluate(batch([1], [-1.0]), torch.tensor([[500.0]]))
    assert value == pytest.approx(math.exp(20))


def test_clipped_tokens_are_counted_among_those_with_an_advantage() -> None:
    ratios = torch.tensor([[2.0, 1.0], [0.5, 2.0], [9.0, 9.0]], dtype=torch.float64)
    _, sums = loss(batch([2, 2, 2], [1.0, -1.0, 0.0]), ratios.log(), None, PLAIN, Denominators(6, 3, 8))
    assert (int(sums["clipped"]), int(sums["active"]), int(sums["tokens"])) == (2, 4, 6)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        # rows of 1 and 3 tokens at ratio 1 with A = 2 and -1; L_max 8
        ("token_mean", -(2 - 3) / 4),
        ("seq_mean_token_mean", -(2 - 1) / 2),
        ("seq_mean_token_sum", -(2 - 3) / 2),
        ("seq_mean_token_sum_norm", -(2 - 3) / (2 * 8)),
    ],
)
def test_aggregations_by_hand(aggregation: str, expected: float) -> None:
    spec = recipe("grpo", entropy=0.0, aggregation=aggregation, max_tokens=8)
    value, _ = evaluate(batch([1, 3], [2.0, -1.0]), torch.zeros(2, 3), spec)
    assert value == pytest.approx(expected)


def test_aggregations_agree_up_to_a_constant_at_equal_lengths() -> None:
    torch.manual_seed(0)
    logps, some = torch.randn(3, 4) * 0.1, batch([4, 4, 4], [1.0, -0.5, 2.0])
    constants = {"token_mean": 1.0, "seq_mean_token_mean": 1.0, "seq_mean_token_sum": 4.0}
    constants["seq_mean_token_sum_norm"] = 4 / 16
    assert set(constants) == set(AGGREGATIONS)
    reference, _ = evaluate(some, logps, recipe("grpo", entropy=0.0, aggregation="token_mean"))
    for name, factor in constants.items():
        value, _ = evaluate(some, logps, recipe("grpo", entropy=0.0, aggregation=name, max_tokens=16))
        assert value == pytest.approx(factor * reference)


@pytest.mark.parametrize("aggregation", sorted(AGGREGATIONS))
def test_padding_adds_neither_value_nor_gradient(aggregation: str) -> None:
    spec = recipe("grpo", entropy=0.0, aggregation=aggregation)
    logps = torch.tensor([[0.1, 0.0, 0.0], [0.05, -0.1, 0.02]], dtype=torch.float64)
    tight = evaluate(batch([1, 3], [1.0, -1.0]), logps, spec)
    noise = torch.full((2, 9), 7.0, dtype=torch.float64)
    noise[:, :3] = logps
    noise[0, 1:] = math.nan
    wide = evaluate(batch([1, 3], [1.0, -1.0], width=9), noise, spec)
    assert wide[0] == tight[0]
    assert torch.equal(wide[1][:, :3], tight[1])
    assert not wide[1][:, 3:].any()


@pytest.mark.parametrize("aggregation", sorted(AGGREGATIONS))
def test_shares_of_micro_batches_add_up(aggregation: str) -> None:
    spec = recipe("grpo", entropy=0.0, aggregation=aggregation)
    logps, denominators = torch.randn(2, 3, dtype=torch.float64) * 0.1, Denominators(4, 2, 8)
    whole, _ = loss(batch([1, 3], [1.0, -1.0]), logps, None, spec, denominators)
    first, _ = loss(batch([1], [1.0], width=3), logps[:1], None, spec, denominators)
    second, _ = loss(batch([3], [-1.0]), logps[1:], None, spec, denominators)
    assert whole.item() == pytest.approx((first + second).item(), abs=1e-15)


@pytest.mark.parametrize("aggregation", sorted(AGGREGATIONS))
def test_an_all_masked_batch_has_loss_zero(aggregation: str) -> None:
    spec = recipe("grpo", aggregation=aggregation, kl="k3", beta=0.1)
    hostile = torch.full((2, 2), math.nan, dtype=torch.float64)
    masked = torch.zeros(2, dtype=torch.bool)
    some = batch([2, 2], [math.nan, math.inf], hostile, train_mask_B=masked, ref_logps_BT=hostile)
    value, gradient = evaluate(some, hostile, spec, entropy=hostile, rows=0)
    assert value == 0.0
    assert not gradient.any()
    _, sums = loss(some, hostile, hostile, spec, Denominators(0, 0, 8))
    assert {name: total.item() for name, total in sums.items()} == dict.fromkeys(sums, 0)


def test_a_masked_row_changes_nothing() -> None:
    logps = torch.tensor([[0.1, 0.2], [0.3, -0.1]], dtype=torch.float64)
    alone = evaluate(batch([2], [1.0]), logps[:1])
    masked = evaluate(batch([2, 2], [1.0, math.nan], train_mask_B=torch.tensor([True, False])), logps)
    assert masked[0] == alone[0]
    assert torch.equal(masked[1], torch.cat([alone[1], torch.zeros(1, 2)]))


def test_the_row_weight_scales_the_gate_and_not_the_bonus() -> None:
    logps, weight = torch.tensor([[0.1]], dtype=torch.float64), torch.tensor([0.25], dtype=torch.float64)
    full = evaluate(batch([1], [1.0]), logps)
    quarter = evaluate(batch([1], [1.0], weight_B=weight), logps)
    assert quarter[0] == pytest.approx(full[0] / 4)
    entropy = torch.tensor([[2.0]], dtype=torch.float64)
    value, _ = evaluate(batch([1], [1.0], weight_B=weight), logps, recipe("grpo", entropy=0.01), entropy)
    assert value == pytest.approx(full[0] / 4 - 0.01 * 2.0)


def test_damping_scales_the_gradient_of_unlikely_foreign_tokens_by_hand() -> None:
    spec = recipe("grpo", entropy=0.0, damping=0.1, aggregation="seq_mean_token_sum")
    old = torch.tensor([[0.05, 0.1, 0.9]] * 2, dtype=torch.float64).log()
    some = batch([3, 3], [2.0, 2.0], old, own_B=torch.tensor([True, False]))
    value, gradient = evaluate(some, old, spec)
    # ratio 1, so each token's gradient is -A / rows: own -1 throughout, foreign times .05 / .1 where p is below .1
    assert gradient.tolist() == [pytest.approx([-1.0, -1.0, -1.0]), pytest.approx([-0.5, -1.0, -1.0])]
    assert value == pytest.approx(-(2 * 3 + 2 * 2.5) / 2)


def test_damping_leaves_own_rows_bit_for_bit() -> None:
    torch.manual_seed(3)
    old, now = torch.randn(3, 4).double() - 2, torch.randn(3, 4).double() - 2
    spec = recipe("grpo", entropy=0.0, damping=0.3)
    for own in (None, torch.tensor([True, True, True])):
        plain = evaluate(batch([4, 2, 3], [1.0, -1.0, 0.5], old), now)
        damped = evaluate(batch([4, 2, 3], [1.0, -1.0, 0.5], old, own_B=own), now, spec)
        assert damped[0] == plain[0]
        assert torch.equal(damped[1], plain[1])


def test_k3_is_zero_only_where_the_policies_agree() -> None:
    difference = torch.linspace(-3, 3, 61, dtype=torch.float64)
    values = k3(torch.zeros(61, dtype=torch.float64), difference)
    assert (values >= 0).all()
    assert torch.equal(values < 1e-12, difference.abs() < 1e-9)
    assert k3(torch.tensor(0.0), torch.tensor(math.log(2))).item() == pytest.approx(1 - math.log(2))


def test_kl_enters_the_loss_with_its_coefficient() -> None:
    ref = torch.tensor([[math.log(2)]], dtype=torch.float64)
    spec = recipe("grpo", entropy=0.0, kl="k3", beta=0.04)
    value, gradient = evaluate(batch([1], [0.0], ref_logps_BT=ref), torch.zeros(1, 1), spec)
    assert value == pytest.approx(0.04 * (1 - math.log(2)))
    assert gradient.item() == pytest.approx(0.04 * (1 - 2))  # d k3 / dl = 1 - exp(l_ref - l)


def test_a_one_token_sequence_ratio_is_the_token_ratio() -> None:
    spec = recipe("grpo", entropy=0.0, ratio="sequence")
    for ratio in (0.5, 1.1, 2.0):
        assert one_token(ratio, -1.0, spec) == pytest.approx(one_token(ratio, -1.0))


def test_the_sequence_ratio_equals_the_sequence_level_objective() -> None:
    """-min(sA, clip(s)A) with s = exp(mean log r), written out per sequence."""
    spec = recipe("grpo", entropy=0.0, ratio="sequence", clip_low=0.1, clip_high=0.1)
    torch.manual_seed(1)
    logps = (torch.randn(4, 3, dtype=torch.float64) * 0.2).requires_grad_()
    lengths, values = [1, 3, 2, 3], [1.0, -1.0, 0.5, 2.0]
    expected = torch.zeros((), dtype=torch.float64)
    for row, (length, advantage) in enumerate(zip(lengths, values, strict=True)):
        s = logps[row, :length].mean().exp()
        expected = expected - torch.minimum(s * advantage, s.clamp(0.9, 1.1) * advantage) / 4
    expected.backward()
    value, gradient = evaluate(batch(lengths, values), logps.detach(), spec)
    assert value == pytest.approx(expected.item(), abs=1e-12)
    assert logps.grad is not None
    assert torch.allclose(gradient, logps.grad, atol=1e-12)


def test_a_later_gate_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    def reinforce(ratio: Tensor, advantages: Tensor, spec: AlgorithmSpec) -> tuple[Tensor, Tensor]:
        return -ratio * advantages, torch.zeros_like(advantages, dtype=torch.bool)

    monkeypatch.setitem(GATES, "reinforce", reinforce)
    assert one_token(9.0, 1.0, recipe("grpo", entropy=0.0, gate="reinforce")) == pytest.approx((-9.0, -9.0))
