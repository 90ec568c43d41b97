"""Adapters: what they add is in the plain model after each update, and the base never moves."""

import copy
from typing import Any

import pytest
import torch
from tiny_policy import gradients, random_rows, same, tiny_policy, weights

from shoal.protocol.errors import UsageError
from shoal.trainer.algorithm import OptimizerSpec, recipe
from shoal.trainer.engine import Sampling, make_engine
from shoal.trainer.export import export_hf
from shoal.trainer.model import DEFAULT_MODEL, load_policy
from shoal.trainer.step import Trainer

pytest.importorskip("peft", reason="the extra [lora] is not installed")

RANK = OptimizerSpec(lr=0.02, lora_rank=2)


def as_lists(model: Any) -> dict[str, Any]:
    return {name: tensor.tolist() for name, tensor in model.state_dict().items()}


def product(left: list[list[float]], right: list[list[float]]) -> list[list[float]]:
    columns = list(zip(*right, strict=True))
    return [[sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in left]


def test_merged_weights_are_base_plus_scaled_product() -> None:
    policy = tiny_policy()
    before = copy.deepcopy(as_lists(policy.model))
    spec = OptimizerSpec(lr=0.02, lora_rank=2, lora_alpha=3.0, lora_targets=("q_proj", "down_proj"))
    trainer = Trainer(policy, optimizer=spec)
    for seed in range(3):
        trainer.update(random_rows(seed=seed))
    adapters, after = trainer.state_dict()[0], as_lists(policy.model)
    moved = 0
    for name, value in before.items():
        if not name.endswith(("q_proj.weight", "down_proj.weight")):
            assert after[name] == value, name
            continue
        stem = "model." + name.removesuffix(".weight")
        added = product(
            adapters[f"{stem}.lora_B.default.weight"].tolist(), adapters[f"{stem}.lora_A.default.weight"].tolist()
        )
        for row, base_row, added_row in zip(after[name], value, added, strict=True):
            assert row == pytest.approx([b + 1.5 * d for b, d in zip(base_row, added_row, strict=True)], abs=1e-12)
        moved += after[name] != value
    assert moved == 4


def test_gradients_of_the_adapters_follow_from_those_of_the_weights() -> None:
    """dB = s dW A^T and dA = s B^T dW, with dW of a full trainer at the merged weights."""
    policy = tiny_policy()
    spec = recipe("grpo", minibatches=1)
    trainer = Trainer(policy, spec, OptimizerSpec(lr=0.02, grad_clip=1e9, lora_rank=2, lora_alpha=4.0))
    trainer.update(random_rows(seed=1))
    start = {name: p.detach().clone() for name, p in trainer.parameters.items()}
    plain = copy.copy(policy)
    plain.model = copy.deepcopy(policy.model).requires_grad_(True)
    full = Trainer(plain, spec, OptimizerSpec(grad_clip=1e9))
    low, whole = gradients(trainer), gradients(full)
    trainer.update(random_rows(seed=2))
    full.update(random_rows(seed=2))
    names = [name for name in whole[0] if name.endswith("_proj.weight")]
    assert len(names) == 14
    for name in names:
        stem = name.removesuffix(".weight")
        a, b = start[f"{stem}.lora_A.default.weight"], start[f"{stem}.lora_B.default.weight"]
        assert torch.allclose(low[0][f"{stem}.lora_B.default.weight"], 2.0 * whole[0][name] @ a.T, atol=1e-10)
        assert torch.allclose(low[0][f"{stem}.lora_A.default.weight"], 2.0 * b.T @ whole[0][name], atol=1e-10)


def test_a_checkpoint_holds_adapters_alone_and_resumes_bit_for_bit() -> None:
    straight = Trainer(tiny_policy(dtype=torch.float32), optimizer=RANK)
    straight.update(random_rows(seed=0))
    tensors, plain = straight.state_dict()
    assert all("lora_" in name for name in tensors)
    resumed = Trainer(tiny_policy(dtype=torch.float32), optimizer=RANK)
    resumed.load(tensors, plain)
    assert same(weights(straight.policy), weights(resumed.policy))
    reports = [trainer.update(random_rows(seed=1)) for trainer in (straight, resumed)]
    assert reports[0] == reports[1]
    assert same(weights(straight.policy), weights(resumed.policy))


def test_adapters_of_other_base_weights_are_refused() -> None:
    tensors, plain = Trainer(tiny_policy(seed=1), optimizer=RANK).state_dict()
    with pytest.raises(UsageError, match="adapters belong to weights"):
        Trainer(tiny_policy(seed=2), optimizer=RANK).load(tensors, plain)
    whole = Trainer(tiny_policy(seed=1)).state_dict()
    with pytest.raises(UsageError, match="adapters belong to weights"):
        Trainer(tiny_policy(seed=1), optimizer=RANK).load(*whole)


def test_the_start_is_the_same_whatever_was_drawn_before() -> None:
    starts = []
    for draws in (1, 5):
        policy = tiny_policy()
        torch.rand(draws)
        state = torch.get_rng_state()
        starts.append(Trainer(policy, optimizer=RANK).state_dict()[0])
        assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(starts[0][name], starts[1][name]) for name in starts[0])


def test_the_kl_is_to_the_base_and_no_reference_is_saved() -> None:
    trainer = Trainer(tiny_policy(), recipe("grpo", kl="k3", beta=0.1, minibatches=1), RANK)
    first, second = trainer.update(random_rows()), trainer.update(random_rows())
    assert first.kl == pytest.approx(0.0, abs=1e-12)
    assert second.kl is not None
    assert second.kl > 1e-6
    assert not any(name.startswith("reference.") for name in trainer.state_dict()[0])


def test_checkpointing_changes_nothing() -> None:
    policies = [tiny_policy(), tiny_policy()]
    for policy, checkpointing in zip(policies, (False, True), strict=True):
        Trainer(policy, optimizer=OptimizerSpec(lora_rank=2, checkpointing=checkpointing)).update(random_rows())
    assert same(weights(policies[0]), weights(policies[1]))


def test_the_policy_can_still_be_trained_whole() -> None:
    policy = tiny_policy()
    Trainer(policy, optimizer=RANK)
    assert all(p.requires_grad for p in policy.model.parameters())


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings")
@pytest.mark.parametrize(("target", "said"), [("lm_head", "an embedding or the output"), ("nowhere", "no adapters")])
def test_targets_that_cannot_be(target: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Trainer(tiny_policy(), optimizer=OptimizerSpec(lora_rank=2, lora_targets=(target,)))


def test_an_export_is_a_plain_model_with_the_merged_weights(tmp_path: Any) -> None:
    policy = load_policy(DEFAULT_MODEL)
    engine = make_engine(policy)
    trainer = Trainer(policy, optimizer=OptimizerSpec(lr=0.05, lora_rank=4))
    trainer.update(random_rows(groups=2, size=4))
    engine.refresh()
    exported = load_policy(export_hf(policy, tmp_path / "out"))
    assert same(weights(policy), weights(exported))
    assert not same(weights(policy), weights(load_policy(DEFAULT_MODEL)))
    sampling = Sampling(max_tokens=4)
    drawn = [
        maker.sample(["reverse abc="], 4, sampling, torch.Generator().manual_seed(0))[0]
        for maker in (engine, make_engine(exported))
    ]
    assert [c.ids for c in drawn[0]] == [c.ids for c in drawn[1]]
