"""Exporting from a home on which no node runs: the newest checkpoint's weights, adapters merged."""

from pathlib import Path

import pytest

from shoal.node.commands.offline import export_newest
from shoal.node.home import Home
from shoal.trainer.algorithm import OptimizerSpec
from shoal.trainer.batch import Row
from shoal.trainer.checkpoint import save
from shoal.trainer.model import DEFAULT_MODEL, load_policy, weights_hash
from shoal.trainer.step import Trainer


@pytest.mark.parametrize("rank", [None, 4])
def test_the_exported_model_is_the_trained_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int | None
) -> None:
    home, policy = Home.make(tmp_path / "home"), load_policy(DEFAULT_MODEL)
    untrained = weights_hash(policy.model)
    if rank is not None:
        monkeypatch.setenv("SHOAL_LEARNING_LORA_RANK", str(rank))
    trainer = Trainer(policy, optimizer=OptimizerSpec(lr=0.01, lora_rank=rank))
    prompt = policy.encode_prompt("copy ab=")
    texts = ["ab", "ba", "abb", "b"]
    assert trainer.update([Row(0, prompt, policy.encode_completion(t, True), float(t == "ab")) for t in texts]).signal
    tensors, plain = trainer.state_dict()
    save(home.checkpoints, 1, tensors, {"trainer": plain})
    exported = load_policy(export_newest(home, tmp_path / "model"))
    assert weights_hash(exported.model) == weights_hash(policy.model) != untrained
    assert exported.lineage == policy.lineage
