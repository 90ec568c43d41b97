"""The figures that are kept of a cell, from hand-made records."""

from typing import Any

import pytest

from shoal.node.redteam.measure import LEAST_ROWS, RATE_ROUNDS, fates, figures_of
from shoal.node.report.runlog import RunLog


def senders(round_: int, own: dict[str, list[int]], rows: list[list[Any]], node: int = 0) -> dict[str, Any]:
    return {"event": "senders", "arm": "swarm", "node": node, "round": round_, "own": own, "rows": rows}


def test_a_rewarded_row_is_rare_where_the_receiver_rarely_passes() -> None:
    row = ["honest", "t", True, "accept", 2, 2.0]
    refused = ["honest", "t", True, "reject text/control", 1, 0.0]
    wrong = ["honest", "t", False, "accept", 3, 3.0]
    events = [
        senders(0, {"t": [0, LEAST_ROWS - 1]}, [row]),  # too few own rows to tell
        senders(1, {"t": [0, 1]}, [row, refused, wrong]),  # 0 of 16: rare
        senders(2, {"t": [16, 16]}, [row]),  # 16 of 32: not rare
        senders(0, {"u": [0, 100]}, [row], node=1),  # another node, which samples another task
    ]
    assert fates(events) == [
        ["honest", False, False, "accept", 3, 3.0],
        ["honest", True, False, "accept", 6, 6.0],
        ["honest", True, True, "accept", 2, 2.0],
        ["honest", True, True, "reject text/control", 1, 0.0],
    ]


def test_a_pass_rate_is_of_the_last_rounds_only() -> None:
    row = ["honest", "t", True, "accept", 1, 1.0]
    events = [senders(0, {"t": [100, 100]}, [row])]
    events += [senders(at, {"t": [0, 16]}, [row]) for at in range(1, RATE_ROUNDS + 1)]
    # 100 of 100, of 116, … 244 as long as round 0 counts (each above a tenth), then 0 of 160
    assert fates(events) == [
        ["honest", True, False, "accept", RATE_ROUNDS, float(RATE_ROUNDS)],
        ["honest", True, True, "accept", 1, 1.0],
    ]


def step(node: int, round_: int, tokens: int) -> dict[str, Any]:
    return {"event": "step", "arm": "swarm", "node": node, "round": round_, "tokens": tokens, "verdicts": {"accept": 1}}


@pytest.fixture
def log() -> RunLog:
    nodes = [{"node": 0, "attacker": None}, {"node": 1, "attacker": None}, {"node": 2, "attacker": "text"}]
    mixing = {"local": 1, "external": 1, "tasks_per_node": None, "group_size": 4}
    run = {"event": "run", "arms": ["swarm"], "nodes": nodes, "config": {"mixing": mixing}}
    shown = [
        {"event": "attack", "arm": "swarm", "node": node, "round": at, "attack": "text", "shown": share, "items": 8}
        for node, at, share in ((0, 0, 0.0), (1, 0, 0.125), (0, 9, 0.5), (1, 10, 1.0), (0, 10, 0.25))
    ]
    evals = [
        {"event": "eval", "arm": "swarm", "node": 0, "round": at, "accuracy": accuracy, "items": 8}
        for at, accuracy in ((0, 0.25), (10, None), (10, 0.5))
    ]
    steps = [step(node, at, 8 * (at + 1)) for at in range(11) for node in (0, 1)] + [step(2, 10, 10**6)]
    timings = tuple(
        {"event": "timing", "arm": "swarm", "node": node, "round": at, "seconds": {"update": seconds}}
        for node, at, seconds in [*((0, at, at + 1.0) for at in range(20)), (2, 0, 1000.0)]
    )
    return RunLog(run, (*shown, *evals, *steps), timings, False)


def test_figures_are_pooled_over_honest_nodes(log: RunLog) -> None:
    figures = figures_of(log)
    assert figures["shown"] == {"text": [[0, 1, 16], [9, 4, 8], [10, 10, 16]]}
    assert figures["accuracy"] == {"0": [[0, 0.25, 8], [10, 0.5, 8]]}
    assert figures["verdicts"] == {"accept": 22}
    # rounds 9 and 10: 80 and 88 tokens in 2 prompts x 4 completions
    assert figures["length"] == 10.5


def test_percentiles_are_nearest_ranks_over_honest_passes(log: RunLog) -> None:
    assert figures_of(log)["timing"] == {"update": {"seconds": 210.0, "p50": 10.0, "p95": 19.0, "passes": 20}}
