"""Export: the library loads the directory alone, and it appears whole or not at all."""

import resource
from pathlib import Path

import pytest
import torch
import transformers
from engine_models import LAYOUTS, policy_of, random_model

from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.trainer.export import export_hf
from shoal.trainer.model import DEFAULT_MODEL, load_policy, weights_hash


def test_the_library_loads_what_was_exported(tmp_path: Path) -> None:
    policy = load_policy(DEFAULT_MODEL)
    with torch.no_grad():
        policy.model.model.norm.weight.add_(0.25)
    folder = export_hf(policy, tmp_path / "new" / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("rotate abc=", return_tensors="pt").input_ids
    assert ids[0].tolist() == policy.encode_prompt("rotate abc=")
    assert torch.equal(model(ids).logits, policy.model(ids).logits)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["model"]
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1


@pytest.mark.parametrize("layout", ["llama_grouped_tied", "qwen3"])
def test_an_export_loads_as_a_policy_with_the_same_weights(tmp_path: Path, layout: str) -> None:
    policy = policy_of(random_model(LAYOUTS[layout](), torch.bfloat16))
    back = load_policy(export_hf(policy, tmp_path / "model"), dtype="bfloat16")
    assert weights_hash(back.model) == weights_hash(policy.model)
    assert back.eos_ids == policy.eos_ids


def test_tuning_leaves_the_lineage_and_the_export_carries_it_on(tmp_path: Path) -> None:
    policy = load_policy(DEFAULT_MODEL)
    with torch.no_grad():
        policy.model.model.norm.weight.add_(0.25)
    folder = export_hf(policy, tmp_path / "model")
    back = load_policy(folder)
    assert (back.lineage, back.tokenizer_hash) == (policy.lineage, policy.tokenizer_hash)
    (folder / "shoal.json").unlink()
    assert load_policy(folder).lineage != policy.lineage
    (folder / "shoal.json").write_text('{"lineage": "7"}')
    with pytest.raises(EnvironmentFault, match="names no lineage"):
        load_policy(folder)


def test_the_default_model_exports_to_its_own_lineage(tmp_path: Path) -> None:
    policy = load_policy(DEFAULT_MODEL)
    back = load_policy(export_hf(policy, tmp_path / "model"))
    assert (back.lineage, back.tokenizer_hash) == (policy.lineage, policy.tokenizer_hash)


def test_an_existing_folder_is_replaced_only_on_request_and_only_when_it_is_a_model(tmp_path: Path) -> None:
    policy = load_policy(DEFAULT_MODEL)
    target = export_hf(policy, tmp_path / "model")
    (target / "stale.txt").write_text("old")
    with pytest.raises(UsageError, match="exists already"):
        export_hf(policy, target)
    assert (target / "stale.txt").exists()
    export_hf(policy, target, replace=True)
    assert not (target / "stale.txt").exists()
    photos = tmp_path / "photos"
    photos.mkdir()
    with pytest.raises(UsageError, match="exists already"):
        export_hf(policy, photos, replace=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "photos"]


def test_a_full_disk_leaves_nothing_and_keeps_the_old_export(tmp_path: Path) -> None:
    policy = load_policy(DEFAULT_MODEL)
    target = export_hf(policy, tmp_path / "model")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(EnvironmentFault, match="could not be written"):
            export_hf(policy, target, replace=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert weights_hash(load_policy(target).model) == weights_hash(policy.model)


def test_a_folder_that_cannot_be_made_is_an_environment_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="could not be written"):
        export_hf(load_policy(DEFAULT_MODEL), tmp_path / "file" / "model")
