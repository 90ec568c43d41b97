"""Loading a policy: what it says when something is missing, its two hashes, and text to ids and back."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.trainer.model import DEFAULT_MODEL, Policy, load_policy, set_threads, weights_hash

TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}:{{ message['content'] }}>{% endfor %}"
    "{% if add_generation_prompt %}<a:{% endif %}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the default model to damage."""
    return Path(shutil.copytree(DEFAULT_MODEL, tmp_path / "model"))


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(DEFAULT_MODEL)


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_default_model_is_small_and_loads_with_the_library_alone() -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(DEFAULT_MODEL)
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEFAULT_MODEL)
    assert sum(parameter.numel() for parameter in model.parameters()) == 110_912
    assert (DEFAULT_MODEL / "model.safetensors").stat().st_size < 500_000
    assert len(tokenizer) == model.config.vocab_size == 64
    assert tokenizer.decode(tokenizer("reverse abc=").input_ids) == "reverse abc="


def test_a_policy_has_what_its_config_says(policy: Policy) -> None:
    assert (policy.eos_ids, policy.pad_id, policy.version, policy.has_template) == ((1,), 0, 0, False)
    assert (len(policy.lineage), len(policy.tokenizer_hash)) == (32, 32)
    assert policy.dtype == next(policy.model.parameters()).dtype == torch.float32
    assert next(load_policy(DEFAULT_MODEL, dtype="bfloat16").model.parameters()).dtype == torch.bfloat16


def test_prompts_and_completions_become_ids_and_text_again(policy: Policy) -> None:
    assert policy.decode(policy.encode_prompt("duplicate abc=")) == "duplicate abc="
    assert len(policy.encode_prompt("duplicate abc=")) == 6  # the task word is one token
    ids = policy.encode_completion("cba", finished=True)
    assert ids[-1] == 1
    assert ids[:-1] == policy.encode_completion("cba", finished=False)
    assert policy.decode(ids) == "cba"


@pytest.mark.parametrize("text", ["<eos>", "a<eos>b", "<pad><unk>", "none<eos>"])
def test_text_never_becomes_a_special_token(policy: Policy, text: str) -> None:
    for ids in (policy.encode_completion(text, finished=False), policy.encode_prompt(text)):
        assert not {0, 1, 2} & set(ids)
        assert policy.decode(ids) == text


def test_unknown_characters_are_one_unknown_token_each(policy: Policy) -> None:
    assert policy.encode_completion("aÄé", finished=False) == [*policy.encode_prompt("a"), 2, 2]


def test_a_chat_template_is_used_for_prompts_only(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", chat_template=TEMPLATE)
    policy = load_policy(folder)
    assert policy.has_template
    assert policy.decode(policy.encode_prompt("copy abc")) == "<user:copy abc><a:"
    assert policy.decode(policy.encode_completion("abc", finished=True)) == "abc"


def test_all_end_marks_of_the_configs_count_the_tokenizer_s_first(folder: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id=[5, 1])
    assert load_policy(folder).eos_ids == (1, 5)


def test_without_a_padding_token_the_end_mark_pads(folder: Path) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["pad_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert load_policy(folder).pad_id == 1


def test_lineage_names_the_base_and_not_how_it_is_stored(folder: Path, policy: Policy) -> None:
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    (folder / "model.safetensors").unlink()
    shards = {"model-00001-of-00002.safetensors": names[:7], "model-00002-of-00002.safetensors": names[7:]}
    for shard, held in shards.items():
        save_file({name: tensors[name] for name in reversed(held)}, folder / shard, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: shard for shard, held in shards.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    edit(folder / "config.json", transformers_version="9.9.9", use_cache=False)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(dict(sorted(config.items(), reverse=True)), indent=7))
    sharded = load_policy(folder)
    assert sharded.lineage == policy.lineage
    assert weights_hash(sharded.model) == weights_hash(policy.model)


def test_lineage_changes_with_weights_config_and_tokenizer(folder: Path, policy: Policy) -> None:
    seen = {policy.lineage}
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] += 1e-3
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    seen.add(load_policy(folder).lineage)
    edit(folder / "config.json", rms_norm_eps=1e-5)
    seen.add(load_policy(folder).lineage)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    swapped = load_policy(folder)
    seen.add(swapped.lineage)
    assert len(seen) == 4
    assert swapped.tokenizer_hash != policy.tokenizer_hash


def test_tuning_changes_the_weights_hash_and_not_the_lineage(policy: Policy) -> None:
    tuned = load_policy(DEFAULT_MODEL)
    with torch.no_grad():
        tuned.model.model.norm.weight[0] += 1e-3
    assert weights_hash(tuned.model) != weights_hash(policy.model)
    assert tuned.lineage == policy.lineage


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (("config.json",), "config.json"),
        (("model.safetensors",), "safetensors"),
        (("tokenizer.json", "tokenizer_config.json"), "tokenizer"),
    ],
)
def test_what_is_missing_is_named(folder: Path, lost: tuple[str, ...], said: str) -> None:
    for name in lost:
        (folder / name).unlink()
    with pytest.raises(EnvironmentFault, match=said) as caught:
        load_policy(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_directory_is_named_and_nothing_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="no model directory at"):
        load_policy(tmp_path / "absent")
    with pytest.raises(EnvironmentFault, match="no model directory at some/model"):
        load_policy("some/model")


