"""The canary of a node: prompts asked from time to time, and what happens when the answers have changed for the worse.

It works at the beginning of a pass, before anything is sampled, with a generator of its own: a run in which it never
alarms trains bit for bit like one without it. On an alarm peers' samples are frozen for some rounds, those on hand are
dropped, and weights and optimizer go back to the latest state from before the rise.
"""

import logging
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from shoal.defenses.behaviour import Alarm, View
from shoal.defenses.canary import Canary
from shoal.defenses.text import safe
from shoal.defenses.vouched import answer_span, pieces, vouched_tokens
from shoal.node.compute import Compute
from shoal.node.config import CanaryOptions
from shoal.node.gather import Gatherer
from shoal.node.good_states import Good, GoodStates, Tensors
from shoal.node.mix import Mixed
from shoal.node.sets import OwnSet, PeerSet, reward_of
from shoal.trainer.batch import Row
from shoal.trainer.engine import Completion, Engine, Sampling
from shoal.trainer.model import Policy
from shoal.trainer.step import StepReport, Trainer
from shoal.trainer.tasks.base import Prompt
from shoal.trainer.verify import Grader

log = logging.getLogger(__name__)

REFERENCE = 8  # answers to each prompt before the first pass: the rarer a behaviour was, the sooner it is seen to rise
PATIENCE = 2  # passes between two runs at least; doubled for each run out of turn that finds nothing
LONGEST = 8  # times the freeze that repeated alarms lead to
FORGIVEN = 16  # freezes without an alarm after which the next one is a first one again
REACH = 3  # regular runs that the oldest good state may lie back: going back further would lose too much
SHOWN_CHARS = 40

Violates = Callable[[str, Prompt], bool]
"""Whether a completion states something false or imports what it may not."""


def _nothing_is_false(_text: str, _prompt: Prompt) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Eyes:
    """How canary prompts are answered and seen: the node's own engine, grader and sampling settings."""

    prompts: Callable[[], Sequence[Prompt]]
    engine: Engine
    grader: Grader
    sampling: Sampling
    trainer: Trainer
    violates: Violates = _nothing_is_false

    def answers(self, prompts: Sequence[Prompt], each: int, generator: torch.Generator) -> list[View]:
        """Answer every prompt `each` times."""
        groups = self.engine.sample([prompt.text for prompt in prompts], each, self.sampling, generator)
        pairs = [(prompt, one) for prompt, group in zip(prompts, groups, strict=True) for one in group]
        scores = self.grader.grade([(prompt, one.text) for prompt, one in pairs])
        return [self.view(*pair, reward_of(score)) for pair, score in zip(pairs, scores, strict=True)]

    def view(self, prompt: Prompt, completion: Completion, reward: float) -> View:
        """Return a completion of this node as the canary sees it."""
        ids = completion.ids[:-1] if completion.finished else completion.ids
        right = None if math.isnan(reward) else reward == 1.0
        runs = unvouched(self.trainer.policy, completion.text, prompt.answer, ids) if right else [ids]
        return View(right, runs, self.violates(completion.text, prompt))

    def foreign(self, prompt: Prompt, row: Row) -> View:
        """Return a rewarded row of a peer."""
        policy, ids, right = self.trainer.policy, row.completion_ids, row.reward == 1.0
        ids = ids[:-1] if ids and ids[-1] in policy.eos_ids else ids
        text = row.text or policy.decode(ids)
        runs = unvouched(policy, text, prompt.answer, ids) if right else [ids]
        return View(right, runs, self.violates(text, prompt))


def unvouched(policy: Policy, text: str, answer: str | None, ids: Sequence[int]) -> list[list[int]]:
    """Return the runs of token ids of a right completion that the verifier has not confirmed."""
    span = answer_span(text, answer or "")
    if span is None:
        return [list(ids)]
    if not text[: span[0]].strip() and not text[span[1] :].strip():
        return []
    encoded = policy.encode_completion(text, finished=False)
    return pieces(encoded, vouched_tokens(policy.completion_offsets(text, finished=False), span, finished=False))


