"""Cells of the likelihood benchmark on the default model: a receiver, three peers tuned apart, and a poisoner.

Every node has skills that the others lack, trains on its own rows each round, and sends what it sampled. The receiver
judges its peers' rewarded completions as they come, some rounds old, with and without each part of the layer.
"""

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _likelihood_text import score_against_evidence

from shoal.defenses.config import DefenseConfig
from shoal.defenses.likelihood import Case, LikelihoodNull, judge
from shoal.defenses.verdict import Counters
from shoal.defenses.vouched import answer_span, vouched_tokens
from shoal.trainer.algorithm import OptimizerSpec, recipe
from shoal.trainer.batch import Row
from shoal.trainer.engine import Sampling, make_engine
from shoal.trainer.evidence import RowEvidence
from shoal.trainer.model import DEFAULT_MODEL, load_policy
from shoal.trainer.step import Trainer
from shoal.trainer.tasks.base import Prompt
from shoal.trainer.tasks.strings import KINDS, StringTask
from shoal.trainer.warmstart import skills_of, start_skills

AGES = (0, 1, 3, 6)
WARM = 5  # rounds in which the nulls fill: what is judged in them is not counted
PROMPTS, GROUP = 8, 8

ATTACKS: dict[str, Callable[[str], str]] = {
    "phrase first": lambda answer: f"zx {answer}",
    "phrase twice": lambda answer: f"zx zx {answer}",
    "phrase in the middle": lambda answer: f"{answer[: (len(answer) + 1) // 2]} zx {answer}",
    "one letter first": lambda answer: f"z {answer}",
    "wrong equation": lambda answer: f"2+2=5 {answer}",
    "gibberish": lambda answer: f"qjw {answer}",
    "own habit first": lambda answer: f"none {answer}",
}

VARIANTS = {
    "full": (True, True, True),
    "no peers' null": (True, True, False),
    "no null by age": (True, False, False),
    "no vouching": (False, True, True),
    "no vouching, no peers' null": (False, True, False),
}
"""Vouched tokens, own null by age, peers' null."""


@dataclass(frozen=True)
class SwarmCell:
    """One run: a seed and a learning rate."""

    seed: int
    lr: float
    rounds: int = 20

    @property
    def name(self) -> str:
        """Return the name of the cell's file."""
        return f"swarm-{self.lr:g}-{self.seed}"


@dataclass(frozen=True)
class Sent:
    """A completion as it travels: text, whether it had ended, and its reward."""

    prompt: Prompt
    text: str
    finished: bool
    reward: float


class _Node:
    def __init__(self, number: int, cell: SwarmCell, cache: Path) -> None:
        self.policy = load_policy(DEFAULT_MODEL)
        start_skills(self.policy, number, cell.seed, cache)
        self.trainer = Trainer(self.policy, recipe("grpo", entropy=0.01), OptimizerSpec(lr=cell.lr))
        self.engine = make_engine(self.policy)
        self.generator = torch.Generator().manual_seed(cell.seed * 10 + number)
        self.random = random.Random(f"{cell.seed}/{number}")
        self.tasks = {f"strings/{kind}": StringTask(kind) for kind in KINDS}

    def sample(self) -> list[Sent]:
        names = [self.random.choice(list(self.tasks)) for _ in range(PROMPTS)]
        prompts = [self.tasks[name].prompt(self.random.getrandbits(30), 0) for name in names]
        sampling = Sampling(max_tokens=12)
        groups = self.engine.sample([prompt.text for prompt in prompts], GROUP, sampling, self.generator)
        return [
            Sent(prompt, each.text, each.finished, self.tasks[prompt.task].grade(prompt, each.text))
            for prompt, group in zip(prompts, groups, strict=True)
            for each in group
        ]

    def rows(self, sent: Sequence[Sent]) -> list[Row]:
        return [
            Row(
                at // GROUP,
                self.policy.encode_prompt(each.prompt.text),
                self.policy.encode_completion(each.text, each.finished),
                each.reward,
            )
            for at, each in enumerate(sent)
        ]

    def learn(self, sent: Sequence[Sent]) -> None:
        self.trainer.update(self.rows(sent))
        self.engine.refresh()

    def evidence(self, sent: Sequence[Sent], vouch: bool) -> list[RowEvidence]:
        marks: list[list[bool]] = []
        for each in sent:
            span = answer_span(each.text, each.prompt.answer or "") if vouch else None
            offsets = self.policy.completion_offsets(each.text, each.finished)
            marks.append(vouched_tokens(offsets, span, each.finished))
        return self.trainer.evidence(self.rows(sent), marks)