def test_other_weight_formats_are_refused(folder: Path) -> None:
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(EnvironmentFault, match=r"no \.safetensors weights"):
        load_policy(folder)


@pytest.mark.parametrize("damage", [b"", b"\xff" * 40, b"\x02\0\0\0\0\0\0\0{}"])
def test_a_file_that_is_no_safetensors_is_named(folder: Path, damage: bytes) -> None:
    (folder / "model.safetensors").write_bytes(damage)
    with pytest.raises(EnvironmentFault, match=r"safetensors|lacks weights"):
        load_policy(folder)


def test_a_truncated_file_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(EnvironmentFault, match="ends early"):
        load_policy(folder)


def test_absent_weights_are_not_filled_with_random_numbers(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EnvironmentFault, match=r"lacks weights .*layers\.1\.mlp\.up_proj"):
        load_policy(folder)


def test_weights_of_another_size_are_refused(folder: Path) -> None:
    edit(folder / "config.json", intermediate_size=96)
    with pytest.raises(EnvironmentFault):
        load_policy(folder)


def test_a_damaged_config_and_a_damaged_tokenizer_are_named(folder: Path) -> None:
    good = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(good[:100])
    with pytest.raises(EnvironmentFault, match="tokenizer"):
        load_policy(folder)
    (folder / "tokenizer.json").write_text(good)
    (folder / "config.json").write_text("{")
    with pytest.raises(EnvironmentFault, match=r"config\.json"):
        load_policy(folder)


def test_the_code_of_a_model_directory_is_not_run(folder: Path, tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    (folder / "modeling_x.py").write_text(f"open({str(witness)!r}, 'w')\nclass X: pass\n")
    edit(
        folder / "config.json",
        model_type="x",
        auto_map={"AutoConfig": "modeling_x.X", "AutoModelForCausalLM": "modeling_x.X"},
    )
    with pytest.raises(EnvironmentFault):
        load_policy(folder)
    assert not witness.exists()


def test_a_model_without_an_end_mark_is_refused(folder: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        edit(folder / name, eos_token_id=None)
    edit(folder / "tokenizer_config.json", eos_token=None)
    with pytest.raises(EnvironmentFault, match="end-of-text"):
        load_policy(folder)


def test_wrong_dtypes_devices_and_threads_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="float32, bfloat16"):
        load_policy(DEFAULT_MODEL, dtype="int8")
    with pytest.raises(UsageError, match="device 'cuda:77'"):
        load_policy(DEFAULT_MODEL, device="cuda:77")
    with pytest.raises(UsageError, match="device 'toaster'"):
        load_policy(DEFAULT_MODEL, device="toaster")
    with pytest.raises(UsageError, match="threads"):
        set_threads(0)


def test_set_threads_bounds_the_library() -> None:
    before = torch.get_num_threads()
    set_threads(2)
    assert torch.get_num_threads() == 2
    set_threads(before)
