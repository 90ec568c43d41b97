"""The loss on four axes: ratio level, gate, aggregation, KL (plus an entropy bonus). One method is one entry.

Symbols: l current log-prob, l_old the local one before the first minibatch, r = exp(l - l_old), A advantage.
A loss is minimised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from shoal.trainer.mismatch import importance

if TYPE_CHECKING:
    from shoal.trainer.algorithm import AlgorithmSpec
    from shoal.trainer.packing import Batch

LOG_RATIO_LIMIT = 20.0  # e^20: beyond it float32 sums lose every other token, and the gate has long closed


class Denominators(NamedTuple):
    """What one optimizer step averages over, counted over all its micro-batches before the first of them."""

    tokens: int
    rows: int
    max_tokens: int


def token_ratio(logps_BT: Tensor, old_logps_BT: Tensor, mask_BT: Tensor) -> Tensor:  # noqa: ARG001
    """log r of each token (PPO, arXiv 1707.06347)."""
    return logps_BT - old_logps_BT


def sequence_ratio(logps_BT: Tensor, old_logps_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """log s of the sequence, in the token form sg[s] * exp(l - sg[l]) (GSPO, arXiv 2507.18071)."""
    difference_BT = torch.where(mask_BT, logps_BT - old_logps_BT, 0.0).detach()
    mean_B = difference_BT.sum(1) / mask_BT.sum(1).clamp(min=1)
    return mean_B[:, None] + logps_BT - logps_BT.detach()


def ppo_clip(ratio_BT: Tensor, advantages_BT: Tensor, spec: AlgorithmSpec) -> tuple[Tensor, Tensor]:
    """-min(rA, clip(r, 1-eL, 1+eH)A), and which tokens carry no gradient (arXiv 1707.06347; eL, eH arXiv 2503.14476).

    With `dual_clip` c the objective of A < 0 is floored at cA (arXiv 1912.09729; 3 is usual).
    """
    free_BT = -ratio_BT * advantages_BT
    bound_BT = -ratio_BT.clamp(1 - spec.clip_low, 1 + spec.clip_high) * advantages_BT
    loss_BT = torch.maximum(free_BT, bound_BT)
    clipped_BT = bound_BT > free_BT
    if spec.dual_clip is not None:
        floor_BT = -spec.dual_clip * advantages_BT
        floored_BT = (advantages_BT < 0) & (loss_BT > floor_BT)
        loss_BT = torch.where(floored_BT, floor_BT, loss_BT)
        clipped_BT = clipped_BT | floored_BT
    return loss_BT, clipped_BT


def damped(old_logps_BT: Tensor, own_B: Tensor, tau: float) -> Tensor:
    """Factor of each token's gradient: min(1, p_t / tau) for peers' rows with p_t the old local probability, 1 for own.

    By the logits log p_t has a gradient of about 1 - p_t: the one implausible token of a peer pulls harder than all
    that the policy expects. Damping slows what such a token teaches; once it is likely, it trains at full strength.
    """
    factor_BT = (old_logps_BT.detach().exp() / tau).clamp(max=1.0)
    return torch.where(own_B[:, None], torch.ones_like(factor_BT), factor_BT)


def token_mean(lengths_B: Tensor, denominators: Denominators) -> Tensor:
    """Sum over all completion tokens of the step (DAPO, arXiv 2503.14476)."""
    return torch.full_like(lengths_B, 1.0 / max(denominators.tokens, 1))


def seq_mean_token_mean(lengths_B: Tensor, denominators: Denominators) -> Tensor:
    """Mean over a completion's tokens, then over completions (GRPO, arXiv 2402.03300)."""
    return 1.0 / (lengths_B.clamp(min=1) * max(denominators.rows, 1))


def seq_mean_token_sum(lengths_B: Tensor, denominators: Denominators) -> Tensor:
    """Sum over a completion's tokens, then mean over completions (REINFORCE)."""
    return torch.full_like(lengths_B, 1.0 / max(denominators.rows, 1))


def seq_mean_token_sum_norm(lengths_B: Tensor, denominators: Denominators) -> Tensor:
    """Sum over tokens / (completions * L_max): length never enters (Dr. GRPO, arXiv 2503.20783)."""
    return torch.full_like(lengths_B, 1.0 / (max(denominators.rows, 1) * denominators.max_tokens))