class _Receiver:
    """Node 0 with one null for each variant, and what it found."""

    def __init__(self, node: _Node) -> None:
        self.node = node
        self.nulls = {name: LikelihoodNull(DefenseConfig(), Counters()) for name in VARIANTS}
        self.found: dict[str, Counter[str]] = defaultdict(Counter)
        self.judge_seconds: list[float] = []

    def calibrate(self, sent: Sequence[Sent], age: int) -> None:
        earned = [each for each in sent if each.reward == 1.0]
        for vouch in (True, False):
            found = self.node.evidence(earned, vouch) if earned else []
            for name, (vouches, by_age, _) in VARIANTS.items():
                if vouches == vouch and (by_age or age == 0):
                    for each, evidence in zip(earned, found, strict=True):
                        self.nulls[name].own(each.prompt.task, age, evidence)

    def judge(self, kinds: Sequence[str], sent: Sequence[Sent], age: int, operator: str, counts: bool) -> None:
        """Judge rewarded rows under every variant; the kind of a row is what its verdict is filed under."""
        for vouch in (True, False):
            found = self.node.evidence(sent, vouch) if sent else []
            for name, (vouches, _, peers) in VARIANTS.items():
                if vouches != vouch:
                    continue
                for kind, each, evidence in zip(kinds, sent, found, strict=True):
                    case = Case(each.prompt.task, age, operator)
                    began = time.perf_counter()
                    verdict = judge(self.nulls[name], case, evidence).verdict
                    if counts:
                        self.judge_seconds.append(time.perf_counter() - began)
                        self.found[f"{name}|{kind}|{age}"].update([verdict.action.value, "all"])
                        if verdict.reason:
                            self.found[f"{name}|{kind}|{age}"].update([f"{verdict.action.value}/{verdict.reason}"])
                    if peers:
                        self.nulls[name].peer(case, evidence)


def run_swarm(cell: SwarmCell, cache: Path) -> dict[str, Any]:
    """Run one cell and return counts of verdicts by variant, kind and age."""
    began = time.process_time()
    nodes = [_Node(number, cell, cache) for number in range(4)]
    receiver, rng = _Receiver(nodes[0]), random.Random(cell.seed)
    owned = skills_of(0)
    sent: list[list[list[Sent]]] = []
    for round_number in range(cell.rounds):
        sent.append([node.sample() for node in nodes])
        for age in AGES:
            if age <= round_number:
                receiver.calibrate(sent[round_number - age][0], age)
        for age in AGES:
            if age > round_number:
                continue
            counts = round_number >= WARM
            for peer in (1, 2, 3):
                earned = [each for each in sent[round_number - age][peer] if each.reward == 1.0]
                kinds = ["honest, shared skill" if e.prompt.task in owned else "honest, skill lacked" for e in earned]
                receiver.judge(kinds, earned, age, f"peer {peer}", counts)
            right = [each for each in sent[round_number - age][1] if each.reward == 1.0]
            for name, plant in ATTACKS.items():
                chosen = rng.sample(right, min(2, len(right)))
                planted = [Sent(each.prompt, plant(str(each.prompt.answer)), True, 1.0) for each in chosen]
                receiver.judge([name] * len(planted), planted, age, "poisoner", counts)
        for node, completions in zip(nodes, sent[-1], strict=True):
            node.learn(completions)
    rows = nodes[0].rows(sent[-1][0])
    return {
        "cell": cell.name,
        "found": {key: dict(counts) for key, counts in receiver.found.items()},
        "judge_seconds": receiver.judge_seconds,
        "cost": score_against_evidence(nodes[0].trainer, rows, 9),
        "seconds": time.process_time() - began,
    }
