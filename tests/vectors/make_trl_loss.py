"""Golden numbers of TRL's own loss on fixed batches: `.venv-trl/bin/python tests/vectors/make_trl_loss.py`.

Writes trl_loss.json beside this file. It needs `make trl-env` and the shipped default model, nothing of Shoal: what the
test compares with is TRL's code alone. Old log-probs are those of the policy moved by a fixed pattern, so that ratios
lie on both sides of the clip; the reference is the shipped weights, and the policy is those weights disturbed.
"""

import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset

HERE = Path(__file__).parent
MODEL = HERE.parent.parent / "trainer" / "default_model"
PROMPTS = [[20, 7, 33, 4], [9, 40, 12, 5, 61, 30]]
COMPLETIONS = [
    [[8, 19, 22, 1], [50, 3, 3, 17, 28, 1], [44, 2]],
    [[6, 6, 10, 31, 1], [13], [27, 55, 38, 21, 14, 9, 1]],
]
REWARDS = [[1.0, 0.0, 0.25], [0.1, 0.9, 0.4]]
DISTURBANCE, MOVE = 0.02, 0.6
SHOWN = ("model.embed_tokens.weight", "model.layers.1.self_attn.v_proj.weight", "model.norm.weight")
EPSILON_LOW, EPSILON_HIGH = 0.2, 0.28

CASES: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo"},
    "grpo_kl": {"loss_type": "grpo", "beta": 0.3},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "dr_grpo_kl": {"loss_type": "dr_grpo", "scale_rewards": "none", "beta": 0.3},
    "dapo": {"loss_type": "dapo"},
    "dapo_kl": {"loss_type": "dapo", "beta": 0.3},
    "bnpo": {"loss_type": "bnpo"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "two_sided": {"loss_type": "dapo", "delta": 1.5},
    "entropy": {"loss_type": "dapo", "entropy_coef": 0.05},
}


@torch.no_grad()
def disturb(model: Any) -> None:
    """Move every weight by a fixed pattern; the test does the same."""
    for number, p in enumerate(model.parameters()):
        p.add_(DISTURBANCE * torch.sin(torch.arange(p.numel()) + number).reshape(p.shape))


def moved(row: int, place: int) -> float:
    """How far the old log-prob of a token lies from the present one."""
    return MOVE * math.sin(1.7 * place + row)


def padded(lists: list[list[int]], left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask, padded with 0 on one side."""
    width = max(map(len, lists))
    fill = [[0] * (width - len(ids)) for ids in lists]
    ids = [gap + ids if left else ids + gap for ids, gap in zip(lists, fill, strict=True)]
    mask = [[0] * len(gap) + [1] * (width - len(gap)) for gap in fill]
    return torch.tensor(ids), torch.tensor(mask if left else [row[::-1] for row in mask])


def advantages(scale: bool) -> list[float]:
    """TRL's formula (`_generate_and_score_completions`): Bessel's deviation of the group, and 1e-4."""
    found: list[float] = []
    for rewards in torch.tensor(REWARDS):
        centred = rewards - rewards.mean()
        found += (centred / (rewards.std() + 1e-4) if scale else centred).tolist()
    return found


def trainer_of(case: dict[str, Any], folder: str) -> Any:
    """A GRPOTrainer with the settings of one case, on the disturbed model."""
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    rows = sum(map(len, COMPLETIONS))
    config = trl.GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=rows,
        num_generations=len(COMPLETIONS[0]),
        max_completion_length=8,
        gradient_accumulation_steps=1,
        gradient_checkpointing=False,
        epsilon=EPSILON_LOW,
        epsilon_high=EPSILON_HIGH,
        use_bias_correction_kl=False,  # on by default there; ours is the KL of arXiv 2402.03300 as it stands
        report_to="none",
        **{"beta": 0.0} | case,
    )
    trainer = trl.GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["a", "b"]}),
        processing_class=transformers.AutoTokenizer.from_pretrained(MODEL),
    )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def golden(case: dict[str, Any], folder: str) -> dict[str, Any]:
    """Loss, gradient norm and some gradients of one case, and the old log-probs that it was given."""
    trainer = trainer_of(case, folder)
    model = trainer.model.train()
    prompt_ids, prompt_mask = padded(
        [ids for ids, group in zip(PROMPTS, COMPLETIONS, strict=True) for _ in group], True
    )
    completion_ids, completion_mask = padded([ids for group in COMPLETIONS for ids in group], False)
    ids, mask = torch.cat([prompt_ids, completion_ids], 1), torch.cat([prompt_mask, completion_mask], 1)
    width = completion_ids.shape[1]
    with torch.no_grad():
        reference = trainer._get_per_token_logps_and_entropies(model, ids, mask, width)[0]
        disturb(model)
        present = trainer._get_per_token_logps_and_entropies(model, ids, mask, width)[0]
    moves = torch.tensor([[moved(row, place) for place in range(width)] for row in range(len(ids))])
    old = present + moves
    inputs = {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "advantages": torch.tensor(advantages(case.get("scale_rewards") != "none")),
        "old_per_token_logps": old,
        "ref_per_token_logps": reference,
        "num_items_in_batch": completion_mask.sum(),
    }
    loss = trainer._compute_loss(model, inputs)
    loss.backward()
    norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters()))
    gradients = {name: p.grad for name, p in model.named_parameters() if name in SHOWN}
    ratio = (present - old).exp()
    outside = ((ratio < 1 - EPSILON_LOW) | (ratio > 1 + EPSILON_HIGH)) & completion_mask.bool()
    return {
        "settings": case,
        "loss": loss.item(),
        "gradient_norm": norm,
        "gradient_norms": {name: grad.double().norm().item() for name, grad in gradients.items()},
        "gradients": {name: grad.flatten()[:: max(1, grad.numel() // 16)].tolist() for name, grad in gradients.items()},
        "tokens_outside_clip": int(outside.sum()),
        "old_logps": [row[:length].tolist() for row, length in zip(old, completion_mask.sum(1).tolist(), strict=True)],
    }


def main() -> int:
    """Write the vectors."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        cases = {name: golden(case, folder) for name, case in CASES.items()}
    vectors = {
        "made_by": f"trl {trl.__version__}, transformers {transformers.__version__}, torch {torch.__version__}",
        "prompts": PROMPTS,
        "completions": COMPLETIONS,
        "rewards": REWARDS,
        "disturbance": DISTURBANCE,
        "epsilon": [EPSILON_LOW, EPSILON_HIGH],
        "max_tokens": 8,
        "cases": cases,
    }
    (HERE / "trl_loss.json").write_text(json.dumps(vectors, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