def k3(logps_BT: Tensor, ref_logps_BT: Tensor) -> Tensor:
    """exp(l_ref - l) - (l_ref - l) - 1, never negative (arXiv 2402.03300)."""
    difference_BT = (ref_logps_BT - logps_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return difference_BT.exp() - difference_BT - 1


def no_kl(logps_BT: Tensor, ref_logps_BT: Tensor) -> Tensor:  # noqa: ARG001 (one signature for the registry)
    """No pull towards a reference policy."""
    return torch.zeros_like(logps_BT)


RATIOS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"token": token_ratio, "sequence": sequence_ratio}
GATES: dict[str, Callable[[Tensor, Tensor, AlgorithmSpec], tuple[Tensor, Tensor]]] = {"ppo_clip": ppo_clip}
AGGREGATIONS: dict[str, Callable[[Tensor, Denominators], Tensor]] = {
    "token_mean": token_mean,
    "seq_mean_token_mean": seq_mean_token_mean,
    "seq_mean_token_sum": seq_mean_token_sum,
    "seq_mean_token_sum_norm": seq_mean_token_sum_norm,
}
KLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"none": no_kl, "k3": k3}


def loss(
    batch: Batch, logps_BT: Tensor, entropy_BT: Tensor | None, spec: AlgorithmSpec, denominators: Denominators
) -> tuple[Tensor, dict[str, Tensor]]:
    """One micro-batch's share of the step's loss, and sums over its tokens for the report.

    Shares add up: the gradient of a step does not depend on how it was cut into micro-batches. Rows whose train mask
    is off, and padding, add neither value nor gradient. Row weight, damping and the importance weight scale the gate
    alone, not KL or entropy.
    """
    mask_BT = batch.completion_mask_BT & batch.train_mask_B[:, None]
    # Masked on the way in as well: 0 * NaN is NaN in a backward pass.
    logps_BT = torch.where(mask_BT, logps_BT, 0.0)
    old_logps_BT = torch.where(mask_BT, batch.old_logps_BT, 0.0)
    advantages_BT = torch.where(mask_BT, batch.advantages_BT, 0.0)
    log_ratio_BT = RATIOS[spec.ratio](logps_BT, old_logps_BT, mask_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio_BT = log_ratio_BT.exp()
    loss_BT, clipped_BT = GATES[spec.gate](ratio_BT, advantages_BT, spec)
    loss_BT = loss_BT * batch.weight_B[:, None]
    if spec.damping is not None and batch.own_B is not None:
        loss_BT = loss_BT * damped(old_logps_BT, batch.own_B, spec.damping)
    sums = {"tokens": mask_BT.sum(), **_movement(ratio_BT.detach(), log_ratio_BT.detach(), clipped_BT, advantages_BT)}
    if spec.importance_cap is not None and batch.behaviour_logps_BT is not None:
        weight_BT, capped_BT = importance(old_logps_BT, batch.behaviour_logps_BT, batch.own_B, spec.importance_cap)
        loss_BT = loss_BT * weight_BT
        sums["capped"] = (mask_BT & capped_BT & (advantages_BT != 0)).sum()
    if spec.beta and batch.ref_logps_BT is not None:
        kl_BT = torch.where(mask_BT, KLS[spec.kl](logps_BT, torch.where(mask_BT, batch.ref_logps_BT, 0.0)), 0.0)
        loss_BT = loss_BT + spec.beta * kl_BT
        sums["kl"] = kl_BT.detach().sum()
    if entropy_BT is not None:
        entropy_BT = torch.where(mask_BT, entropy_BT, 0.0)
        sums["entropy"] = entropy_BT.detach().sum()
        if spec.entropy:
            loss_BT = loss_BT - spec.entropy * entropy_BT
    weights_B = AGGREGATIONS[spec.aggregation](mask_BT.sum(1).to(loss_BT.dtype), denominators)
    return (torch.where(mask_BT, loss_BT, 0.0) * weights_B[:, None]).sum(), sums


def _movement(ratio_BT: Tensor, log_ratio_BT: Tensor, clipped_BT: Tensor, advantages_BT: Tensor) -> dict[str, Tensor]:
    """Over tokens with an advantage: how many there are, how many the gate stopped, how far the policy has moved."""
    active_BT = advantages_BT != 0
    return {
        "active": active_BT.sum(),
        "clipped": (clipped_BT & active_BT).sum(),
        "drift": ((ratio_BT - log_ratio_BT - 1) * active_BT).sum(),  # k3 of the policy that scored the rows
    }
