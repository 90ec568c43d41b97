"""What a regraded completion is worth: layers 8 to 11 and 13, cheapest first, one verdict for each row.

Only rows that earned something are judged here: nothing else can be lifted. Tokens of an answer that the local
verifier confirmed are vouched for; whatever stands beside them is unverified and must be plausible. Invariants refuse.
Likelihood alone weighs or sets aside, since a peer with a skill that this node lacks is the valuable one and looks
unlikely; a phrase alone sets aside; both together refuse. A judge can only lower what others left in doubt.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.defenses.config import DefenseConfig
from shoal.defenses.contrast import Contrast
from shoal.defenses.invariants import Invariants, check_invariants
from shoal.defenses.judge import Judge, lowered
from shoal.defenses.lengths import LengthMemory
from shoal.defenses.likelihood import Case, LikelihoodNull, judge
from shoal.defenses.phrases import PhraseMemory
from shoal.defenses.suspicion import Suspicion, accounts
from shoal.defenses.token_scores import TokenEvidence
from shoal.defenses.verdict import ACCEPTED, Action, Counters, Verdict, reject
from shoal.defenses.vouched import pieces


@dataclass(frozen=True, slots=True)
class Earner:
    """One completion that earned a reward: its own-token ids, which of them are vouched for, and its evidence.

    `evidence` is None where the own model did not read it (too long, or the likelihood layer is off). `anchor` is what
    the public base model of a sender of another lineage says, where this node has one at hand. `unread`: it is so much
    longer than what this node samples that nobody looks at it. `beside` is the text without the vouched answer, ""
    where that is the text itself.
    """

    row: int
    text: str
    ids: Sequence[int]
    vouched: Sequence[bool]
    evidence: TokenEvidence | None = None
    anchor: TokenEvidence | None = None
    unread: bool = False
    beside: str = ""

    @property
    def pieces(self) -> list[list[int]]:
        """The runs of ids that nobody vouched for."""
        return pieces(self.ids, self.vouched)


@dataclass(frozen=True, slots=True)
class Submission:
    """Whose completions are judged, and of which prompt; `age` in rounds, `max_tokens` as declared,
    `own_lineage`: the sender's base is ours."""

    operator: str
    key: bytes
    task: str
    prompt: str
    prompt_hash: bytes
    age: int
    max_tokens: int
    own_lineage: bool
    rules: Invariants

    @property
    def case(self) -> Case:
        """What the likelihood tests compare with."""
        return Case(self.task, self.age, self.operator, self.max_tokens)


@dataclass(slots=True)
class AppraisalMemory:
    """What the later layers remember; each part has its own state."""

    config: DefenseConfig
    counters: Counters
    lengths: LengthMemory = field(init=False)
    phrases: PhraseMemory = field(init=False)
    null: LikelihoodNull = field(init=False)
    contrast: Contrast = field(init=False)
    suspicion: Suspicion = field(init=False)

    def __post_init__(self) -> None:
        self.lengths = LengthMemory(self.config, self.counters)
        self.phrases = PhraseMemory(self.config, self.counters)
        self.null = LikelihoodNull(self.config, self.counters)
        self.contrast = Contrast(self.config, self.counters)
        self.suspicion = Suspicion(self.config, self.counters)

    def state(self) -> dict[str, Any]:
        """Return everything remembered as plain types."""
        return {name: getattr(self, name).state() for name in _PARTS}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned; a checkpoint of an earlier version lacks some of it."""
        for name in _PARTS:
            if name in state:
                getattr(self, name).restore(state[name])


_PARTS = ("lengths", "phrases", "null", "contrast", "suspicion")


def appraise(
    submission: Submission, rows: Sequence[Earner], memory: AppraisalMemory, ask: Judge | None, round: int
) -> list[Verdict]:
    """Return one verdict for each row, in order; every refusal is counted, and the operator's evidence is noted."""
    config = memory.config
    if config.on("phrases"):
        for row in (row for row in rows if not row.unread):
            memory.phrases.peer(submission.operator, submission.prompt_hash, row.pieces)
    verdicts = [_judge(submission, row, memory, ask) for row in rows]
    refused = [verdict for verdict in verdicts if not verdict.usable]
    wording = sum(verdict.layer == "phrases" for verdict in refused)  # another style is no offence
    if 2 * len(refused) > len(rows):
        worst = Counter(refused).most_common(1)[0][0]
        verdicts = [verdict if not verdict.usable else worst for verdict in verdicts]
    if config.on("reputation") and rows:
        names = accounts(submission.operator, submission.key)
        for name in names:
            memory.suspicion.note(name, len(refused) - wording, len(rows) - len(refused), round)
        trust = min(memory.suspicion.weight(name, round) for name in names)
        verdicts = [_weighed(verdict, trust) for verdict in verdicts]
    for verdict in verdicts:
        if verdict.action is not Action.ACCEPT:
            kind = "weighed" if verdict.usable else "row"
            memory.counters.add(verdict.layer, f"{verdict.reason}_{kind}")
    return verdicts


