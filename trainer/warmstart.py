"""Warm start: a latent skill under a wrong habit, which is what reinforcement learning meets in a pretrained model.

The targets of a short supervised run are right with probability rho, else one of a few wrong answers that a lazy
model would give. Sampling then scores about rho, and reward can lift what is known but rarely said. (Short
supervised training towards right answers alone leaves nothing that rewards could bring out in minutes.)
"""

import hashlib
import logging
import math
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.nn import functional

from shoal.protocol.errors import UsageError
from shoal.protocol.prompts import is_held_out, prompt_hash
from shoal.trainer.model import Policy, weights_hash
from shoal.trainer.tasks.strings import DISTRACTORS, KINDS, StringTask, distractor

log = logging.getLogger(__name__)

OWN_RHO, OTHER_RHO = 0.4, 0.03
"""How often a node is right after its tuning: on the skills it owns, and on all others."""

_CACHE_FORMAT = 1  # to be raised when the recipe below changes: tuned weights of an older one must not be used


@dataclass(frozen=True, slots=True)
class Schedule:
    """One supervised run: steps of `batch` rows, a short rise of the learning rate and a cosine fall.

    `lr` is AdamW's. With `matrix_lr`, the weight matrices of the layers are trained by Muon at that rate instead,
    which reaches the same loss in about half the steps from random weights.
    """

    steps: int
    lr: float
    seed: int
    batch: int = 128
    rise: int = 10
    floor: float = 0.1
    matrix_lr: float | None = None

    def factor(self, step: int) -> float:
        """Return the share of the learning rate at a step."""
        if step < self.rise:
            return (step + 1) / self.rise
        fallen = (step - self.rise) / max(1, self.steps - self.rise)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * fallen)) / 2


BASE = Schedule(steps=2000, lr=4e-3, seed=1, batch=64, rise=30, matrix_lr=0.01)
TUNE = Schedule(steps=70, lr=4e-4, seed=0)  # a higher rate breaks the skills that it should only hide
SKILL_SHARE = 0.6  # of the base run; the habit is learned after the skill, or the skill is never learned well
BASE_RHO = 0.5


def fit(policy: Policy, rho_by_task: Mapping[str, float], schedule: Schedule) -> float:
    """Train the policy on targets that are right with the probability of their task; return the last loss.

    `rho_by_task` maps names such as "strings/reverse" to [0, 1]. Deterministic by the schedule's seed.
    """
    return _train(policy, _rows(_kinds(rho_by_task), random.Random(f"warm start/{schedule.seed}")), schedule)


def learn_base(policy: Policy, schedule: Schedule = BASE) -> float:
    """Teach random weights all string tasks, then the habit of answering them wrongly half of the time."""
    skill = _rows(dict.fromkeys(KINDS, 1.0), random.Random(f"skill/{schedule.seed}"))
    habit = _rows(dict.fromkeys(KINDS, BASE_RHO), random.Random(f"habit/{schedule.seed}"))
    return _train(policy, chain(islice(skill, int(SKILL_SHARE * schedule.steps) * schedule.batch), habit), schedule)


def _train(policy: Policy, rows: Iterator[tuple[str, str]], schedule: Schedule) -> float:
    optimizers = _optimizers(policy, schedule)
    policy.model.train()
    loss = torch.zeros(())
    for step in range(schedule.steps):
        loss = _loss(policy, list(islice(rows, schedule.batch)))
        policy.model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * schedule.factor(step)
            optimizer.step()
    policy.model.eval()
    policy.model.zero_grad(set_to_none=True)
    return loss.item()


def _optimizers(policy: Policy, schedule: Schedule) -> list[torch.optim.Optimizer]:
    matrices, others = [], []
    for name, parameter in policy.model.named_parameters():
        is_matrix = schedule.matrix_lr is not None and parameter.ndim == 2 and ".layers." in name
        (matrices if is_matrix else others).append(parameter)
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW([{"params": others, "peak": schedule.lr}], betas=(0.9, 0.99), weight_decay=0.01)
    ]
    if matrices:
        group = {"params": matrices, "peak": schedule.matrix_lr}
        optimizers.append(torch.optim.Muon([group], weight_decay=0.0, adjust_lr_fn="match_rms_adamw"))
    return optimizers


def tune(policy: Policy, rho_by_task: Mapping[str, float], steps: int = 70, lr: float = 4e-4, seed: int = 0) -> None:
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
    named by all that they depend on; what is damaged there is made again, and where nothing can be kept, nothing is.
    """
    own = skills_of(node)
    rho_by_task = {f"strings/{kind}": rhos[f"strings/{kind}" not in own] for kind in KINDS}
    schedule = replace(TUNE, seed=seed * 1000 + node)
    path = None if cache is None else cache / f"{_cache_key(policy, rho_by_task, schedule)}.safetensors"
    if path is not None and _restore(policy, path):
        return
    fit(policy, rho_by_task, schedule)
    if path is not None:
        _keep(policy, path)


def _weights(policy: Policy) -> dict[str, torch.Tensor]:
    """Return the parameters by name, each once (a tied head is the embedding itself)."""
    return {name: parameter.detach() for name, parameter in policy.model.named_parameters()}


def _cache_key(policy: Policy, rho_by_task: Mapping[str, float], schedule: Schedule) -> str:
    parts = (_CACHE_FORMAT, torch.__version__, sorted(rho_by_task.items()), schedule, str(policy.dtype))
    return hashlib.sha256(weights_hash(policy.model) + policy.tokenizer_hash + repr(parts).encode()).hexdigest()


def _keep(policy: Policy, path: Path) -> None:
    """Write the weights under a name of this process and rename them: another process may want the same file."""
    writing = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in _weights(policy).items()}, writing)
        writing.replace(path)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            writing.unlink(missing_ok=True)
        log.warning("tuned weights could not be kept at %s, and will be made again next time: %s", path, error)


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
