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
MAD_EPS = 1e-3  # as published for the median absolute deviation


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

    def base_median_B(self, values_B: Tensor) -> Tensor:
        """Median of `values_B` over the baseline rows of each row's group, 0 where there are none.

        Of an even number it is the lower one of the two in the middle, so that it always is the value of some row.
        """
        medians_B = torch.zeros_like(self.rewards_B)
        for group in self.group_B[self.base_B].unique():
            members_B = self.group_B == group
            medians_B[members_B] = values_B[members_B & self.base_B].median()
        return medians_B

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


def median(groups: Groups) -> Tensor:
    """Median reward of the group's baseline rows (MC-GRPO): one odd reward moves it by one rank at most.

    Sample an odd number G + 1: the row that is the median has advantage 0 and does not train, see `median_rows`. With
    rewards of 0 and 1 it is the majority's reward, so that only the minority of a group has signal. It does not help
    when poison earns true rewards: there is no odd reward to withstand then.
    """
    return groups.base_median_B(groups.rewards_B)


def no_scale(groups: Groups) -> Tensor:
    """Leave the size of the rewards alone (Dr. GRPO, arXiv 2503.20783)."""
    return torch.ones_like(groups.rewards_B)


def group_std(groups: Groups) -> Tensor:
    """Bessel-corrected std of the group's baseline rows + 1e-4 (GRPO, arXiv 2402.03300)."""
    squares_B = groups.total((groups.rewards_B - groups.base_mean_B) ** 2 * groups.base_B)
    return (squares_B / (groups.base_count_B - 1).clamp(min=1)).sqrt() + STD_EPS


def mad(groups: Groups) -> Tensor:
    """Median absolute deviation from the median of the baseline rows + 1e-3 (MC-GRPO), with a floor.

    Rewards of 0 and 1 have a deviation of 0 whenever one of them is in the majority, which would give advantages of
    1000. So it is never below half the mean distance of the rows that are off the median: the abs(A) of an own group,
    divided by `off_median_share` as published, sum to at most 2 (G + 1). Bell-shaped rewards stay above the floor.
    """
    distance_B = (groups.rewards_B - median(groups)).abs()
    off_B = (distance_B > ROUNDING) & groups.base_B
    floor_B = groups.total(distance_B * off_B) / groups.total(off_B).clamp(min=1) / 2
    return torch.maximum(groups.base_median_B(distance_B), floor_B) + MAD_EPS


def off_median_share(groups: Groups) -> Tensor:
    """Share of the group's baseline rows that are off their median; 1 where there are none.

    MC-GRPO divides by it, (G + 1) / nonzero: many rows can be equal to the median, and say nothing.
    """
    off_B = ((groups.rewards_B - median(groups)).abs() > ROUNDING) & groups.base_B
    share_B = groups.total(off_B) / groups.base_count_B.clamp(min=1)
    return torch.where(share_B > 0, share_B, 1.0)


def median_rows(groups: Groups, allowed_B: Tensor) -> Tensor:
    """Mask of one row a group, the first allowed baseline row at the median: it is the baseline, and does not train."""
    candidates_B = allowed_B & groups.base_B & (groups.rewards_B == median(groups))
    _, places = torch.unique(groups.group_B[candidates_B], return_inverse=True)
    rows, pivots_B = torch.nonzero(candidates_B).flatten(), torch.zeros_like(allowed_B)
    for place in places.unique():
        pivots_B[rows[places == place][0]] = True
    return pivots_B


def no_shape(groups: Groups, advantages_B: Tensor, spec: AlgorithmSpec) -> Tensor:  # noqa: ARG001 (one signature)
    """Leave the advantages as they are."""
    return advantages_B


def noise_aware(groups: Groups, advantages_B: Tensor, spec: AlgorithmSpec) -> Tensor:
    """Weigh each group by how far its pass rate q can be believed when rewards flip at rate p (S-GRPO, noise-aware).

    t = clip((q - p) / (1 - 2p), 0, 1) is the rate behind the flips, w = (1 - 2p) sqrt(t(1 - t)) / sqrt(q(1 - q)). A
    group with q <= p or q >= 1 - p may owe all its spread to flips and weighs nothing. q is that of the baseline rows,
    and holds for peers' rows that joined them too; a whole external set has its own. It assumes that right and wrong
    flip alike: a poisoned row that earns a true full reward is no flip, and nothing here lowers it.
    """
    q_B, p = groups.base_mean_B.clamp(0, 1), spec.flip_rate
    t_B = ((q_B - p) / (1 - 2 * p)).clamp(0, 1)
    spread_B = (q_B * (1 - q_B)).clamp(min=ROUNDING)
    return advantages_B * (1 - 2 * p) * (t_B * (1 - t_B) / spread_B).sqrt()


def sequence(advantages_B: Tensor, mask_BT: Tensor) -> Tensor:
    """Every token of a completion gets the completion's advantage."""
    return torch.where(mask_BT, advantages_B[:, None], 0.0)


CENTRES: dict[str, Callable[[Groups], Tensor]] = {"mean": mean, "median": median, "none": no_centre}
SCALES: dict[str, Callable[[Groups], Tensor]] = {"none": no_scale, "group_std": group_std, "mad": mad}
SHAPES: dict[str, Callable[[Groups, Tensor, AlgorithmSpec], Tensor]] = {"none": no_shape, "noise_aware": noise_aware}
ASSIGNS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"sequence": sequence}


def group_advantages(groups: Groups, spec: AlgorithmSpec) -> Tensor:
    """`A_B` (float64): centre, scale, shape. Unscorable rows and groups with too small a baseline get 0.

    Peers' rows are not divided by a std: with the local one they would be judged by a spread they are no part of, and a
    set of their own could be made arbitrarily loud by a spread near zero. `scale_peers` divides them all the same.
    """
    centred_B = groups.rewards_B - CENTRES[spec.centre](groups)
    centred_B = torch.where(centred_B.abs() < ROUNDING, 0.0, centred_B)
    scale_B = SCALES[spec.scale](groups)
    if spec.centre == "median":
        scale_B = scale_B * off_median_share(groups)
    scaled_B = torch.where(groups.own_B | spec.scale_peers, centred_B / scale_B, centred_B)
    shaped_B = SHAPES[spec.shape](groups, scaled_B, spec)
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
