"""One round of a node, told in the order in which it happens.

Draw prompts, sample and grade, publish, gather what peers sampled, mix, update. The same loop runs in the daemon and,
on a virtual clock, in the simulator. Silence is normal: a node without peers does its local step.
"""

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from shoal.defenses.mixing import row_factors
from shoal.node.bridge.hook import NO_LANE, UnsignedLane
from shoal.node.canary import CanaryWatch
from shoal.node.compute import Compute
from shoal.node.config import Mixing
from shoal.node.draw import LocalPrompts
from shoal.node.events import RoundResult
from shoal.node.gather import FETCHES_PER_SET, Gatherer, Order
from shoal.node.mix import Mixer
from shoal.node.opening import StartGate
from shoal.node.pace import Pace
from shoal.node.publish import Publisher
from shoal.node.sets import OwnSet, PeerSet, reward_of
from shoal.node.stopwatch import Stopwatch
from shoal.protocol.manifest import Manifest
from shoal.protocol.manifest_rules import UNSIGNED_OPERATOR
from shoal.protocol.staleness import Clock, LagClock
from shoal.trainer.batch import Row
from shoal.trainer.engine import Engine, Sampling
from shoal.trainer.step import StepReport, Trainer
from shoal.trainer.verify import Grader

SET_BACK_MARGIN = 2  # rounds beyond the staleness bound by which a clock may be set back and be waited for
SHORTEST_SLEEP = 1e-3  # seconds; a sleep to a boundary may end a rounding error before it


@dataclass(frozen=True, slots=True)
class Organs:
    """The parts that a node is wired from."""

    clock: Clock
    lags: LagClock
    compute: Compute
    prompts: LocalPrompts
    engine: Engine
    grader: Grader
    trainer: Trainer
    mixer: Mixer
    publisher: Publisher
    gatherer: Gatherer


@dataclass(frozen=True, slots=True)
class Habits:
    """How a node behaves in a round.

    `prompts` are sampled in a pass, the first `shared` of them the swarm's; `passes` bounds the passes of a fast node
    in one round; `wait_seconds` is the longest wait for peers. A node that does not share is alone; one that does not
    learn (an attacker, or a machine that only samples) keeps its policy; one that does not sample looks on. With
    `shared_only` every prompt is the swarm's; a `hurried` node waits for one peer's blob half of a pass's time at most.
    """

    mixing: Mixing
    sampling: Sampling
    prompts: int
    shared: int
    wait_seconds: float
    passes: int = 1
    shares: bool = True
    learns: bool = True
    samples: bool = True
    shared_only: bool = False
    hurried: bool = False

    def slots(self, done: int) -> tuple[range, range]:
        """Return the shared and the own slots of the pass after `done` others of the round.

        Further passes go on with further own slots, or with further shared ones where peers take no others.
        """
        if self.shared_only:
            return range(done * self.prompts, (done + 1) * self.prompts), range(0)
        shared = range(self.shared) if done == 0 else range(0)
        first = max(0, done * self.prompts - self.shared)
        return shared, range(first, first + self.prompts - len(shared))


Journal = Callable[[int, int, int], None]
"""Takes round, pass and policy version before anything of the pass is published, and keeps them on the disk."""


def _write_nothing(round: int, passes: int, version: int) -> None:
    """Keep no journal: a simulation is taken up again from a checkpoint, at which nothing is under way."""


