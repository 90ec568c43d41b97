"""What became of peers' rows, by sender: counted from what screen and regrader said."""

import math
from types import SimpleNamespace as Thing
from typing import Any

from shoal.defenses.attacks.lab import Laboratory
from shoal.defenses.verdict import ACCEPTED, Action, Verdict, reject
from shoal.node.redteam.tally import Tally
from shoal.node.sets import PeerCompletion
from shoal.protocol.columns import pack_floats
from shoal.protocol.wire import encode_rollout

EVIL = b"e" * 32


def peer(*rows: tuple[int, float, float]) -> Any:
    return Thing(completions=tuple(PeerCompletion(row, "x", True, reward, weight) for row, reward, weight in rows))


def screened(task: str, claims: list[float], *verdicts: Verdict) -> Any:
    return Thing(prompt=Thing(task=task), rollout=Thing(rewards=pack_floats(claims)), verdicts=verdicts)


def test_rows_are_counted_by_sender_reward_and_fate() -> None:
    tally = Tally(frozenset({EVIL}))
    doubt = Verdict(Action.WEIGH, "likelihood", "surprising", 0.25)
    distrusted = Verdict(Action.WEIGH, "reputation", "suspect", 0.0)
    held = Verdict(Action.QUARANTINE, "phrases", "lift", 0.0)
    verdicts = (
        ACCEPTED,
        ACCEPTED,
        doubt,
        held,
        reject("text", "control"),
        reject("duplicates", "copy"),
        ACCEPTED,
        distrusted,
    )
    claims = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    kept = peer((0, 1.0, 1.0), (1, 0.0, 1.0), (2, 1.0, 0.25), (6, math.nan, 1.0), (7, 1.0, 0.0))
    tally.fetched(Thing(key=b"h" * 32), b"", screened("t", claims, *verdicts), kept)
    tally.fetched(Thing(key=EVIL), b"", screened("t", [1.0], ACCEPTED), peer((0, 0.5, 0.5)))
    assert tally.take(3, [])["rows"] == [
        ["attacker", "t", True, "weigh reputation/operator", 1, 0.5],
        ["honest", "t", False, "accept", 1, 1.0],
        ["honest", "t", False, "reject duplicates/copy", 1, 0.0],
        ["honest", "t", False, "reject verifier/unscorable", 1, 0.0],
        ["honest", "t", True, "accept", 1, 1.0],
        ["honest", "t", True, "quarantine phrases/lift", 1, 0.0],  # phrases judge rewarded rows alone
        ["honest", "t", True, "quarantine reputation/suspect", 1, 0.0],  # kept with no weight: it trains nothing
        ["honest", "t", True, "reject text/control", 1, 0.0],  # never graded: an honest sender's claim is the truth
        ["honest", "t", True, "weigh likelihood/surprising", 1, 0.25],
    ]
    assert tally.take(4, [])["rows"] == [], "it begins anew"


def test_a_rollout_refused_whole_counts_each_of_its_rows() -> None:
    laboratory, tally = Laboratory(), Tally(frozenset())
    rollout = laboratory.rollout(["a", "b", "c"], rewards=pack_floats([1.0, 0.0, 1.0]))
    tally.fetched(Thing(key=b"h" * 32), encode_rollout(rollout), reject("duplicates", "copies"), None)
    tally.fetched(Thing(key=b"h" * 32), b"no rollout", reject("schema", "not_canonical"), None)
    assert tally.take(0, [])["rows"] == [
        ["honest", "", False, "reject schema/not_canonical", 1, 0.0],
        ["honest", "lab/name", False, "reject duplicates/copies", 1, 0.0],
        ["honest", "lab/name", True, "reject duplicates/copies", 2, 0.0],
    ]


def test_own_rewarded_and_graded_rows_are_noted_by_task() -> None:
    own = [
        Thing(prompt=Thing(task="b"), rewards=(1.0, 0.0, math.nan)),
        Thing(prompt=Thing(task="a"), rewards=(0.0, 0.0)),
        Thing(prompt=Thing(task="b"), rewards=(0.5, 0.0)),
    ]
    assert Tally(frozenset()).take(7, own) == {  # type: ignore[arg-type]
        "event": "senders",
        "round": 7,
        "own": {"a": [0, 2], "b": [2, 4]},
        "rows": [],
    }
