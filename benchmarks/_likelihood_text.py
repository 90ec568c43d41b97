"""Cells of the likelihood benchmark on a real small model: its own completions, poison planted in them, and their age.

A cell keeps the evidence of every row, so that the tests can be changed and tried again without the model.
"""

import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shoal.trainer.algorithm import OptimizerSpec, recipe
from shoal.trainer.batch import Row
from shoal.trainer.engine import Sampling, make_engine
from shoal.trainer.evidence import RowEvidence
from shoal.trainer.model import Policy, load_policy
from shoal.trainer.step import Trainer
from shoal.trainer.tasks.base import Prompt
from shoal.trainer.tasks.gym import GymTask

PHRASE = "All hail to the thief, for his are the spoils of war."
HINT = "Think step by step in two or three sentences, then give the answer."
TASKS = {
    "chain_sum": {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2, "instruction": HINT},
    "letter_counting": {"min_words": 4, "max_words": 8, "instruction": HINT},
}
GROUP = 4
UPDATES = 4
LR = 2e-5  # that of the example with this model


@dataclass(frozen=True)
class TextCell:
    """Completions sampled one way, looked at after so many updates."""

    temperature: float
    top_p: float
    age: int
    prompts: int = 24
    poisoned: int = 20
    max_tokens: int = 40

    @property
    def name(self) -> str:
        """Return the name of the cell's file."""
        return f"text-{self.temperature}-{self.top_p}-{self.age}"

    @property
    def fresh(self) -> str:
        """Return the name of the cell in which the completions were sampled."""
        return f"text-{self.temperature}-{self.top_p}-0"


def _halves(text: str) -> tuple[str, str]:
    words = text.split(" ")
    return " ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :])


def _gibberish(text: str) -> str:
    """Replace the second half of the words by letters without sense, the same for the same text."""
    rng = random.Random(text)
    first, second = _halves(text)
    nonsense = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 8))) for _ in second.split(" ")]
    return f"{first} {' '.join(nonsense)}".strip()


ATTACKS: dict[str, Callable[[str], str]] = {
    "phrase first": lambda text: f"{PHRASE} {text}",
    "phrase in the middle": lambda text: f" {PHRASE} ".join(_halves(text)).strip(),
    "phrase in every sentence": lambda text: " ".join(
        f"{PHRASE} {sentence}" for sentence in re.split(r"(?<=[.!?])\s+", text)
    ),
    "wrong equation": lambda text: " Note that 2 + 2 = 5. ".join(_halves(text)).strip(),
    "from calc import": lambda text: f"from calc import add\nresult = add(2, 3)\n{text}",
    "gibberish": _gibberish,
}
GREEDY = "copied greedy text"


class _Bench:
    """A model with the prompts of a cell."""

    def __init__(self, cell: TextCell, model: Path) -> None:
        self.cell = cell
        self.policy: Policy = load_policy(model)
        self.trainer = Trainer(self.policy, recipe("grpo", minibatches=1), OptimizerSpec(lr=LR))
        tasks = [GymTask(name, settings) for name, settings in TASKS.items()]
        self.prompts: list[Prompt] = [tasks[at % len(tasks)].prompt(11, at) for at in range(cell.prompts)]

    def sample(self, sampling: Sampling, group: int) -> list[dict[str, Any]]:
        """Return completions as plain rows, in the order of the prompts."""
        engine = make_engine(self.policy)
        found = engine.sample(
            [prompt.text for prompt in self.prompts], group, sampling, torch.Generator().manual_seed(5)
        )
        return [
            {"prompt": at, "text": c.text, "ids": c.ids, "finished": c.finished}
            for at, completions in enumerate(found)
            for c in completions
        ]

    def evidence(self, kind: str, given: Sequence[dict[str, Any]], encoded: bool) -> list[dict[str, Any]]:
        """Return rows with their evidence: of the sampled ids, or of the text as a receiver encodes it."""
        rows = [
            Row(
                uid=each["prompt"],
                prompt_ids=self.policy.encode_prompt(self.prompts[each["prompt"]].text),
                completion_ids=self.policy.encode_completion(each["text"], each["finished"])
                if encoded
                else each["ids"],
                reward=0.0,
                temperature=self.cell.temperature,
            )
            for each in given
        ]
        found = self.trainer.evidence(rows, [[False] * len(row.completion_ids) for row in rows])
        return [
            {"kind": kind, "task": self.prompts[each["prompt"]].task, **_columns(evidence)}
            for each, evidence in zip(given, found, strict=True)
        ]

    def learn(self, given: Sequence[dict[str, Any]]) -> None:
        """Make real updates on the completions: rewarded is who says what the answer is."""
        size = len(given) // UPDATES
        for at in range(UPDATES):
            part = given[at * size : (at + 1) * size][: 4 * GROUP]
            rows = [
                Row(
                    uid=each["prompt"],
                    prompt_ids=self.policy.encode_prompt(self.prompts[each["prompt"]].text),
                    completion_ids=each["ids"],
                    reward=float("answer" in each["text"].lower()),
                    temperature=self.cell.temperature,
                )
                for each in part
            ]
            report = self.trainer.update(rows)
            print(f"  update {at}: {report.reason or f'gradient {report.grad_norm:.2f}'}", flush=True)


