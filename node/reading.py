"""Completions as own tokens: which of them the verifier vouches for, and what a model says of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.defenses.vouched import answer_span, pieces, vouched_tokens
from shoal.node.sets import Scored
from shoal.trainer.batch import Row
from shoal.trainer.evidence import RowEvidence
from shoal.trainer.model import Policy
from shoal.trainer.step import Trainer
from shoal.trainer.tasks.base import Prompt


@dataclass(frozen=True, slots=True)
class Text:
    """A completion of some round, with the local reward."""

    round: int
    prompt: Prompt
    text: str
    finished: bool
    reward: float


@dataclass(slots=True)
class Reading:
    """A completion as own tokens: which of them are vouched for, and what the model says of them once it was asked."""

    text: Text
    row: Row
    vouched: list[bool]
    beside: str  # the text without the vouched answer
    evidence: RowEvidence | None = None

    @property
    def pieces(self) -> list[list[int]]:
        return pieces(self.row.completion_ids, self.vouched)

    @property
    def scored(self) -> Scored | None:
        row = self.row
        return None if row.old_logps is None else Scored(row.completion_ids, row.old_logps, row.scored_version)


def read(policy: Policy, texts: Sequence[Text], temperature: float) -> list[Reading]:
    """Encode completions, and mark the tokens that the verifier confirmed: the reference answer at full reward."""
    prompts = {text: policy.encode_prompt(text) for text in dict.fromkeys(one.prompt.text for one in texts)}
    encoded = policy.read_completions([(text.text, text.finished) for text in texts])
    readings: list[Reading] = []
    for text, (ids, offsets) in zip(texts, encoded, strict=True):
        answer = text.prompt.answer if text.reward == 1.0 else None
        span = answer_span(text.text, answer) if answer else None
        mask = vouched_tokens(offsets, span, text.finished)
        beside = text.text if span is None else f"{text.text[: span[0]]}\n{text.text[span[1] :]}"
        row = Row(0, prompts[text.prompt.text], ids, 0.0, text=text.text, temperature=temperature)
        readings.append(Reading(text, row, mask, beside))
    return readings


def ask(trainer: Trainer, readings: Sequence[Reading]) -> None:
    """Ask the model about all of them in one pass; those that it cannot read stay without evidence."""
    fitting = [reading for reading in readings if trainer.fits(reading.row)]
    found = trainer.evidence([reading.row for reading in fitting], [reading.vouched for reading in fitting])
    for reading, evidence in zip(fitting, found, strict=True):
        reading.evidence = evidence
