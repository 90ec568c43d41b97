"""The outcome that attacks on content expect, tried on the layer that they name, with the built-in model."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import pytest
import torch

from shoal.defenses.attacks import ATTACKS, Attack, Draft, Knowledge
from shoal.defenses.config import DefenseConfig
from shoal.defenses.invariants import check_invariants
from shoal.defenses.lengths import LengthMemory
from shoal.defenses.likelihood import Case, LikelihoodNull, judge
from shoal.defenses.token_scores import TokenEvidence
from shoal.defenses.verdict import ACCEPTED, Counters
from shoal.defenses.vouched import answer_span, vouched_tokens
from shoal.trainer.batch import Origin, foreign_rows
from shoal.trainer.engine import Sampling, make_engine
from shoal.trainer.model import DEFAULT_MODEL, Policy, load_policy
from shoal.trainer.step import Trainer
from shoal.trainer.tasks.base import Prompt
from shoal.trainer.tasks.strings import KINDS, StringTask
from shoal.trainer.warmstart import start_skills

Reads = Callable[[str, Sequence[str], str | None], Sequence[TokenEvidence]]
ATTACKER, RECEIVER = 3, 0
# "2+2=5 bn" may speak of billions: with an answer that reads as a unit or a name behind it an equation is not judged.
UNITS = {"bn", "rs", "ms", "pm", "am", "qt"}


def is_right(text: str, prompt: Prompt) -> bool:
    return text.split()[-1:] == [prompt.answer]


def prompts(seed: int, count: int) -> list[Prompt]:
    return [StringTask(kind).prompt(seed, index) for kind in KINDS for index in range(count)]


class Own:
    """A node at its start: its model, what it samples, and how it reads a text."""

    def __init__(self, number: int) -> None:
        self.policy: Policy = load_policy(DEFAULT_MODEL)
        start_skills(self.policy, number, 0, rhos=(0.4, 0.03))
        self.trainer = Trainer(self.policy)

    def samples(self, asked: Sequence[Prompt], seed: int) -> list[tuple[str, ...]]:
        generator = torch.Generator().manual_seed(seed)
        texts = [prompt.text for prompt in asked]
        groups = make_engine(self.policy).sample(texts, 8, Sampling(max_tokens=24), generator)
        return [tuple(completion.text for completion in group) for group in groups]

    def reads(self, prompt: str, texts: Sequence[str], answer: str | None) -> Sequence[TokenEvidence]:
        rows = foreign_rows(self.policy, prompt, [(text, True) for text in texts], [1.0] * len(texts), Origin(0))
        return self.trainer.evidence(rows, [self._vouched(text, answer) for text in texts])

    def _vouched(self, text: str, answer: str | None) -> list[bool]:
        span = None if answer is None else answer_span(text, answer)
        return vouched_tokens(self.policy.completion_offsets(text, finished=True), span, finished=True)

    @property
    def knowledge(self) -> Knowledge:
        count = lambda text: len(self.policy.encode_completion(text, finished=False))  # noqa: E731
        return Knowledge(DefenseConfig(), 24, count, self.reads)


@dataclass(frozen=True)
class Field:
    """A receiver with its null, and what an attacker has sampled."""

    receiver: Own
    null: LikelihoodNull
    attacker: Own
    asked: list[Prompt]
    sampled: list[tuple[str, ...]]

    def poison(self, name: str) -> list[tuple[Prompt, str]]:
        """The rewarded rows that show an attack's behaviour, of three rounds."""
        attack = ATTACKS[name]()
        attack.know(self.attacker.knowledge)
        found: list[tuple[Prompt, str]] = []
        for number in range(3 * len(self.asked)):
            prompt, texts = self.asked[number % len(self.asked)], self.sampled[number % len(self.asked)]
            right = tuple(is_right(text, prompt) for text in texts)
            rewards = tuple(map(float, right))
            round = 300 * (number // len(self.asked))  # a sleeper is awake in the last two
            draft = Draft(prompt.text, prompt.answer, prompt.task, texts, rewards, right, round)
            poisoned = attack.poison(draft, Random(number)).completions
            found.extend((prompt, text) for text in poisoned if attack.shown(text) and is_right(text, prompt))
        return found

    def passing(self, rows: Sequence[tuple[Prompt, str]]) -> float:
        """The share of rows that the likelihood layer leaves more than half of their weight."""
        passed = 0
        by_prompt: dict[str, list[tuple[Prompt, str]]] = {}
        for row in rows:
            by_prompt.setdefault(row[0].text, []).append(row)
        for alike in by_prompt.values():
            prompt, counts = alike[0][0], Counter(text for _, text in alike)
            read = self.receiver.reads(prompt.text, list(counts), prompt.answer)
            verdicts = [judge(self.null, Case(prompt.task, 1), evidence).verdict for evidence in read]
            passed += sum(
                count * (verdict.usable and verdict.weight > 0.5)
                for count, verdict in zip(counts.values(), verdicts, strict=True)
            )
        return passed / len(rows)


@pytest.fixture(scope="module")
def field() -> Field:
    torch.set_num_threads(1)
    receiver, attacker = Own(RECEIVER), Own(ATTACKER)
    null = LikelihoodNull(DefenseConfig(), Counters())
    own = prompts(8, 40)
    for prompt, texts in zip(own, receiver.samples(own, 1), strict=True):
        right, wrong = ([text for text in texts if is_right(text, prompt) == good] for good in (True, False))
        for group, answer in ((right, prompt.answer), (wrong, None)):
            for evidence in receiver.reads(prompt.text, group, answer):
                null.own(prompt.task, 0, evidence)
    asked = prompts(9, 12)
    return Field(receiver, null, attacker, asked, attacker.samples(asked, 2))


def expecting(layer: str) -> list[str]:
    plants = {name for name, attack in ATTACKS.items() if attack.shown is not Attack.shown}
    return sorted(name for name in plants if ATTACKS[name].expected.layer == layer)


@pytest.mark.parametrize("name", expecting("likelihood"))
def test_likelihood_takes_the_weight_of_what_expects_it(name: str, field: Field) -> None:
    rows = field.poison(name)
    assert rows
    assert field.passing(rows) <= 0.15  # by this layer alone; frequent phrases are another's


@pytest.mark.parametrize("name", sorted({"math", "math-varied", "code", "code-from", "code-dunder"}))
def test_invariants_reject_what_expects_them(name: str, field: Field) -> None:
    assert ATTACKS[name].expected.layer == "invariants"
    rows = field.poison(name)
    verdicts = [check_invariants(text, prompt.text, StringTask.invariants) for prompt, text in rows]
    missed = [text.split()[-1] for (_, text), verdict in zip(rows, verdicts, strict=True) if verdict is ACCEPTED]
    assert all(len(answer) == 1 or answer in UNITS for answer in missed), set(missed)
    assert len(missed) <= 0.2 * len(rows)


def test_long_answers_lose_their_weight_to_the_quota_and_short_ones_none(field: Field) -> None:
    assert ATTACKS["length"].expected.layer == "invariants"
    memory = LengthMemory(DefenseConfig(), Counters())
    for prompt in field.asked:
        memory.own(prompt.task, len(str(prompt.answer)) + 1, rewarded=True)
    rows = field.poison("length")
    long = [memory.judge(prompt.task, "attacker", len(text) + 1).weight for prompt, text in rows]
    short = [memory.judge(prompt.task, "peer", len(str(prompt.answer)) + 1).weight for prompt, _ in rows]
    assert sum(long[-100:]) < 0.2 * 100
    assert sum(short) > 0.95 * len(short)


@pytest.mark.parametrize("name", ["math-words", "adaptive-math"])
def test_invariants_do_not_read_what_expects_to_be_partial(name: str, field: Field) -> None:
    assert ATTACKS[name].expected.layer == "partial"
    for prompt, text in field.poison(name):
        assert check_invariants(text, prompt.text, StringTask.invariants) is ACCEPTED


def test_an_adaptive_phrase_passes_the_receiver_and_costs_the_attacker_most_of_its_rows(field: Field) -> None:
    rows, open_rows = field.poison("adaptive-text"), field.poison("text")
    assert field.passing(rows) > 0.5  # a layer that judges row by row is not what stops it: hence "partial"
    assert len(rows) < 0.2 * len(open_rows)
