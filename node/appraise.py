"""The later layers of the screen, where they meet tensors: own evidence on peers' rows, and calibration on own rows.

One forward of a pass reads everything: peers' rows that earned something, the own rows that the update will need, and
some own rows of earlier rounds. Its log-probs are kept, so that the update does not read the same rows again.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shoal.defenses.appraisal import AppraisalMemory, Earner, Submission, appraise
from shoal.defenses.invariants import Invariants
from shoal.defenses.judge import Judge
from shoal.defenses.pointer import Pointer
from shoal.defenses.screen import Screened
from shoal.node.anchors import NO_ANCHORS, Anchors
from shoal.node.reading import Reading, Text, ask, read
from shoal.node.sets import OwnSet, PeerCompletion, PeerSet
from shoal.protocol.prompts import prompt_hash
from shoal.trainer.evidence import RowEvidence
from shoal.trainer.step import Trainer
from shoal.trainer.tasks.base import Prompt

LONGEST = 2  # times the own cap on completions: longer rows of peers are not read
AGED_ROWS = 8  # own completions of earlier rounds read again in a pass: a few per cent of what an update reads
KEPT_ROWS = 16  # of each round, to be read again when they have aged


@dataclass(frozen=True, slots=True)
class AppraisalContext:
    """What appraisal judges by: the rules of a task, the sampling temperature and longest completion, how many
    own sets an update takes, the age in rounds up to which it calibrates, and the judge if there is one."""

    rules: Callable[[str], Invariants]
    temperature: float
    max_tokens: int
    sets: int
    oldest: int
    judge: Judge | None = None
    anchors: Anchors = NO_ANCHORS


@dataclass(frozen=True, slots=True)
class Candidate:
    """A peer's rollout that passed the first layers, with local rewards."""

    pointer: Pointer
    blob: bytes
    screened: Screened
    peer: PeerSet


