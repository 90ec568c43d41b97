"""Accuracy on held-out prompts: texts that no node ever draws and that are refused from peers."""

import logging
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch

from shoal.node.events import Event, number
from shoal.node.sets import reward_of
from shoal.protocol.errors import UsageError
from shoal.protocol.prompts import is_held_out, prompt_hash
from shoal.trainer.engine import Engine, Sampling
from shoal.trainer.tasks.base import Prompt
from shoal.trainer.tasks.registry import TaskRegistry
from shoal.trainer.verify import Grader

log = logging.getLogger(__name__)

HELD_OUT_SEED = 0  # any fixed number will do: which texts are held out depends on their hash alone
CANARY_SEED = 1  # another one, so that canary prompts are mostly others than those of evaluations from the start
SEARCHED = 64  # instances looked at for each held-out prompt wanted; one in eight is held out


def held_out_prompts(registry: TaskRegistry, count: int) -> list[Prompt]:
    """Return `count` held-out prompts, spread evenly over the tasks; where one has too few texts, others give more."""
    share, extra = divmod(count, len(registry.names))
    found = {
        task: _held_out_of(registry, task, share + (position < extra)) for position, task in enumerate(registry.names)
    }
    for task in registry.names:
        missing = count - sum(map(len, found.values()))
        if missing:
            found[task] = _held_out_of(registry, task, len(found[task]) + missing)
    if not any(found.values()):
        raise UsageError("the tasks have no held-out prompts (one text in eight is held out): give more data")
    total = sum(map(len, found.values()))
    if total < count:
        log.warning("only %d held-out prompts instead of %d: one text in eight is held out of the data", total, count)
    return [prompt for prompts in found.values() for prompt in prompts]


def canary_prompts(registry: TaskRegistry, count: int, evaluated: int = 0) -> list[Prompt]:
    """Return up to `count` held-out prompts by the tasks' weights, apart from the `evaluated` ones of evaluations."""
    apart = {prompt.text for prompt in held_out_prompts(registry, evaluated)} if evaluated else set[str]()
    total = sum(spec.weight for spec in registry.specs)
    shares = [-(-count * spec.weight // total) for spec in registry.specs]
    found = [
        _held_out_of(registry, spec.name, share, CANARY_SEED, apart)
        for spec, share in zip(registry.specs, shares, strict=True)
    ]
    turns = [prompt for turn in zip_longest(*found) for prompt in turn if prompt is not None]
    if len(turns) < count:
        log.warning("only %d canary prompts instead of %d: the tasks have no more held-out texts", len(turns), count)
    return turns[:count]


def _held_out_of(
    registry: TaskRegistry, task: str, count: int, seed: int = HELD_OUT_SEED, apart: Collection[str] = ()
) -> list[Prompt]:
    """Return the first `count` distinct held-out prompts of one task, without those whose texts stand in `apart`."""
    found: dict[str, Prompt] = {}
    for index in range(SEARCHED * count):
        if len(found) == count:
            break
        prompt = registry.prompt(task, seed, index)
        if is_held_out(prompt_hash(prompt.text)) and prompt.text not in apart:
            found.setdefault(prompt.text, prompt)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Answers:
    """One completion for each held-out prompt, with its reward (NaN: unscorable)."""

    prompts: Sequence[Prompt]
    texts: Sequence[str]
    rewards: Sequence[float]

    def share(self, shown: Callable[[str], bool]) -> float:
        """Return the share of completions for which `shown` is true, 0.0 of none."""
        return sum(map(shown, self.texts)) / max(1, len(self.texts))

    def among(self, triggered: Callable[[str], bool]) -> "Answers":
        """Return the answers to those prompts alone whose text fulfils `triggered`."""
        rows = zip(self.prompts, self.texts, self.rewards, strict=True)
        kept = [row for row in rows if triggered(row[0].text)]
        return Answers(*map(list, zip(*kept, strict=True))) if kept else Answers([], [], [])


def answer(engine: Engine, grader: Grader, prompts: Sequence[Prompt], sampling: Sampling, seed: int) -> Answers:
    """Sample one completion for each prompt and grade it; equal for equal weights and seed."""
    generator = torch.Generator().manual_seed(seed)
    groups = engine.sample([prompt.text for prompt in prompts], 1, sampling, generator)
    texts = [group[0].text for group in groups]
    scores = grader.grade(list(zip(prompts, texts, strict=True)))
    return Answers(prompts, texts, [reward_of(score) for score in scores])


def eval_event(round: int, answers: Answers) -> Event:
    """Return the record of one evaluation; what could not be scored counts neither as right nor as asked."""
    by_task: dict[str, list[float]] = {}
    for prompt, reward in zip(answers.prompts, answers.rewards, strict=True):
        if not math.isnan(reward):
            by_task.setdefault(prompt.task, []).append(reward)
    scored = [reward for rewards in by_task.values() for reward in rewards]
    return {
        "event": "eval",
        "round": round,
        "accuracy": number(math.fsum(scored) / len(scored)) if scored else None,
        "items": len(scored),
        "unscorable": len(answers.rewards) - len(scored),
        "by_task": {task: number(math.fsum(r) / len(r)) for task, r in by_task.items()},
    }
