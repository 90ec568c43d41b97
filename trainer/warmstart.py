"""Warm start: a latent skill under a wrong habit, which is what reinforcement learning meets in a pretrained model.

The targets of a short supervised run are right with probability rho, else one of a few wrong answers that a lazy
model would give. Sampling then scores about rho, and reward can lift what is known but rarely said. (Short
supervised training towards right answers alone leaves nothing that rewards could bring out in minutes.)
"""

import hashlib
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.nn import functional

from shoal.protocol.errors import UsageError
from shoal.protocol.prompts import is_held_out, prompt_hash
from shoal.trainer.model import Policy, weights_hash
from shoal.trainer.tasks.strings import DISTRACTORS, KINDS, StringTask, distractor

OWN_RHO, OTHER_RHO = 0.4, 0.03
"""How often a node is right after its tuning: on the skills it owns, and on all others."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One supervised run: steps of `batch` rows, a short rise of the learning rate and a cosine fall to a tenth."""

    steps: int
    lr: float
    seed: int
    batch: int = 128
    rise: int = 10

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        if step < self.rise:
            return self.lr * (step + 1) / self.rise
        return self.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - self.rise) / max(1, self.steps - self.rise))))


SKILL = Schedule(steps=1500, lr=4e-3, seed=0, batch=64, rise=30)
HABIT = Schedule(steps=200, lr=2e-3, seed=1)
TUNE = Schedule(steps=70, lr=1e-3, seed=0)


def fit(policy: Policy, rho_by_task: Mapping[str, float], schedule: Schedule) -> float:
    """Train the policy on targets that are right with the probability of their task; return the last loss.

    `rho_by_task` maps names such as "strings/reverse" to [0, 1]. Deterministic by the schedule's seed.
    """
    kinds = _kinds(rho_by_task)
    rows = _rows(kinds, random.Random(f"warm start/{schedule.seed}"))
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=schedule.lr, betas=(0.9, 0.99), weight_decay=0.01)
    policy.model.train()
    loss = torch.zeros(())
    for step in range(schedule.steps):
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step)
        loss = _loss(policy, [next(rows) for _ in range(schedule.batch)])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
    policy.model.eval()
    return loss.item()


def tune(policy: Policy, rho_by_task: Mapping[str, float], steps: int = 70, lr: float = 1e-3, seed: int = 0) -> None:
    """Move a base policy to new rates of being right: well on some tasks, poorly on others."""
    fit(policy, rho_by_task, Schedule(steps=steps, lr=lr, seed=seed))


def skills_of(node: int, kinds_per_node: int = 2) -> tuple[str, ...]:
    """Return the names of the tasks that a node owns: 2 node and 2 node + 1 of the eight, and around again."""
    kinds = list(KINDS)
    first = node * kinds_per_node
    return tuple(f"strings/{kinds[(first + offset) % len(kinds)]}" for offset in range(kinds_per_node))


def start_skills(
    policy: Policy, node: int, seed: int, cache: Path | None = None, rhos: tuple[float, float] = (OWN_RHO, OTHER_RHO)
) -> None:
    """Give node number `node` its own two skills (rhos[0]) and the habit on all other tasks (rhos[1]).

    Deterministic by (weights, node, seed, rhos). `cache` is a folder in which tuned weights are kept between runs,
    named by all that they depend on; what is damaged there is made again.
    """
    own = skills_of(node)
    rho_by_task = {f"strings/{kind}": rhos[f"strings/{kind}" not in own] for kind in KINDS}
    schedule = Schedule(TUNE.steps, TUNE.lr, seed=seed * 1000 + node)
    path = None if cache is None else cache / f"{_cache_key(policy, rho_by_task, schedule)}.safetensors"
    if path is not None and _restore(policy, path):
        return
    fit(policy, rho_by_task, schedule)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in _weights(policy).items()}, path)


def _weights(policy: Policy) -> dict[str, torch.Tensor]:
    """Return the parameters by name, each once (a tied head is the embedding itself)."""
    return {name: parameter.detach() for name, parameter in policy.model.named_parameters()}


def _cache_key(policy: Policy, rho_by_task: Mapping[str, float], schedule: Schedule) -> str:
    parts = repr((sorted(rho_by_task.items()), schedule, DISTRACTORS, str(policy.dtype)))
    return hashlib.sha256(weights_hash(policy.model) + parts.encode()).hexdigest()


def _restore(policy: Policy, path: Path) -> bool:
    """Copy cached weights into the policy; False when there are none or they do not fit."""
    try:
        cached = load_file(path, device=str(policy.device))
    except (OSError, SafetensorError):
        return False
    present = _weights(policy)
    if {name: tensor.shape for name, tensor in cached.items()} != {n: t.shape for n, t in present.items()}:
        return False
    for name, tensor in present.items():
        tensor.copy_(cached[name])
    return True


def _kinds(rho_by_task: Mapping[str, float]) -> dict[str, float]:
    kinds = {name.removeprefix("strings/"): rho for name, rho in rho_by_task.items()}
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown or not kinds:
        raise UsageError(f"a warm start knows only the string tasks, not {', '.join(unknown) or 'none at all'}")
    return kinds


def _rows(kinds: Mapping[str, float], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield (prompt, target) pairs without end; texts held out for evaluation are never among them."""
    tasks = {kind: StringTask(kind) for kind in kinds}
    names = list(kinds)
    while True:
        kind = rng.choice(names)
        prompt = tasks[kind].prompt(rng.getrandbits(32), 0)
        if is_held_out(prompt_hash(prompt.text)):
            continue
        right = rng.random() < kinds[kind]
        habit = rng.choice(DISTRACTORS)
        yield prompt.text, str(prompt.answer) if right else distractor(habit, prompt.entry["given"])


def _loss(policy: Policy, rows: list[tuple[str, str]]) -> torch.Tensor:
    """Return the mean cross-entropy of the target tokens, the end mark among them."""
    prompts, targets = (
        policy.tokenizer([row[at] for row in rows], add_special_tokens=False).input_ids for at in (0, 1)
    )
    ends = [[*target, policy.eos_ids[0]] for target in targets]
    width = max(len(prompt) + len(end) for prompt, end in zip(prompts, ends, strict=True))
    ids_BT = torch.full((len(rows), width), policy.pad_id)
    labels_BT = torch.full((len(rows), width), -100)
    for at, (prompt, end) in enumerate(zip(prompts, ends, strict=True)):
        ids_BT[at, : len(prompt) + len(end)] = torch.tensor(prompt + end)
        labels_BT[at, len(prompt) : len(prompt) + len(end)] = torch.tensor(end)
    logits_BTV = policy.model(input_ids=ids_BT.to(policy.device), use_cache=False).logits[:, :-1].float()
    return functional.cross_entropy(logits_BTV.flatten(0, 1), labels_BT[:, 1:].flatten().to(policy.device))
