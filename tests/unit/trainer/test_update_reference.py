"""An update against plain loops over float64 numbers: the model, the loss and, by differences, the gradient.

Nothing of torch takes part in the reference: a Llama is written out from its formulas, one row and one token at a time.
"""

import math
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from tiny_policy import gradients, tiny_policy

from shoal.trainer.algorithm import OptimizerSpec, recipe
from shoal.trainer.batch import Row
from shoal.trainer.step import Trainer

Array = np.ndarray
SIZES = {"vocab_size": 11, "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4}
SIZES |= {"intermediate_size": 12, "num_hidden_layers": 2}
HEADS, SIZE, EPS, THETA = 2, 4, 1e-6, 10_000.0


def normed(x: Array, weight: Array) -> Array:
    return weight * x / math.sqrt(float(np.mean(x * x)) + EPS)


def turned(x: Array, place: int) -> Array:
    """Pairs (i, i + D/2) of one head turned by place * theta^(-2i/D)."""
    out = np.empty(SIZE)
    for i in range(SIZE // 2):
        angle = place * THETA ** (-2 * i / SIZE)
        a, b = x[i], x[i + SIZE // 2]
        out[i] = a * math.cos(angle) - b * math.sin(angle)
        out[i + SIZE // 2] = b * math.cos(angle) + a * math.sin(angle)
    return out


def distributions(weights: dict[str, Array], ids: list[int], temperature: float) -> list[Array]:
    """The distribution of what follows each token of a sequence."""
    streams = [weights["model.embed_tokens.weight"][token].copy() for token in ids]
    for layer in range(SIZES["num_hidden_layers"]):
        w = {name.split(f"layers.{layer}.")[1]: value for name, value in weights.items() if f"layers.{layer}." in name}
        inputs = [normed(x, w["input_layernorm.weight"]) for x in streams]
        queries = [(w["self_attn.q_proj.weight"] @ x).reshape(HEADS, SIZE) for x in inputs]
        keys = [turned(w["self_attn.k_proj.weight"] @ x, at) for at, x in enumerate(inputs)]
        values = [w["self_attn.v_proj.weight"] @ x for x in inputs]
        for at, x in enumerate(streams):
            heads = []
            for head in range(HEADS):
                query = turned(queries[at][head], at)
                scores = [math.exp(float(query @ keys[seen]) / math.sqrt(SIZE)) for seen in range(at + 1)]
                heads.append(sum(s * values[seen] for seen, s in enumerate(scores)) / sum(scores))
            x = x + w["self_attn.o_proj.weight"] @ np.concatenate(heads)
            y = normed(x, w["post_attention_layernorm.weight"])
            gate = w["mlp.gate_proj.weight"] @ y
            inner = gate / (1 + np.exp(-gate)) * (w["mlp.up_proj.weight"] @ y)
            streams[at] = x + w["mlp.down_proj.weight"] @ inner
    found = []
    for x in streams:
        logits = weights["model.embed_tokens.weight"] @ normed(x, weights["model.norm.weight"]) / temperature
        found.append(np.exp(logits) / np.exp(logits).sum())
    return found


def objective(weights: dict[str, Array], rows: list[Row], olds: list[list[float]], name: str) -> float:
    """The loss of GRPO (mean over each completion, group std, entropy .01) or DAPO (mean over all tokens)."""
    total, tokens = 0.0, sum(len(row.completion_ids) for row in rows)
    for row, old in zip(rows, olds, strict=True):
        group = [other.reward for other in rows if other.uid == row.uid]
        mean = sum(group) / len(group)
        std = math.sqrt(sum((reward - mean) ** 2 for reward in group) / (len(group) - 1))
        advantage = (row.reward - mean) / (std + 1e-4)
        table = distributions(weights, row.prompt_ids + row.completion_ids, row.temperature)[len(row.prompt_ids) - 1 :]
        share = 1 / tokens if name == "dapo" else 1 / (len(rows) * len(row.completion_ids))
        for token, old_logp, p in zip(row.completion_ids, old, table, strict=False):
            ratio = p[token] / math.exp(old_logp)
            gate = -min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage) * row.weight
            entropy = -float((p * np.log(p)).sum())
            total += share * (gate - (0.0 if name == "dapo" else 0.01) * entropy)
    return total


def some_rows() -> list[Row]:
    """Three groups of three; lengths, temperatures and weights differ."""
    random = Random(4)
    rows = []
    for uid in range(3):
        prompt = [random.randrange(11) for _ in range(1 + 2 * uid)]
        for reward in (1.0, 0.0, 0.5):
            completion = [random.randrange(11) for _ in range(random.randint(1, 5))]
            weight, temperature = random.choice((0.5, 1.0)), random.choice((0.75, 1.0, 1.25))
            rows.append(Row(uid, list(prompt), completion, reward, weight=weight, temperature=temperature))
    return rows


def shifted(weights: dict[str, Array], direction: dict[str, Array], by: float) -> dict[str, Array]:
    return {name: value + by * direction.get(name, 0.0) for name, value in weights.items()}


@pytest.mark.parametrize("name", ["grpo", "dapo"])
@pytest.mark.parametrize("settings", [{}, {"micro_tokens": 8}, {"checkpointing": True}])
def test_loss_and_gradient_in_float32_equal_plain_loops(name: str, settings: dict[str, Any]) -> None:
    policy, rows = tiny_policy(dtype=torch.float32, **SIZES), some_rows()
    weights = {key: p.detach().double().numpy().copy() for key, p in policy.model.named_parameters()}
    random = Random(1)
    olds = []
    for row in rows:  # ratios on both sides of the clip, and none near its corners, where there is no derivative
        p = distributions(weights, row.prompt_ids + row.completion_ids, row.temperature)[len(row.prompt_ids) - 1 :]
        gaps = [random.choice((-0.5, -0.1, 0.1, 0.5)) for _ in row.completion_ids]
        old = [
            math.log(p[at][token]) - gap for at, (token, gap) in enumerate(zip(row.completion_ids, gaps, strict=True))
        ]
        olds.append(old)
        row.old_logps, row.scored_version = torch.tensor(old), 0
    spec = recipe(name, rewards=("task",), minibatches=1, max_tokens=30)
    trainer = Trainer(policy, spec, OptimizerSpec(grad_clip=1e9, **settings))
    taken = gradients(trainer)
    report = trainer.update(rows)
    assert report.loss == pytest.approx(objective(weights, rows, olds, name), abs=1e-5)
    assert 0.1 < report.clip_fraction < 0.9
    draw, step = np.random.default_rng(0), 1e-5
    for key, gradient in taken[0].items():
        for _ in range(2):  # the derivative along random directions of each tensor
            direction = draw.standard_normal(weights[key].shape)
            direction /= np.linalg.norm(direction)
            sides = [objective(shifted(weights, {key: direction}, by), rows, olds, name) for by in (step, -step)]
            expected = (sides[0] - sides[1]) / (2 * step)
            assert float((gradient.double().numpy() * direction).sum()) == pytest.approx(expected, abs=1e-5), key
