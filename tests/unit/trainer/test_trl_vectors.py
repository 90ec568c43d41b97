"""Our loss and gradients are TRL's on the same batch, wherever both define the same thing.

The numbers are those of TRL's own code (tests/vectors/make_trl_loss.py). The whole update is compared: rewards to
advantages, given old log-probs, the reference, the loss, the gradients before they are clipped. Where the definitions
part, nothing is compared:

- entropy bonus: TRL takes the mean over tokens for every loss type, we aggregate it as the policy term. They meet
  where that is a mean over tokens (case `entropy`), and only there;
- `bnpo`, `grpo` and `dr_grpo` under gradient accumulation: TRL averages means of micro-batches, we count rows and
  tokens over the whole step first, so that cutting it does not change it. They meet on one micro-batch, as here;
- groups of equal rewards: TRL leaves their tokens in every denominator, our recipe `dapo` drops them
  (`drop_uniform`); here no group is uniform;
- peers' rows (no standard deviation, positives only), row weights, damping, the importance weight: TRL has none;
- KL: TRL multiplies it by the ratio unless `use_bias_correction_kl` is switched off (as in the vectors); ours is the
  estimator of arXiv 2402.03300 as it stands;
- CISPO, SAPO, VESPO, LUSPO and TRL's other masks: we have none.
"""

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.trainer.algorithm import AlgorithmSpec, OptimizerSpec, recipe
from shoal.trainer.batch import Row
from shoal.trainer.model import DEFAULT_MODEL, Policy, load_policy
from shoal.trainer.step import Trainer

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "trl_loss.json").read_text(encoding="utf-8"))
KL = {"kl": "k3", "beta": 0.3}
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {}),
    "grpo_kl": ("grpo", KL),
    "dr_grpo": ("dr_grpo", {}),
    "dr_grpo_kl": ("dr_grpo", KL),
    "dapo": ("dapo", {}),
    "dapo_kl": ("dapo", KL),
    "bnpo": ("dapo", {}),
    "gspo": ("grpo", {"ratio": "sequence"}),
    "two_sided": ("dapo", {"dual_clip": 1.5}),
    "entropy": ("dapo", {"entropy": 0.05}),
}


def spec_of(case: str) -> AlgorithmSpec:
    """Our settings of a case: one optimizer step, the clip of the vectors, no bonus unless named."""
    name, changes = OURS[case]
    low, high = VECTORS["epsilon"]
    plain: dict[str, Any] = {
        "entropy": 0.0,
        "minibatches": 1,
        "rewards": ("task",),
        "max_tokens": VECTORS["max_tokens"],
    }
    return recipe(name, **(plain | {"clip_low": low, "clip_high": high} | changes))


def rows_of(old_logps: list[list[float]], version: int) -> list[Row]:
    """The rows of the vectors, with the old log-probs that TRL was given."""
    rows: list[Row] = []
    groups = zip(VECTORS["prompts"], VECTORS["completions"], VECTORS["rewards"], strict=True)
    for uid, (prompt, completions, rewards) in enumerate(groups):
        for ids, reward in zip(completions, rewards, strict=True):
            row = Row(uid=uid, prompt_ids=prompt, completion_ids=ids, reward=reward)
            row.old_logps, row.scored_version = torch.tensor(old_logps[len(rows)]), version
            rows.append(row)
    return rows


@pytest.fixture(scope="module")
def shipped() -> Policy:
    """The model of the vectors, read once."""
    return load_policy(DEFAULT_MODEL)


@torch.no_grad()
def disturb(policy: Policy) -> None:
    """Move every weight as the vectors' script does: the reference stays where it was."""
    for number, p in enumerate(policy.model.parameters()):
        p.add_(VECTORS["disturbance"] * torch.sin(torch.arange(p.numel()) + number).reshape(p.shape))


@pytest.mark.parametrize("case", sorted(OURS))
@pytest.mark.parametrize("micro_tokens", [2048, 16], ids=["whole", "cut"])
def test_loss_and_gradients_are_those_of_trl(case: str, micro_tokens: int, shipped: Policy) -> None:
    golden, policy = VECTORS["cases"][case], replace(shipped, model=copy.deepcopy(shipped.model))
    trainer = Trainer(policy, spec_of(case), OptimizerSpec(grad_clip=1e9, micro_tokens=micro_tokens))
    disturb(policy)
    found: dict[str, torch.Tensor] = {}

    def keep(*_: object) -> None:
        found.update({name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None})

    trainer.optimizer.register_step_pre_hook(keep)
    report = trainer.update(rows_of(golden["old_logps"], policy.version))
    assert report.steps == 1
    assert report.loss == pytest.approx(golden["loss"], abs=1e-5)
    assert report.grad_norm == pytest.approx(golden["gradient_norm"], rel=1e-5)
    norm = math.sqrt(sum(float(grad.double().square().sum()) for grad in found.values()))
    assert norm == pytest.approx(golden["gradient_norm"], rel=1e-5)
    for name, norm in golden["gradient_norms"].items():
        assert found[name].double().norm().item() == pytest.approx(norm, rel=1e-5)
        shown = found[name].flatten()[:: max(1, found[name].numel() // 16)].tolist()
        assert shown == pytest.approx(golden["gradients"][name], abs=1e-5 * norm)


def test_the_vectors_reach_both_sides_of_the_clip_and_differ_from_each_other() -> None:
    """Otherwise the comparison above would say little."""
    cases = VECTORS["cases"]
    assert set(cases) == set(OURS)
    assert all(case["tokens_outside_clip"] >= 5 for case in cases.values())
    norms = {round(case["gradient_norm"], 6) for name, case in cases.items() if name != "bnpo"}
    assert len(norms) == len(cases) - 1