class CanaryWatch:
    """Watches one node. A pass calls `look` first and `note` last, and asks `frozen` before it takes from peers."""

    def __init__(self, options: CanaryOptions, judge: Canary, eyes: Eyes, gatherer: Gatherer, compute: Compute) -> None:
        self.options = options
        self.judge = judge
        self.eyes = eyes
        self.gatherer = gatherer
        self.compute = compute
        self.counters = gatherer.counters
        self.states = GoodStates(gatherer.counters, REACH * options.canary_every)
        self.generator = torch.Generator()
        self.passes = 0  # completed
        self.asked = 0  # passes completed at the last run
        self.thawed = 0  # passes completed when peers' rollouts began to come in, or were let in again
        self.frozen_until = -1  # round
        self.patience = PATIENCE
        self.strikes = 0
        self.last_alarm: dict[str, Any] | None = None
        self._prompts: Sequence[Prompt] | None = None

    def seed(self, text: str) -> None:
        """Seed the generator that canary answers are drawn with: nothing else draws from it."""
        self.generator.manual_seed(random.Random(f"{text}/canary").getrandbits(63))

    # -- in a pass ----------------------------------------------------------------------------------------------------

    async def look(self, round: int) -> dict[str, Any] | None:
        """Ask the canary prompts when that is due; return what was done about an alarm, as plain data."""
        if not self._due():
            return None
        alarm = await self.compute.run("canary", self._ask)
        if alarm is None:
            return None
        good = await self.compute.run("canary", lambda: self._go_back(alarm))
        return self._freeze(alarm, good, round)

    async def note(self, own: Sequence[OwnSet], mixed: Mixed, report: StepReport) -> None:
        """Take in what a pass sampled, and what of peers it trained on."""
        at, self.passes = self.passes, self.passes + 1
        trained = report.trained if report.signal else []
        rows = [
            (row, origin)
            for row, origin, trains in zip(mixed.rows, mixed.origins, trained, strict=False)
            if trains and row.reward > 0.0 and isinstance(origin, PeerSet)
        ]

        def work() -> None:
            if self.judge.watching:
                self.judge.own([self._group(own_set) for own_set in own], at)
            if rows:
                self.judge.peers([self.eyes.foreign(origin.prompt, row) for row, origin in rows], at)

        if self.judge.ready and (self.judge.watching or rows):
            await self.compute.run("canary", work)

    def frozen(self, round: int) -> bool:
        """Whether nothing of peers is taken in this round; counted."""
        if not self._freezes(round):
            return False
        self.counters.add("canary", "frozen")
        self.thawed = self.passes + 1
        return True

    def _freezes(self, round: int) -> bool:
        # One that ends later than the longest freeze from now was set by a clock that ran ahead.
        return round < self.frozen_until <= round + LONGEST * self.options.freeze_rounds

    def _group(self, own: OwnSet) -> list[View]:
        pairs = zip(own.completions, own.rewards, strict=True)
        return [self.eyes.view(own.prompt, completion, reward) for completion, reward in pairs]

    # -- a run --------------------------------------------------------------------------------------------------------

    def _due(self) -> bool:
        if not self.judge.ready or self._regular():
            self.patience = PATIENCE
            return True
        since = self.passes - self.asked
        out_of_turn = self.judge.insists or (since >= self.patience and self.judge.wants_run)
        if since < PATIENCE or not out_of_turn:
            return False
        self.patience *= 2
        return True

    def _regular(self) -> bool:
        """Whether a run is due in its turn: every so many passes, and sooner while peers have only begun to come in, at
        intervals that double."""
        soon = max(self.asked, self.thawed) + max(PATIENCE, self.asked - self.thawed)
        return self.passes >= min(soon, self.asked + self.options.canary_every)

    def _ask(self) -> Alarm | None:
        """Answer the prompts; the first time the answers are the reference, and the state is good by definition."""
        if self._prompts is None:
            self._prompts = self.eyes.prompts()
        self.asked = self.passes
        if not self._prompts:
            self.counters.add("canary", "no_prompts")
            return None
        if not self.judge.ready:
            self.judge.begin(self.eyes.answers(self._prompts, REFERENCE, self.generator))
            self.states.keep(self.passes, self.eyes.trainer)
            self.counters.add("canary", "reference")
            return None
        alarm = self.judge.run(self.eyes.answers(self._prompts, 1, self.generator), self.passes)
        self.counters.add("canary", "run")
        if alarm is None and self.judge.clean:
            self.states.keep(self.passes, self.eyes.trainer)
        return alarm

    def _go_back(self, alarm: Alarm) -> Good | None:
        good = self.states.back_to(alarm.since, self.eyes.trainer)
        if good is not None:
            self.eyes.engine.refresh()
        self.judge.calm()
        return good

    def _freeze(self, alarm: Alarm, good: Good | None, round: int) -> dict[str, Any]:
        rounds = self.options.freeze_rounds
        again = self.last_alarm is not None and round - self.frozen_until < FORGIVEN * rounds
        self.strikes = self.strikes + 1 if again else 0
        self.frozen_until = round + rounds * min(LONGEST, 2**self.strikes)
        dropped = len(self.gatherer.pool)
        self.gatherer.pool.expire(lambda _: False)
        self.counters.add("canary", f"alarm_{alarm.kind}")
        self.counters.add("canary", "no_state" if good is None else "rolled_back")
        self.counters.add("canary", "dropped_pointers", dropped)
        policy = self.eyes.trainer.policy
        shown = safe(policy.decode(alarm.tokens), SHOWN_CHARS) if alarm.tokens else ""
        self.last_alarm = {name: value for name, value in asdict(alarm).items() if name != "tokens"} | {
            "text": shown,
            "round": round,
            "frozen_until": self.frozen_until,
            "back_to": None if good is None else good.version,
            "version": policy.version,
        }
        _tell(self.last_alarm)
        return self.last_alarm

    # -- what others see, and what is kept ----------------------------------------------------------------------------

    def status(self, round: int) -> dict[str, Any]:
        """Return what a person wants to know of it."""
        return {
            "frozen_rounds": self.frozen_until - round if self._freezes(round) else 0,
            "evidence": self.judge.evidence,
            "passes_since_run": self.passes - self.asked,
            "last_alarm": self.last_alarm,
        }

    def tensors(self) -> Tensors:
        """Return the tensors that belong to the state."""
        return {"generator": self.generator.get_state()} | {
            f"good/{name}": tensor for name, tensor in self.states.tensors().items()
        }

    def state(self) -> list[Any]:
        """Return everything else that is remembered, as plain data."""
        place = [self.passes, self.asked, self.thawed, self.frozen_until, self.strikes, self.patience]
        return [self.judge.state(), self.states.state(), place, self.last_alarm]

    def restore(self, tensors: Tensors, state: list[Any]) -> None:
        """Take over what `tensors` and `state` returned."""
        judge, states, place, self.last_alarm = state
        self.generator.set_state(tensors["generator"])
        self.judge.restore(judge)
        kept = {name.removeprefix("good/"): tensor for name, tensor in tensors.items() if name.startswith("good/")}
        self.states.restore(kept, states)
        self.passes, self.asked, self.thawed, self.frozen_until, self.strikes, self.patience = place


def _tell(alarm: dict[str, Any]) -> None:
    what = f"{alarm['text']!r} rose" if alarm["text"] else f"{alarm['kind']} changed"
    back = "no good state is left" if alarm["back_to"] is None else f"weights go back to version {alarm['back_to']}"
    log.warning(
        "canary: %s from %.1f %% to %.1f %% of the answers; %s, nothing is taken from peers until round %d",
        what,
        100 * alarm["before"],
        100 * alarm["share"],
        back,
        alarm["frozen_until"],
    )
