"""Which counters say that a defence turned something away: one answer for a pass, a report and a node's status."""

import pytest

from shoal.node.events import split_counts
from shoal.node.report.figures import is_refusal


@pytest.mark.parametrize(
    "name",
    [
        "header/stale",
        "likelihood/unlikely_window",
        "likelihood/unlikely_token_row",
        "reputation/set_aside",
        "judge/lowered_row",
    ],
)
def test_what_turns_peers_away_is_a_refusal(name: str) -> None:
    assert is_refusal(name)
    assert split_counts({name: 3})["verdicts"] == {name: 3}


@pytest.mark.parametrize(
    "name",
    [
        "likelihood/no_null",
        "invariants/long_weighed",
        "quota/shared_account",
        "duplicates/evicted_text",
        "phrases/flagged",
        "header/stale_pooled",
        "canary/run",
        "judge/asked",
        "screen/accepted",
        "publish/announced",
    ],
)
def test_what_refuses_nothing_is_none(name: str) -> None:
    assert not is_refusal(name)
    assert name not in split_counts({name: 3})["verdicts"]
