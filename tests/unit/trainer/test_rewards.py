"""Reward columns."""

import math

import pytest
import torch

from shoal.trainer.algorithm import recipe
from shoal.trainer.batch import Row
from shoal.trainer.rewards import REWARDS, reward_columns, soft_overlong

DAPO = recipe("dapo", max_tokens=20, overlong_cache=4)


def row(length: int, reward: float = 1.0) -> Row:
    return Row(uid=0, prompt_ids=[1], completion_ids=[2] * length, reward=reward)


@pytest.mark.parametrize(
    ("length", "penalty"), [(0, 0), (15, 0), (16, 0), (17, -0.25), (18, -0.5), (19, -0.75), (20, -1), (21, -1)]
)
def test_the_overlong_penalty_is_linear_over_the_cache(length: int, penalty: float) -> None:
    assert soft_overlong(row(length), DAPO) == penalty


def test_the_published_points() -> None:
    published = recipe("dapo", max_tokens=20480, overlong_cache=4096)
    assert [soft_overlong(row(n), published) for n in (16384, 18432, 20480)] == [0, -0.5, -1]


def test_the_cache_is_a_fifth_when_not_given() -> None:
    assert recipe("dapo", max_tokens=20480).cache_tokens == 4096
    assert recipe("dapo", max_tokens=3).cache_tokens == 1


def test_columns_stay_apart_and_unscorable_stays_unscorable() -> None:
    columns = reward_columns([row(18, 1.0), row(1, math.nan)], DAPO)
    assert columns[0].tolist() == [1.0, -0.5]
    assert columns.dtype == torch.float64
    assert math.isnan(columns.sum(1)[1])


def test_a_later_reward_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REWARDS, "short", lambda row, spec: float(len(row.completion_ids) < 3))
    spec = recipe("grpo", rewards=("task", "short"))
    assert reward_columns([row(2, 0.0), row(9, 1.0)], spec).tolist() == [[0.0, 1.0], [1.0, 0.0]]
