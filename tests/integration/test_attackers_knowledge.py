"""What an attacker's node lets its attack know, and what becomes of the texts that it puts in place of sampled ones."""

from pathlib import Path

import pytest
from test_simulation import SMALL, run, with_

from shoal.defenses.attacks import ATTACKS, Knowledge
from shoal.node.publish import Publisher
from shoal.protocol.wire import FINISH_EOS, Rollout


def test_an_attack_reads_with_its_nodes_own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Knowledge] = []
    sealed: list[Rollout] = []
    seal = Publisher._rollout

    def watched(self: Publisher, *of: object) -> Rollout:
        rollout = seal(self, *of)
        if self.attack is not None:
            sealed.append(rollout)
        return rollout

    monkeypatch.setattr(ATTACKS["text"], "know", lambda _, knowledge: told.append(knowledge))
    monkeypatch.setattr(Publisher, "_rollout", watched)
    hostile = with_(SMALL, swarm={"nodes": 2, "attack": ("text:0.5",), "rounds": 2}, run={"arms": ("swarm",)})
    run(hostile, tmp_path)
    [knowledge] = told
    assert (knowledge.max_tokens, knowledge.rounds) == (12, 2)
    assert knowledge.tokens("zx none") == 4  # `none` is one token of the built-in model
    plain, planted = knowledge.reads("copy abc=", ["abc", "zx abc"], "abc")
    assert list(plain.vouched) == [True] * 3 + [False]
    assert list(planted.vouched) == [False] * 3 + [True] * 3 + [False]
    assert len(planted.surprise) == len(planted.tail) == 7
    assert min(planted.tail[:3]) < 1e-3 < min(plain.tail[:3])
    planted_rows = [
        finish
        for rollout in sealed
        for text, finish in zip(rollout.completions, rollout.finish, strict=True)
        if text.startswith("zx ")
    ]
    assert planted_rows
    assert set(planted_rows) == {FINISH_EOS}
