"""Trying a model by hand: its accuracy on held-out prompts, a few samples, and which tasks there are."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from shoal.defenses.text import safe
from shoal.node.heldout import Answers, answer, held_out_prompts
from shoal.node.report.intervals import Interval, wilson
from shoal.protocol.errors import UsageError
from shoal.trainer.engine import Sampling, make_engine
from shoal.trainer.model import Policy, load_policy, model_folder
from shoal.trainer.tasks.registry import TASK_SETS, TaskRegistry, TaskSpec, known_tasks
from shoal.trainer.verify import Grader

SHOWN_CHARS = 2000


@dataclass(frozen=True, slots=True)
class NamedModel:
    """`default` or the directory of a model; without `template`, prompts are read as they are."""

    name: str
    template: bool = True

    def load(self) -> Policy:
        """Return the policy."""
        return load_policy(model_folder(self.name), template=self.template)


def evaluate_model(model: NamedModel, specs: Sequence[TaskSpec], measure: tuple[int, float], *, as_json: bool) -> None:
    """Print the accuracy of a model by task; `measure` is (held-out prompts, temperature)."""
    items, temperature = measure
    if items < 1:
        raise UsageError(f"--items {items}: must be at least 1")
    with Grader(TaskRegistry(specs)) as grader:
        policy = model.load()
        longest = max(grader.registry.task(name).max_tokens for name in grader.registry.names)
        sampling = Sampling(temperature=temperature, max_tokens=longest)
        prompts = held_out_prompts(grader.registry, items)
        rows = accuracies(answer(make_engine(policy), grader, prompts, sampling, seed=0))
    if as_json:
        Console(soft_wrap=True).print_json(json.dumps({name: _plain(interval) for name, interval in rows.items()}))
        return
    table = Table(
        "task", "items", "accuracy", "95 % interval", title=safe(f"{model.name}, temperature {temperature:g}")
    )
    for name, interval in rows.items():
        if interval is None:
            table.add_row(name, "0", "unscorable", "")
        else:
            bounds = f"{interval.low:.3f} to {interval.high:.3f}"
            table.add_row(name, str(interval.items), f"{interval.mean:.3f}", bounds)
    Console().print(table)


def accuracies(answers: Answers) -> dict[str, Interval | None]:
    """Return the accuracy of each task and of all together ("all"); None where nothing could be scored."""
    rewards: dict[str, list[float]] = {}
    for prompt, reward in zip(answers.prompts, answers.rewards, strict=True):
        for name in (prompt.task, "all"):
            rewards.setdefault(name, [])
            if not math.isnan(reward):
                rewards[name].append(reward)
    rewards["all"] = rewards.pop("all")
    return {name: wilson(math.fsum(values), len(values)) if values else None for name, values in rewards.items()}


def _plain(interval: Interval | None) -> dict[str, float] | None:
    if interval is None:
        return None
    return {"accuracy": interval.mean, "low": interval.low, "high": interval.high, "items": interval.items}


def sample_model(model: NamedModel, prompt: str, draws: tuple[int, int], limits: tuple[float, int]) -> None:
    """Print completions of a prompt; `draws` is (count, seed), `limits` is (temperature, longest in tokens)."""
    (count, seed), (temperature, longest) = draws, limits
    if count < 1:
        raise UsageError(f"--count {count}: must be at least 1")
    if not 0 <= seed < 2**63:
        raise UsageError(f"--seed {seed}: must lie between 0 and 2^63 - 1")
    if not prompt:
        raise UsageError("the prompt is empty: give some text")
    engine = make_engine(model.load())
    sampling = Sampling(temperature=temperature, max_tokens=longest)
    [group] = engine.sample([prompt], count, sampling, torch.Generator().manual_seed(seed))
    table = Table("completion", "tokens", "mean log-prob", "finished")
    for completion in group:
        mean = math.fsum(completion.logps) / max(1, len(completion.logps))
        finished = "yes" if completion.finished else "cut"
        table.add_row(safe(completion.text, SHOWN_CHARS), str(len(completion.ids)), f"{mean:.2f}", finished)
    Console().print(table)


def list_tasks(*, as_json: bool) -> None:
    """Print all task names and named sets."""
    sets = {name: [spec.name for spec in specs] for name, specs in TASK_SETS.items()}
    console = Console(soft_wrap=True)
    if as_json:
        console.print_json(json.dumps({"sets": sets, "tasks": known_tasks()}))
        return
    for name, members in sets.items():
        console.print(f"set {name}: {', '.join(members)}", highlight=False)
    for name in known_tasks():
        console.print(name, highlight=False)
    console.print("jsonl/NAME (a data set of your own: give its path with --task-config)", highlight=False)