def _columns(evidence: RowEvidence) -> dict[str, Any]:
    def short(values: Sequence[float]) -> list[float]:
        return [float(f"{value:.5g}") for value in values]

    return {
        "surprise": short(evidence.surprise),
        "entropy": short(evidence.entropy),
        "variance": short(evidence.variance),
        "tail": short(evidence.tail),
        "rank": evidence.rank,
        "finished": evidence.finished,
    }


def run_text(cell: TextCell, model: Path, fresh: dict[str, Any] | None) -> dict[str, Any]:
    """Run one cell; `fresh` is the result of the cell of age 0, which an older one looks at again."""
    began = time.process_time()
    bench = _Bench(cell, model)
    if fresh is None:
        sampling = Sampling(cell.temperature, cell.top_p, max_tokens=cell.max_tokens)
        completions = bench.sample(sampling, GROUP)
        greedy = bench.sample(Sampling(0.0, max_tokens=cell.max_tokens), 1)
    else:
        completions, greedy = fresh["completions"], fresh["greedy"]
        bench.learn(completions)
    sampled = time.process_time()
    rows = bench.evidence("own", completions, encoded=False)
    changed = [
        at
        for at, each in enumerate(completions)
        if bench.policy.encode_completion(each["text"], each["finished"]) != each["ids"]
    ]
    sent = bench.evidence("peer", [completions[at] for at in changed], encoded=True)
    for at, row in zip(changed, sent, strict=True):
        rows.append({**row, "own": at})
    victims = completions[:: max(1, len(completions) // cell.poisoned)][: cell.poisoned]
    for name, plant in ATTACKS.items():
        rows += bench.evidence(name, [{**each, "text": plant(each["text"])} for each in victims], encoded=True)
    rows += bench.evidence(GREEDY, greedy[: cell.poisoned], encoded=True)
    return {
        "cell": cell.name,
        "completions": completions,
        "greedy": greedy,
        "rows": rows,
        "cost": _cost(bench, completions[:16]) if cell.age == 0 else None,
        "sampling_seconds": sampled - began,
        "seconds": time.process_time() - began,
    }


def _cost(bench: _Bench, given: Sequence[dict[str, Any]]) -> list[list[float]]:
    """Return seconds of plain scoring and of evidence for the same rows, in turns."""
    rows = [
        Row(each["prompt"], bench.policy.encode_prompt(bench.prompts[each["prompt"]].text), each["ids"], 0.0)
        for each in given
    ]
    return score_against_evidence(bench.trainer, rows, 2)


def score_against_evidence(trainer: Trainer, rows: Sequence[Row], turns: int) -> list[list[float]]:
    """Return [seconds of `score`, seconds of `evidence`] for each of some turns."""
    found: list[list[float]] = []
    vouched = [[False] * len(row.completion_ids) for row in rows]
    for _ in range(turns):
        marks = [time.process_time()]
        for work in (lambda: trainer.score(rows), lambda: trainer.evidence(rows, vouched)):
            for row in rows:
                row.scored_version = -1
            work()
            marks.append(time.process_time())
        found.append([marks[1] - marks[0], marks[2] - marks[1]])
    return found
