"""Advantages in four small pure steps: centre, scale, shape, assign. One method is one entry on one step.

Everything up to `assign` is per row and in float64, so that a group of equal rewards gives exactly 0.
"""

# ruff: noqa: N802, N815 (names end in the shape of their tensor)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from shoal.trainer.algorithm import AlgorithmSpec

BASELINES = ("local", "mixed")
PEER_ROWS = ("all", "positive", "likely")
MIN_BASELINE_ROWS = 2  # one reward has no spread: nothing can be said about better or worse
STD_EPS = 1e-4  # as TRL; rewards are of order 1
ROUNDING = 1e-12  # a mean of equal rewards can miss them by some 1e-16: that is no signal


@dataclass(frozen=True, slots=True)
class Groups:
    """Rewards of a batch with the groups they belong to, and the rows each group's baseline is made of."""

    rewards_B: Tensor  # float64; 0 where unscorable
    group_B: Tensor  # 0..K-1
    base_B: Tensor  # bool: enters the baseline of its group
    own_B: Tensor  # bool: sampled here
    scored_B: Tensor  # bool: has a reward
    judged_B: Tensor  # bool: may be measured against its group's baseline

    def total(self, values_B: Tensor) -> Tensor:
        """Sum of `values_B` over each row's group, given back to every row of it (float64)."""
        groups = int(self.group_B.max()) + 1 if len(self.group_B) else 0
        sums_K = torch.zeros(groups, dtype=torch.float64).index_add_(0, self.group_B, values_B.double())
        return sums_K[self.group_B]

    @property
    def base_count_B(self) -> Tensor:
        """Baseline rows of each row's group."""
        return self.total(self.base_B)

    @property
    def base_mean_B(self) -> Tensor:
        """Mean reward of the baseline rows of each row's group; 0 where there are none."""
        return self.total(self.rewards_B * self.base_B) / self.base_count_B.clamp(min=1)

    @property
    def enough_B(self) -> Tensor:
        """Whether a row has a baseline of at least two rows to be measured against; otherwise it is dropped."""
        return (self.base_count_B >= MIN_BASELINE_ROWS) & self.judged_B


def group_rewards(
    rewards_B: Tensor, uid_B: Tensor, baseline_mask_B: Tensor, own_mask_B: Tensor, baseline: str
) -> Groups:
    """Sort rewards into groups and decide which rows make each baseline.

    `mixed` takes every row with its baseline mask set. In a group that peers' rows joined, `local` takes own rows only,
    so that peers cannot move it. A group without own rows (masked ones do not count) is a whole external set and uses
    its own; an own row in it has nothing to be measured against.
    """
    _, group_B = torch.unique(uid_B, return_inverse=True)
    own_B, scored_B, masked_in_B = own_mask_B.bool(), torch.isfinite(rewards_B), baseline_mask_B.bool()
    rewards_B = torch.where(scored_B, rewards_B, 0.0).double()
    groups = Groups(rewards_B, group_B, masked_in_B & scored_B, own_B, scored_B, torch.ones_like(own_B))
    if baseline == "mixed":
        return groups
    external_B = groups.total(own_B & masked_in_B) == 0
    return replace(groups, base_B=groups.base_B & (own_B | external_B), judged_B=~(own_B & external_B))


def mean(groups: Groups) -> Tensor:
    """Mean reward of the group's baseline rows (GRPO, arXiv 2402.03300; Dr. GRPO, arXiv 2503.20783)."""
    return groups.base_mean_B


def no_centre(groups: Groups) -> Tensor:
    """No baseline: plain REINFORCE."""
    return torch.zeros_like(groups.rewards_B)


def no_scale(groups: Groups) -> Tensor:
    """Leave the size of the rewards alone (Dr. GRPO, arXiv 2503.20783)."""
    return torch.ones_like(groups.rewards_B)


def group_std(groups: Groups) -> Tensor:
    """Bessel-corrected std of the group's baseline rows + 1e-4 (GRPO, arXiv 2402.03300)."""
    squares_B = groups.total((groups.rewards_B - groups.base_mean_B) ** 2 * groups.base_B)
    return (squares_B / (groups.base_count_B - 1).clamp(min=1)).sqrt() + STD_EPS


def no_shape(groups: Groups, advantages_B: Tensor) -> Tensor:  # noqa: ARG001 (one signature for the registry)
    """Leave the advantages as they are."""
    return advantages_B


def sequence(advantages_B: Tensor, mask_BT: Tensor) -> Tensor:
    """Every token of a completion gets the completion's advantage."""
    return torch.where(mask_BT, advantages_B[:, None], 0.0)


CENTRES: dict[str, Callable[[Groups], Tensor]] = {"mean": mean, "none": no_centre}
SCALES: dict[str, Callable[[Groups], Tensor]] = {"none": no_scale, "group_std": group_std}
SHAPES: dict[str, Callable[[Groups, Tensor], Tensor]] = {"none": no_shape}
ASSIGNS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"sequence": sequence}


def group_advantages(groups: Groups, spec: AlgorithmSpec) -> Tensor:
    """`A_B` (float64): centre, scale, shape. Unscorable rows and groups with too small a baseline get 0.

    Peers' rows are never divided by a std: with the local one they would be judged by a spread they are no part of,
    and a set of their own could be made arbitrarily loud by a spread near zero.
    """
    centred_B = groups.rewards_B - CENTRES[spec.centre](groups)
    centred_B = torch.where(centred_B.abs() < ROUNDING, 0.0, centred_B)
    scaled_B = torch.where(groups.own_B, centred_B / SCALES[spec.scale](groups), centred_B)
    shaped_B = SHAPES[spec.shape](groups, scaled_B)
    return torch.where(groups.scored_B & groups.enough_B, shaped_B, 0.0)


def advantages(
    rewards_B: Tensor, uid_B: Tensor, baseline_mask_B: Tensor, own_mask_B: Tensor, spec: AlgorithmSpec
) -> Tensor:
    """`A_B` (float64) of rewards (NaN = unscorable) in groups `uid_B`; see `group_rewards` and `group_advantages`."""
    return group_advantages(group_rewards(rewards_B, uid_B, baseline_mask_B, own_mask_B, spec.baseline), spec)


def usable_peer_rows(advantages_B: Tensor, mean_logps_B: Tensor, foreign_B: Tensor, spec: AlgorithmSpec) -> Tensor:
    """Mask of the rows that the rule for peers' rows lets train; own rows always may.

    `all`: every row; `positive`: A > 0 only; `likely`: negatives only where the own policy finds the text likely, mean
    own log-prob >= `spec.likely_floor`: the gradient that pushes down unlikely text is unbounded.
    """
    if spec.peer_rows == "all":
        return torch.ones_like(foreign_B)
    keep_B = advantages_B > 0
    if spec.peer_rows == "likely":
        keep_B = keep_B | (mean_logps_B >= spec.likely_floor)
    return keep_B | ~foreign_B
