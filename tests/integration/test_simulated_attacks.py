"""Each attack inside a real swarm: honest nodes finish every round, and the layer that should stop it counts it."""

from pathlib import Path

import pytest
from test_simulation import SMALL, run, steps, total, with_

from shoal.defenses.attacks import ATTACKS, Attack

HONEST = (0, 1, 2)
REFUSED_BY = {
    "replay": "header/seen",
    "flood": "quota/rollouts_per_key",
    "malformed": "header/",
    "bad-signature": "header/bad_signature",
    "prompt-picking": "provenance/other_prompt",
    "non-canonical": "schema/not_canonical",
    "length-lies": "schema/truncated",
    "bombs": "schema/expanded_too_large",
    "pickle": "schema/not_zstd",
    "not-finite": "schema/not_finite",
    "ids-differ": "text/ids_differ_from_text",
    "forged-tests": "schema/schema",
    "malleable": "header/bad_signature",
    "weak-keys": "admission/",
    "cross-swarm": "header/wrong_swarm",
    "equivocation": "reputation/equivocated",
    "clock-skew": "header/ahead",
    "false-version": "header/version_fell",
    "false-accusation": "header/bad_signature",
}
"""The verdict that must appear in this short run; attacks without one need longer evidence or a later layer."""


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_honest_nodes_outlive_the_attack_and_count_it(name: str, tmp_path: Path) -> None:
    hostile = with_(
        SMALL,
        swarm={"nodes": 4, "attack": (f"{name}:0.25",), "rounds": 4},
        mixing={"shared_prompts": 2},
        run={"arms": ("swarm",), "checkpoint_every": 4},
    )
    events = run(hostile, tmp_path)
    honest = [event for event in steps(events) if event["node"] in HONEST]
    assert len(honest) == 12, "an honest node missed a round"
    assert events[-1]["complete"]
    plants = ATTACKS[name].shown is not Attack.shown
    assert {event["attack"] for event in events if event["event"] == "attack"} == ({name} if plants else set())
    verdicts = total(honest, "verdicts")
    assert verdicts["accept"] > 0, "honest peers' rollouts still come through"
    expected = REFUSED_BY.get(name)
    if expected:
        assert any(reason.startswith(expected) for reason in verdicts), f"{expected} is not among {dict(verdicts)}"


def test_a_flood_gets_no_more_than_one_operators_share(tmp_path: Path) -> None:
    hostile = with_(
        SMALL,
        swarm={"nodes": 4, "attack": ("flood:0.25",), "rounds": 6},
        run={"arms": ("swarm",), "checkpoint_every": 6},
    )
    events = run(hostile, tmp_path)
    key = next(node["key"] for node in events[0]["nodes"] if node["attacker"])
    sources = [event["source"] for event in events if event["event"] == "sample" and event["source"] != "own"]
    assert sources, "nothing of peers was used: the test shows nothing"
    assert sources.count(key) <= len(sources) / 2


def test_forged_rewards_are_recomputed(tmp_path: Path) -> None:
    hostile = with_(SMALL, swarm={"attack": ("forged-reward:0.3",), "rounds": 4}, run={"arms": ("swarm",)})
    counts = total(steps(run(hostile, tmp_path)), "counts")
    assert counts["verifier/claim_differs"] > 0
