"""bfloat16: float32 weights are cast once a step, and what is summed over many numbers stays in float32."""

from statistics import fmean
from typing import Any

import pytest
import torch
from tiny_policy import gradients, random_rows, tiny_policy
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.trainer import logprobs
from shoal.trainer.algorithm import OptimizerSpec, recipe
from shoal.trainer.step import Trainer

SPEC = recipe("grpo", minibatches=1)
SEEDS = range(6)  # one alone says little: what rounding does to a gradient differs sixfold from one model to the next


class Casts(TorchDispatchMode):
    """Counts how often each tensor in `watched` (by its place in memory) is cast to bfloat16."""

    def __init__(self, watched: list[torch.Tensor]) -> None:
        super().__init__()
        self.counts = {tensor.data_ptr(): 0 for tensor in watched}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default and (kwargs or {}).get("dtype") is torch.bfloat16:
            place = args[0].data_ptr()
            if place in self.counts:
                self.counts[place] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_projections_are_cast_once_however_many_micro_batches(checkpointing: bool) -> None:
    policy = tiny_policy(dtype=torch.float32)
    spec = OptimizerSpec(dtype="bfloat16", micro_tokens=1, checkpointing=checkpointing)
    trainer = Trainer(policy, SPEC, spec)
    projections = [p for name, p in policy.model.named_parameters() if "_proj" in name]
    with Casts(projections) as casts:
        trainer.update(random_rows(groups=4))
    assert list(casts.counts.values()) == [1] * 14


def gradient(seed: int, settings: dict[str, Any], share_prompts: bool = True) -> torch.Tensor:
    """All numbers of the first step's gradient; without `share_prompts` it comes through the library's forward."""
    trainer = Trainer(tiny_policy(seed, dtype=torch.float32), SPEC, OptimizerSpec(grad_clip=1e9, **settings))
    trainer.share_prompts = share_prompts
    steps = gradients(trainer)
    trainer.update(random_rows(groups=4, seed=seed))
    return torch.cat([part.flatten() for part in steps[0].values()])


def mean_loss(gradients_of_seeds: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    return fmean(float((a - b).norm() / b.norm()) for a, b in zip(gradients_of_seeds, exact, strict=True))


@pytest.mark.parametrize("settings", [{"micro_tokens": 1}, {"checkpointing": True}, {"lora_rank": 2}])
@pytest.mark.parametrize("chunked", [False, True])
def test_gradients_lose_no_more_than_through_the_library(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], chunked: bool
) -> None:
    if "lora_rank" in settings:
        pytest.importorskip("peft", reason="the extra [lora] is not installed")
    half = {"dtype": "bfloat16", **settings}
    plain = {name: value for name, value in half.items() if name != "checkpointing"}
    exact = [gradient(seed, settings) for seed in SEEDS]
    usual = mean_loss([gradient(seed, plain, share_prompts=False) for seed in SEEDS], exact)
    if chunked:
        monkeypatch.setattr(logprobs, "KEPT_LOGITS", 0)
        monkeypatch.setattr(logprobs, "CHUNK_LOGITS", 1 << 8)
    ours = [gradient(seed, half) for seed in SEEDS]
    assert all(found.dtype == torch.float32 for found in ours)
    assert 0 < mean_loss(ours, exact) < 1.25 * usual
    assert usual < 0.1