def _judge(submission: Submission, row: Earner, memory: AppraisalMemory, ask: Judge | None) -> Verdict:
    """Judge one row by everything that is on, cheapest first."""
    if row.unread:
        return Verdict(Action.QUARANTINE, "invariants", "beyond_own_length", 0.0)
    found = _invariants(submission, row, memory)
    if not found.usable:
        return found
    likely = _likelihood(submission, row, memory)
    phrase = memory.phrases.judge(row.pieces) if memory.config.on("phrases") else ACCEPTED
    if not likely.usable and not phrase.usable:
        return reject("likelihood", f"{likely.reason}_and_{phrase.reason}")
    found = _graver(found, phrase)
    if found.usable and row.evidence is not None and submission.own_lineage:
        memory.null.peer(submission.case, row.evidence)  # whatever likelihood itself says of it
    found = _graver(found, likely)
    return _asked(submission, row, found, ask)


def _invariants(submission: Submission, row: Earner, memory: AppraisalMemory) -> Verdict:
    if not memory.config.on("invariants"):
        return ACCEPTED
    # Lengths first: what is far too long is not parsed.
    length = memory.lengths.judge(submission.task, submission.operator, len(row.ids), submission.prompt_hash)
    if not length.usable:
        return length
    verdict = check_invariants(row.text, submission.prompt, submission.rules)
    if verdict.usable and row.beside not in ("", row.text):
        # An answer behind a false equation can read as its unit: "2+2=5 m" states nothing about numbers alone.
        verdict = check_invariants(row.beside, submission.prompt, submission.rules)
    return _graver(length, verdict)


def _likelihood(submission: Submission, row: Earner, memory: AppraisalMemory) -> Verdict:
    if row.evidence is None or not memory.config.on("likelihood"):
        return ACCEPTED
    absolute = judge(memory.null, submission.case, row.evidence).verdict
    if submission.own_lineage:
        return absolute
    found = memory.contrast.judge(submission.operator, row.evidence, row.anchor)
    if absolute.usable:
        return found
    # Another lineage is a claim: whoever lies gets the weaker tests, so what fails the stronger one weighs less.
    weight = min(found.weight, memory.config.other_lineage)
    return Verdict(Action.WEIGH, "likelihood", found.reason or "other_lineage", weight)


def _asked(submission: Submission, row: Earner, found: Verdict, ask: Judge | None) -> Verdict:
    """Ask the judge about a row in doubt: it may set it aside, and nothing else."""
    if ask is None or found.action is not Action.WEIGH:
        return found
    return lowered(found, ask.opinion(submission.prompt, row.text, found.reason))


_GRAVITY = {Action.ACCEPT: 0, Action.WEIGH: 1, Action.QUARANTINE: 2, Action.REJECT: 3}


def _graver(first: Verdict, second: Verdict) -> Verdict:
    """The graver of two verdicts; of two that weigh, the lighter weight."""
    return max((first, second), key=lambda verdict: (_GRAVITY[verdict.action], -verdict.weight))


def _weighed(verdict: Verdict, weight: float) -> Verdict:
    """Lower a usable verdict by what its operator is trusted."""
    if weight >= 1.0 or not verdict.usable:
        return verdict
    layer, reason = (verdict.layer, verdict.reason) if verdict.layer else ("reputation", "suspect")
    return Verdict(Action.WEIGH, layer, reason, verdict.weight * weight)


Rules = Callable[[str], Invariants]
"""Task name → what must hold of its completions."""
