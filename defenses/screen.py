"""One verdict on one opened rollout: schema, provenance, text, duplicates, in this order."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shoal.defenses.config import DefenseConfig
from shoal.defenses.duplicates import DuplicateMemory, Publication
from shoal.defenses.pointer import Pointer
from shoal.defenses.provenance import Rebuild, RebuiltPrompt, check_provenance
from shoal.defenses.reputation import Reputation, key_subject
from shoal.defenses.text import TextRules, check_text
from shoal.defenses.verdict import ACCEPTED, Counters, Verdict, reject
from shoal.protocol.columns import ITEM_SIZE, ints
from shoal.protocol.envelope import Header, check_payload
from shoal.protocol.errors import ProtocolError
from shoal.protocol.limits import Limits
from shoal.protocol.manifest import Manifest
from shoal.protocol.wire import PromptName, Rollout, decode_rollout, matches_header


@dataclass(frozen=True, slots=True)
class ScreenContext:
    """What the screen judges by; all callables are local and trusted.

    `rebuild(round, scope key, slot)` gives the derived prompt, None without its task; `claimed` the prompt that a
    sender names, asked only with provenance off. `max_chars(task)` caps a completion. `decode_ids` is the own
    tokenizer's decoder (special tokens skipped), asked only for rollouts with the hash `own_tokenizer` and ids below
    `vocabulary` (0: not known). No completion may hold one of `special_tokens`. `copy_chars(task)` is the length from
    which equal texts are copies (None: the configured one for all tasks).
    """

    manifest: Manifest
    rebuild: Rebuild
    own_tokenizer: bytes
    max_chars: Callable[[str], int]
    claimed: Callable[[PromptName], RebuiltPrompt | None] | None = None
    decode_ids: Callable[[Sequence[int]], str] | None = None
    vocabulary: int = 0
    special_tokens: tuple[str, ...] = ()
    copy_chars: Callable[[str], int] | None = None
    limits: Limits = field(default_factory=Limits)
    config: DefenseConfig = field(default_factory=DefenseConfig)


@dataclass(frozen=True, slots=True)
class ScreenMemory:
    """What the screen remembers and counts; each part has its own state."""

    duplicates: DuplicateMemory
    reputation: Reputation
    counters: Counters


@dataclass(frozen=True, slots=True)
class Screened:
    """A rollout that may be regraded: its locally rebuilt prompt, and one verdict for each completion."""

    pointer: Pointer
    rollout: Rollout
    prompt: RebuiltPrompt
    verdicts: tuple[Verdict, ...]

    @property
    def kept(self) -> tuple[int, ...]:
        """The indices of the completions that may be used."""
        return tuple(index for index, verdict in enumerate(self.verdicts) if verdict.usable)


def screen(pointer: Pointer, blob: bytes, context: ScreenContext, memory: ScreenMemory) -> Screened | Verdict:
    """Judge what was fetched for a pointer; never raises for what a peer sent, and counts every refusal."""
    outcome = _judge(pointer, blob, context, memory)
    if isinstance(outcome, Verdict):
        memory.counters.add(outcome.layer, outcome.reason)
        return outcome
    for verdict in outcome.verdicts:
        if not verdict.usable:
            memory.counters.add(verdict.layer, f"{verdict.reason}_row")
    memory.counters.add("screen", "accepted")
    return outcome


def _judge(pointer: Pointer, blob: bytes, context: ScreenContext, memory: ScreenMemory) -> Screened | Verdict:
    header = pointer.announcement.header
    rollout = _open(header, blob, context, memory)
    if isinstance(rollout, Verdict):
        return rollout
    prompt = _prompt(rollout, header, context)
    if isinstance(prompt, Verdict):
        return prompt
    verdicts = _texts(rollout, prompt, context)
    refusal = _whole(verdicts)
    if refusal is None and context.config.on("duplicates"):
        publication = Publication(prompt.prompt_hash, pointer.key, (pointer.received_round, pointer.arrival))
        chars = context.copy_chars(prompt.task) if context.copy_chars else context.config.copy_chars
        judged = memory.duplicates.judge(publication, rollout.completions, chars)
        verdicts = [second if first.usable else first for first, second in zip(verdicts, judged, strict=True)]
        refusal = _whole(verdicts)
    return refusal or Screened(pointer, rollout, prompt, tuple(verdicts))


def _open(header: Header, blob: bytes, context: ScreenContext, memory: ScreenMemory) -> Rollout | Verdict:
    """Decode under all caps. Its key signed these very bytes, so a malformed payload is its own offence."""
    try:
        check_payload(header, blob)
    except ProtocolError as error:
        return reject("header", error.reason)  # other bytes than were signed: the carrier's fault, not the key's
    try:
        rollout = decode_rollout(blob, context.limits)
        if context.config.on("header"):
            matches_header(rollout, header)
    except ProtocolError as error:
        if context.config.on("reputation"):
            memory.reputation.offend(key_subject(header.key))
        return reject("schema", error.reason)
    fewest, most = context.manifest.limits.completions
    if not fewest <= len(rollout.completions) <= most:
        return reject("schema", "completions_out_of_range")
    return rollout


def _prompt(rollout: Rollout, header: Header, context: ScreenContext) -> RebuiltPrompt | Verdict:
    """Rebuild the prompt; with provenance off, the one that the sender names."""
    if context.config.on("provenance"):
        return check_provenance(rollout, header, context.manifest, context.rebuild)
    claimed = context.claimed(rollout.prompt) if context.claimed is not None else None
    return claimed or reject("provenance", "cannot_rebuild")


def _texts(rollout: Rollout, prompt: RebuiltPrompt, context: ScreenContext) -> list[Verdict]:
    """Apply the text policy to each completion."""
    if not context.config.on("text"):
        return [ACCEPTED] * len(rollout.completions)
    rules = TextRules(
        max_chars=context.max_chars(prompt.task),
        max_tokens=rollout.sampler.max_tokens,
        special_tokens=context.special_tokens,
        decode_ids=context.decode_ids if rollout.tokenizer == context.own_tokenizer else None,
        vocabulary=context.vocabulary,
    )
    columns = rollout.token_ids or [None] * len(rollout.completions)
    return [_text(text, column, rules) for text, column in zip(rollout.completions, columns, strict=True)]


def _text(text: str, column: bytes | None, rules: TextRules) -> Verdict:
    """Judge one completion; its column of ids is unpacked only when it is as short as was declared."""
    if column is None:
        return check_text(text, None, rules)
    if len(column) > rules.max_tokens * ITEM_SIZE:
        return reject("text", "too_many_tokens")
    return check_text(text, ints(column), rules)


def _whole(verdicts: Sequence[Verdict]) -> Verdict | None:
    """Refuse the rollout when more than half of its rows are bad, for the commonest reason."""
    bad = [verdict for verdict in verdicts if not verdict.usable]
    if 2 * len(bad) <= len(verdicts):
        return None
    return Counter(bad).most_common(1)[0][0]
