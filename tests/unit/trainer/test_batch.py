"""Rows from what an engine sampled and from what a peer wrote."""

import inspect
import math
from types import SimpleNamespace

import pytest
from tiny_policy import tiny_policy

from shoal.trainer.batch import Origin, foreign_rows, own_rows

ORIGIN = Origin(uid=4, source=b"k" * 32, operator="op", policy_version=9, age=1, lag=2, temperature=0.8)


def test_own_rows_keep_the_sampled_ids_and_log_probs() -> None:
    sampled = [
        SimpleNamespace(ids=[5, 1], logps=[-0.5, -0.1], text="c"),
        SimpleNamespace(ids=[6], logps=[-1.0], text="d"),
    ]
    rows = own_rows([2, 3], sampled, [1.0, math.nan], Origin(uid=3))
    assert [row.completion_ids for row in rows] == [[5, 1], [6]]
    assert [row.behaviour_logps for row in rows] == [[-0.5, -0.1], [-1.0]]
    assert [row.prompt_ids for row in rows] == [[2, 3], [2, 3]]
    assert all(row.own and row.uid == 3 for row in rows)
    assert math.isnan(rows[1].reward)


def test_foreign_rows_are_encoded_here_with_the_end_put_back() -> None:
    rows = foreign_rows(tiny_policy(), "ab", [("ba", True), ("b", False)], [1.0, 0.0], ORIGIN)
    assert [row.completion_ids for row in rows] == [[4, 3, 1], [4]]
    assert rows[0].prompt_ids == [2, 3, 4]
    first = rows[0]
    assert (first.own, first.operator, first.policy_version, first.age, first.lag) == (False, "op", 9, 1, 2)
    assert first.temperature == 0.8


def test_no_token_id_or_log_prob_of_a_sender_can_enter_a_row() -> None:
    assert set(inspect.signature(foreign_rows).parameters) == {"policy", "prompt", "completions", "rewards", "origin"}
    assert foreign_rows(tiny_policy(), "ab", [("ba", True)], [1.0], ORIGIN)[0].behaviour_logps is None


def test_a_reward_for_each_completion_or_none_at_all() -> None:
    with pytest.raises(ValueError, match="zip"):
        foreign_rows(tiny_policy(), "ab", [("ba", True)], [1.0, 0.0], ORIGIN)
