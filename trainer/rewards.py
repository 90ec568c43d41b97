"""Reward columns: what each completion earns, kept apart until the advantage is taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from shoal.trainer.algorithm import AlgorithmSpec
    from shoal.trainer.batch import Row

RewardColumn = Callable[["Row", "AlgorithmSpec"], float]


def task(row: Row, spec: AlgorithmSpec) -> float:  # noqa: ARG001 (one signature for the registry)
    """The verifier's reward; NaN when it could not score the completion."""
    return row.reward


def soft_overlong(row: Row, spec: AlgorithmSpec) -> float:
    """Length penalty of DAPO (arXiv 2503.14476): 0 up to L_max - cache tokens, then linear down to -1 at L_max."""
    overrun = len(row.completion_ids) - (spec.max_tokens - spec.cache_tokens)
    return -min(max(overrun / spec.cache_tokens, 0.0), 1.0)


REWARDS: dict[str, RewardColumn] = {"task": task, "soft_overlong": soft_overlong}


def reward_columns(rows: Sequence[Row], spec: AlgorithmSpec) -> Tensor:
    """`rewards_BF` in float64: one column per entry of `spec.rewards`; a row with any NaN stays unscorable."""
    columns = [REWARDS[name] for name in spec.rewards]
    return torch.tensor([[column(row, spec) for column in columns] for row in rows], dtype=torch.float64).reshape(
        len(rows), len(columns)
    )
