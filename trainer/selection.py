"""Which rows of a batch train, with which advantage and how strongly."""

# ruff: noqa: N802, N815 (names end in the shape of their tensor)

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.trainer.advantages import Groups, group_advantages, group_rewards, median_rows, usable_peer_rows
from shoal.trainer.algorithm import AlgorithmSpec
from shoal.trainer.batch import Row
from shoal.trainer.rewards import reward_columns

# Weighted advantages and operators of all rows → one factor a row. The limits themselves belong to the defences.
Cap = Callable[[list[float], list[str]], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Selection:
    """Per row: advantage (float64), whether it trains, its weight, and whether it carries any gradient of the gate."""

    advantages_B: Tensor
    train_B: Tensor
    weight_B: Tensor
    group_B: Tensor
    counts: dict[str, int]

    @property
    def signal_B(self) -> Tensor:
        """Rows that push the policy somewhere."""
        return self.train_B & (self.advantages_B != 0) & (self.weight_B != 0)


def select(
    rows: Sequence[Row],
    spec: AlgorithmSpec,
    fits: Callable[[Row], bool],
    mean_logps: Callable[[Sequence[Row]], Sequence[float]],
    cap: Cap | None = None,
) -> Selection:
    """Take advantages, then drop what may not train: masked, unscorable, unfit, lone and (by rule) peers' rows.

    With the centre `median` one row a group is the median and does not train.

    Dropped rows leave the denominators too; `counts` says how many went for which reason. `fits` tells whether the
    model can read a row, `mean_logps` gives own mean log-probs (asked only for peers' negatives under `likely`).
    """
    rewards_B = reward_columns(rows, spec).sum(1)
    groups = group_rewards(
        rewards_B,
        torch.tensor([row.uid for row in rows]),
        torch.tensor([row.baseline for row in rows]),
        torch.tensor([row.own for row in rows]),
        spec.baseline,
    )
    advantages_B = group_advantages(groups, spec)
    unmasked_B = torch.tensor([row.train for row in rows])
    fits_B = torch.tensor([fits(row) for row in rows])
    allowed_B = unmasked_B & fits_B & groups.scored_B & groups.enough_B
    pivots_B = median_rows(groups, allowed_B) if spec.centre == "median" else torch.zeros_like(allowed_B)
    allowed_B = allowed_B & ~pivots_B
    usable_B = _usable(rows, advantages_B, allowed_B & ~groups.own_B, spec, mean_logps)
    train_B = allowed_B & usable_B
    uniform_B = allowed_B & (groups.total(train_B & (advantages_B != 0)) == 0)
    if spec.drop_uniform:
        train_B = train_B & ~uniform_B
    counts = {
        "rows": len(rows),
        "masked_rows": int((~unmasked_B).sum()),
        "unscorable_rows": int((~groups.scored_B).sum()),
        "unfit_rows": int((~fits_B).sum()),
        "median_rows": int(pivots_B.sum()),
        "small_groups": _distinct(groups, ~groups.enough_B),
        "uniform_groups": _distinct(groups, uniform_B),
        "unused_peer_rows": int((allowed_B & ~usable_B).sum()),
        "trained_peer_rows": int((train_B & ~groups.own_B).sum()),
        "trained_rows": int(train_B.sum()),
    }
    weight_B = torch.tensor([row.weight for row in rows], dtype=torch.float64)
    if cap is not None:
        weighted_B = torch.where(train_B, advantages_B * weight_B, 0.0)
        factors = cap(weighted_B.tolist(), [row.operator for row in rows])
        weight_B = weight_B * torch.tensor(list(factors), dtype=torch.float64)
    return Selection(advantages_B, train_B, weight_B, groups.group_B, counts)


def _usable(
    rows: Sequence[Row],
    advantages_B: Tensor,
    foreign_B: Tensor,
    spec: AlgorithmSpec,
    mean_logps: Callable[[Sequence[Row]], Sequence[float]],
) -> Tensor:
    mean_logps_B = torch.zeros_like(advantages_B)
    if spec.peer_rows == "likely":
        asked = torch.nonzero(foreign_B & (advantages_B < 0)).flatten().tolist()
        mean_logps_B[asked] = torch.tensor(list(mean_logps([rows[i] for i in asked])), dtype=torch.float64)
    return usable_peer_rows(advantages_B, mean_logps_B, foreign_B, spec)


def _distinct(groups: Groups, rows_B: Tensor) -> int:
    return len(set(groups.group_B[rows_B].tolist()))


def deal_minibatches(selection: Selection, minibatches: int) -> list[list[int]]:
    """Row indices of each minibatch, whole groups dealt like cards in order of first appearance.

    Groups with signal are dealt first, so that each minibatch has some; own and external groups, which come one after
    the other in a batch, are spread over all of them. Fewer groups with signal than minibatches give fewer.
    """
    members: dict[int, list[int]] = {}
    for index in torch.nonzero(selection.train_B).flatten().tolist():
        members.setdefault(int(selection.group_B[index]), []).append(index)
    signal_B = selection.signal_B.tolist()
    loud = [group for group in members.values() if any(signal_B[i] for i in group)]
    quiet = [group for group in members.values() if not any(signal_B[i] for i in group)]
    hands = min(minibatches, len(loud))
    dealt = [(loud + quiet)[start::hands] for start in range(hands)]
    return [[index for group in groups for index in group] for groups in dealt]
