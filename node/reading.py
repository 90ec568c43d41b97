"""Completions as own tokens: which of them the verifier vouches for, and what a model says of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shoal.defenses.vouched import Span, answer_span, pieces, vouched_tokens
from shoal.node.sets import Scored
from shoal.trainer.batch import Row
from shoal.trainer.evidence import RowEvidence
from shoal.trainer.model import Policy
from shoal.trainer.step import Trainer
from shoal.trainer.tasks.base import Prompt

# No token is as long as eight bytes on average: what has more for each token of a cap is not encoded at all. A rare
# character takes four tokens.
BYTES = 8
AT_ONCE = 1 << 16  # characters encoded in one call: each token takes more than 200 bytes until it is read


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
    unread: bool = False  # longer than it may be: nobody looks at it, and it has no ids
    evidence: RowEvidence | None = None

    @property
    def pieces(self) -> list[list[int]]:
        return pieces(self.row.completion_ids, self.vouched)

    @property
    def scored(self) -> Scored | None:
        row = self.row
        return None if row.old_logps is None else Scored(row.completion_ids, row.old_logps, row.scored_version)


def read(policy: Policy, texts: Sequence[Text], temperature: float, longest: int | None = None) -> list[Reading]:
    """Encode completions, and mark the tokens that the verifier confirmed: the reference answer at full reward.

    What has more than `longest` tokens, or more than eight bytes for each of these, is left unread and has no ids.
    """
    prompts = {text: policy.encode_prompt(text) for text in dict.fromkeys(one.prompt.text for one in texts)}
    return [
        _reading(text, prompts[text.prompt.text], encoded, temperature)
        for text, encoded in zip(texts, _encoded(policy, texts, longest), strict=True)
    ]


Encoded = tuple[list[int], list[Span]]


def _reading(text: Text, prompt_ids: list[int], encoded: Encoded | None, temperature: float) -> Reading:
    if encoded is None:
        return Reading(text, Row(0, prompt_ids, [], 0.0, text=text.text, temperature=temperature), [], "", unread=True)
    ids, offsets = encoded
    answer = text.prompt.answer if text.reward == 1.0 else None
    span = answer_span(text.text, answer) if answer else None
    beside = text.text if span is None else f"{text.text[: span[0]]}\n{text.text[span[1] :]}"
    row = Row(0, prompt_ids, ids, 0.0, text=text.text, temperature=temperature)
    return Reading(text, row, vouched_tokens(offsets, span, text.finished), beside)


def _encoded(policy: Policy, texts: Sequence[Text], longest: int | None) -> Iterator[Encoded | None]:
    """Yield ids and their places of each text, None for one that is too long; few texts are in work at a time."""
    for part in _parts(texts):
        fitting = [longest is None or _may_fit(text.text, longest) for text in part]
        found = iter(
            policy.read_completions([(one.text, one.finished) for one, fits in zip(part, fitting, strict=True) if fits])
        )
        for fits in fitting:
            ids, offsets = next(found) if fits else ([], [])
            yield (ids, offsets) if fits and (longest is None or len(ids) <= longest) else None


def _may_fit(text: str, longest: int) -> bool:
    return len(text.encode("utf-8", "surrogatepass")) <= BYTES * longest


def _parts(texts: Sequence[Text]) -> Iterator[list[Text]]:
    """Yield the texts in order, so many at a time that they have few enough characters together."""
    part: list[Text] = []
    size = 0
    for text in texts:
        if part and size + len(text.text) > AT_ONCE:
            yield part
            part, size = [], 0
        part.append(text)
        size += len(text.text)
    if part:
        yield part


def ask(trainer: Trainer, readings: Sequence[Reading]) -> None:
    """Ask the model about all of them in one pass; those that it cannot read stay without evidence."""
    fitting = [reading for reading in readings if trainer.fits(reading.row)]
    found = trainer.evidence([reading.row for reading in fitting], [reading.vouched for reading in fitting])
    for reading, evidence in zip(fitting, found, strict=True):
        reading.evidence = evidence