class Node:
    """A node: its parts, its habits, and the position in swarm time from which it goes on."""

    def __init__(self, organs: Organs, habits: Habits, seed: int | str, record: Callable[[RoundResult], None]) -> None:
        self.organs = organs
        self.habits = habits
        self.pace = Pace()
        self.journal: Journal = _write_nothing
        self.record = record
        self.start_gate = StartGate(habits.mixing.start_gate)
        self.rng = random.Random(f"{seed}/choice")
        self.generator = torch.Generator(organs.trainer.policy.device).manual_seed(
            random.Random(f"{seed}/sample").getrandbits(63)
        )
        self.round = -1
        self.passes = 0
        self.told: dict[str, int] = {}
        self.lane: UnsignedLane = NO_LANE
        self.canary: CanaryWatch | None = None  # none for who takes nothing from peers, or has this layer off

    async def run(self, until_round: float) -> None:
        """Train until swarm time reaches `until_round` or the pace says stop.

        Rounds that pass during a long step, or while the machine sleeps, are skipped.
        """
        clock, pace = self.organs.clock, self.pace
        while (now := clock.round()) < until_round and not pace.stopped:
            if now < 0 or self.done_with(now):
                pace.phase = "waiting_for_genesis" if now < 0 else "waiting"
                await pace.rest(min(max(clock.seconds_left(now), SHORTEST_SLEEP), pace.longest_rest))
            else:
                await self.one_pass(now)
                await pace.may_go_on()

    def done_with(self, round: int) -> bool:
        """Return whether this round has had all its passes, or lies a little behind: no round is sampled twice when a
        clock is set back. One that is set back by more had been wrong before, and time begins anew."""
        back = self.round - round
        if back <= 0:
            return back == 0 and self.passes >= self.habits.passes
        if back <= self.organs.prompts.manifest.limits.max_age_rounds + SET_BACK_MARGIN:
            return True
        self.organs.gatherer.counters.add("clock", "set_back")
        self.organs.lags.restore([[], []])
        return False

    async def one_pass(self, round: int) -> None:
        """Make one pass of the round: from drawing prompts to the update."""
        watch = Stopwatch()
        self.enter(round)
        alarm = await self.canary.look(round) if self.canary else None
        self.pace.phase = "sampling"
        own = await self.sample(round, watch) if self.habits.samples else []
        if self.habits.shares:
            for own_set in own:
                self.organs.gatherer.remember_own(own_set)
                await self.organs.publisher.publish(own_set)
            self.lane.offer(own)
        self.pace.phase = "gathering"
        peers = await self.gather(own)
        self.pace.phase = "updating"
        mixed = self.organs.mixer.mix(own, peers)
        report = await self.update(mixed.rows, watch)
        if self.canary:
            await self.canary.note(own, mixed, report)
        self.record(RoundResult(round, self.passes, own, peers, mixed, report, watch, self._news(), alarm))

    def enter(self, round: int) -> None:
        """Begin a pass: note the round, let in what was held for it, stop serving what nobody may use any more."""
        if round != self.round:
            self.round, self.passes = round, 0
        self.passes += 1
        self.organs.lags.began(round, self.organs.trainer.policy.version)
        self.organs.gatherer.enter_round(round)
        self.organs.publisher.forget(round - self.organs.prompts.manifest.limits.max_age_rounds, round)

    def adopt(self, manifest: Manifest) -> None:
        """Live by a new revision of the manifest from now on; tasks and time never change between revisions."""
        gatherer = self.organs.gatherer
        self.organs.prompts.manifest = manifest
        gatherer.gate.adopt(manifest)
        context = replace(gatherer.screening.context, manifest=manifest)
        gatherer.screening = replace(gatherer.screening, context=context)

    async def sample(self, round: int, watch: Stopwatch) -> list[OwnSet]:
        """Draw this pass's prompts, sample G completions for each and grade them."""
        organs, habits = self.organs, self.habits
        shared, own = habits.slots(self.passes - 1)
        key = organs.publisher.identity.key
        version = organs.trainer.policy.version
        passes = self.passes

        def work() -> list[OwnSet]:
            self.journal(round, passes, version)
            drawn = list(organs.prompts.of_round(round, key, shared, own))
            texts = [prompt.text for _, prompt in drawn]
            with watch.measure("sample"):
                groups = organs.engine.sample(texts, habits.mixing.group_size, habits.sampling, self.generator)
            with watch.measure("grade"):
                pairs = [(prompt, c.text) for (_, prompt), group in zip(drawn, groups, strict=True) for c in group]
                rewards = iter([reward_of(score) for score in organs.grader.grade(pairs)])
            return [
                OwnSet(derived, prompt, tuple(group), tuple(next(rewards) for _ in group), version, round)
                for (derived, prompt), group in zip(drawn, groups, strict=True)
            ]

        return await organs.compute.run("sample", work)

    async def gather(self, own: Sequence[OwnSet]) -> list[PeerSet]:
        """Choose J sets of peers, waiting a bounded time for them; none while the start gate is shut."""
        mixing = self.habits.mixing
        if not self.habits.shares or mixing.external == 0:
            return []
        if self.organs.publisher.attack is not None:
            await self.organs.gatherer.eavesdrop(self.organs.publisher.attack.overhear)
            return []
        self.start_gate.note(own)
        if self.habits.samples and not self.start_gate.open:
            self.organs.gatherer.counters.add("mixing", "start_gate")
            return []
        if self.canary and self.canary.frozen(self.round):
            return []
        self.organs.gatherer.screening.assessor.note(own)
        wait = self.habits.wait_seconds
        if self.organs.prompts.manifest.limits.max_age_rounds == 0:
            # Synchronous: everybody chooses from all that the round brought, whoever was first.
            await self.pace.rest(wait)
            wait = 0.0
        now = asyncio.get_running_loop().time()
        until, stop = now + wait, now + self.habits.wait_seconds
        asked = frozenset(own_set.prompt_hash for own_set in own) if mixing.mix == "joined" else None
        if asked is not None:
            most = FETCHES_PER_SET * mixing.external
            order = Order(
                mixing.external,
                most,
                until,
                stop,
                lambda pointer: pointer.announcement.header.prompt_hash in asked,
                lambda _: True,
                self.habits.hurried,
            )
        else:
            order = Order(
                mixing.external,
                mixing.external,
                until,
                stop,
                lambda _: True,
                lambda peer: not peer.uniform,
                self.habits.hurried,
            )
        signed = await self.organs.gatherer.usable_sets(order, self.rng)
        return signed + await self.lane.sets(self.round, mixing.external, asked)

    def _news(self) -> dict[str, int]:
        """Return what was counted since the last pass, by layer and reason."""
        counts = self.organs.gatherer.counters.state()
        news = {name: count - self.told.get(name, 0) for name, count in counts.items()}
        self.told = counts
        return {name: count for name, count in news.items() if count}

    async def update(self, rows: list[Row], watch: Stopwatch) -> StepReport:
        """Train on the rows; all minibatches together are one policy version."""
        organs = self.organs
        version = organs.trainer.policy.version
        if not self.habits.learns:
            return StepReport(False, "this node does not learn", version)
        if not rows:
            return StepReport(False, "no signal: all groups uniform", version)
        share = self.habits.mixing.external / max(1, self.habits.mixing.local)
        cap = partial(cap_operators, share=share, lane=self.lane.share) if organs.gatherer.fair else None

        def work() -> StepReport:
            with watch.measure("update"):
                report = organs.trainer.update(rows, cap)
                organs.engine.refresh()
            return report

        round = organs.clock.round()
        report = await organs.compute.run("update", work)
        for begun in range(round + 1, organs.clock.round() + 1):
            organs.lags.began(begun, version)  # while the update ran: it was not completed when that round began
        return report


def cap_operators(advantages: list[float], operators: list[str], share: float, lane: float = 0.0) -> list[float]:
    """Return one factor a row: peers' rows are capped by operator, own rows (operator "") are left alone.

    `share` is J / I: all peers together are meant to weigh so much of what the own rows weigh. The unsigned lane stands
    apart: it gets at most the part `lane` of that, and counts as no operator among the signed ones.
    """
    own = math.fsum(abs(a) for a, operator in zip(advantages, operators, strict=True) if not operator)
    unsigned = [at for at, operator in enumerate(operators) if operator == UNSIGNED_OPERATOR]
    signed = [at for at, operator in enumerate(operators) if operator and operator != UNSIGNED_OPERATOR]
    masses = [abs(advantages[at]) for at in signed]
    factors = [1.0] * len(operators)
    for at, factor in zip(signed, row_factors([operators[at] for at in signed], masses, own * share), strict=True):
        factors[at] = factor
    mass, most = math.fsum(abs(advantages[at]) for at in unsigned), own * share * lane
    for at in unsigned:
        factors[at] = min(1.0, most / mass) if mass > 0.0 else 1.0
    return factors