class Assessor:
    """Gives each regraded row of a peer its verdict under the present weights; runs where tensors run."""

    def __init__(self, trainer: Trainer, context: AppraisalContext, memory: AppraisalMemory) -> None:
        self.trainer = trainer
        self.context = context
        self.memory = memory
        self._kept: deque[Text] = deque()
        self._own: list[OwnSet] = []  # of this pass, not learned from yet

    @property
    def active(self) -> bool:
        """Whether any of its layers is on."""
        return any(self.memory.config.on(layer) for layer in ("invariants", "likelihood", "phrases"))

    def note(self, own: Sequence[OwnSet]) -> None:
        """Take note of this pass's own sets; the next `assess` learns from them before it judges anybody."""
        self._own = list(own) if self.active else []
        if self.context.judge is not None:
            self.context.judge.begin_pass()

    def assess(self, candidates: Sequence[Candidate], round: int) -> list[Candidate]:
        """Return the candidates with the later layers' verdicts, and what is left of their sets."""
        own, self._own = self._own, []
        fresh = _own_texts(own, round)
        aged = list(_spread(self._kept, AGED_ROWS)) if own else []
        earning = [_earners(candidate.peer) if self.active else [] for candidate in candidates]
        theirs = [
            Text(round, candidate.peer.prompt, one.text, one.finished, one.reward)
            for candidate, earners in zip(candidates, earning, strict=True)
            for one in earners
        ]
        known = read(self.trainer.policy, [*fresh, *aged], self.context.temperature)
        rest = read(self.trainer.policy, theirs, self.context.temperature, self._longest)
        readable = [reading for reading in rest if not reading.unread]
        needed = self._needed(own, known[: len(fresh)])
        if self.memory.config.on("likelihood"):
            ask(self.trainer, [*needed, *known[len(fresh) :], *readable])
        self._learn(known, round)
        self._keep(fresh, round)
        at = iter(rest)
        return [
            self._judged(candidate, [(one, next(at)) for one in earners], round) if earners else candidate
            for candidate, earners in zip(candidates, earning, strict=True)
        ]

    def _judged(self, candidate: Candidate, earners: Sequence[tuple[PeerCompletion, Reading]], round: int) -> Candidate:
        """Judge the rows of one rollout that earned something; the others stay as they are."""
        anchors = self._anchors(candidate, [reading for _, reading in earners])
        rows = [
            Earner(
                one.row,
                one.text,
                reading.row.completion_ids,
                reading.vouched,
                reading.evidence,
                anchor,
                reading.unread,
                reading.beside,
            )
            for (one, reading), anchor in zip(earners, anchors, strict=True)
        ]
        found = appraise(self._submission(candidate, round), rows, self.memory, self.context.judge, round)
        verdicts = {one.row: verdict for (one, _), verdict in zip(earners, found, strict=True)}
        scored = {one.row: reading.scored for one, reading in earners}
        said = tuple(verdicts.get(row, before) for row, before in enumerate(candidate.screened.verdicts))
        left = tuple(
            replace(one, scored=scored[one.row], weight=verdicts[one.row].weight) if one.row in verdicts else one
            for one in candidate.peer.completions
            if one.row not in verdicts or verdicts[one.row].usable
        )
        screened = replace(candidate.screened, verdicts=said)
        return replace(candidate, screened=screened, peer=replace(candidate.peer, completions=left))

    @property
    def _longest(self) -> int:
        """Tokens from which on a peer's row would cost far more than anything that this node samples itself."""
        return LONGEST * self.context.max_tokens

    def _anchors(self, candidate: Candidate, readings: Sequence[Reading]) -> list[RowEvidence | None]:
        """Ask the public base model of a sender of another lineage, where this node has it."""
        lineage = candidate.screened.rollout.lineage
        if lineage == self.trainer.policy.lineage or not self.memory.config.on("likelihood"):
            return [None] * len(readings)
        read_ones = [reading.text for reading in readings if not reading.unread]
        found = iter(self.context.anchors.evidence(lineage, read_ones, self.context.temperature, self._longest))
        return [None if reading.unread else next(found) for reading in readings]

    def _submission(self, candidate: Candidate, round: int) -> Submission:
        pointer, prompt, rollout = candidate.pointer, candidate.peer.prompt, candidate.screened.rollout
        return Submission(
            operator=pointer.operator,
            key=pointer.key,
            task=prompt.task,
            prompt=prompt.text,
            prompt_hash=candidate.peer.prompt_hash,
            age=max(0, round - pointer.round),
            max_tokens=rollout.sampler.max_tokens,
            own_lineage=rollout.lineage == self.trainer.policy.lineage,
            rules=self.context.rules(prompt.task),
        )

    def _needed(self, own: Sequence[OwnSet], readings: Sequence[Reading]) -> list[Reading]:
        """Return the own rows that the update is going to need, and hand them to their sets."""
        used = {id(one) for one in [one for one in own if not one.uniform][: self.context.sets]}
        places = [(one, at) for one in own for at in range(len(one.completions))]
        needed: list[Reading] = []
        for (one, at), reading in zip(places, readings, strict=True):
            # Text encoded anew may differ from what was sampled: such a row is left to the update.
            if id(one) in used and reading.row.completion_ids == one.completions[at].ids:
                one.read[at] = reading.row
                needed.append(reading)
        return needed

    def _keep(self, fresh: Sequence[Text], round: int) -> None:
        """Keep some own completions that earned something for later rounds, and let go of what is too old."""
        while self._kept and self._kept[0].round < round - self.context.oldest:
            self._kept.popleft()
        begun = sum(kept.round == round for kept in self._kept)
        earned = [text for text in fresh if text.reward > 0.0]  # as all that is judged
        self._kept.extend(_spread(earned, KEPT_ROWS - begun))

    def _learn(self, known: Sequence[Reading], round: int) -> None:
        """Take note of own completions: what this node says itself, how long, and how likely it finds that."""
        memory = self.memory
        for reading in known:
            text = reading.text
            if text.round == round:
                memory.lengths.own(text.prompt.task, len(reading.row.completion_ids), text.reward > 0.0)
                memory.phrases.own(prompt_hash(text.prompt.text), reading.pieces, text.reward > 0.0)
            if reading.evidence is not None and text.reward > 0.0:
                memory.null.own(text.prompt.task, round - text.round, reading.evidence)
                memory.contrast.own(reading.evidence)

    def state(self) -> dict[str, Any]:
        """Return everything remembered as plain types; prompts are kept by name."""
        kept = [
            [k.round, k.prompt.task, k.prompt.seed, k.prompt.index, k.text, k.finished, k.reward] for k in self._kept
        ]
        judge = self.context.judge.state() if self.context.judge is not None else None
        return {"memory": self.memory.state(), "kept": kept, "judge": judge}

    def restore(self, state: Mapping[str, Any], prompt: Callable[[str, int, int], Prompt]) -> None:
        """Take over what `state` returned; `prompt` rebuilds a prompt from its name."""
        self.memory.restore(state["memory"])
        if self.context.judge is not None and state["judge"] is not None:
            self.context.judge.restore(state["judge"])
        self._kept = deque(
            Text(round, prompt(task, seed, index), text, finished, reward)
            for round, task, seed, index, text, finished, reward in state["kept"]
        )


def _own_texts(own: Sequence[OwnSet], round: int) -> list[Text]:
    return [
        Text(round, one.prompt, completion.text, completion.finished, reward)
        for one in own
        for completion, reward in zip(one.completions, one.rewards, strict=True)
    ]


def _earners(peer: PeerSet) -> list[PeerCompletion]:
    """Return the completions that earned something: nothing else can be lifted.

    A set whose rewards are all equal is no exception: joined to an own group of the same prompt it carries signal.
    """
    return [completion for completion in peer.completions if completion.reward > 0.0]


def _spread(items: Sequence[Text] | deque[Text], count: int) -> Iterator[Text]:
    """Yield up to `count` items, evenly spread over the sequence."""
    step = max(1.0, len(items) / max(1, count))
    for at in range(min(max(0, count), len(items))):
        yield items[int(at * step)]
