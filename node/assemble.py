"""Wiring: how a node of a simulated swarm is put together, from the same parts as any other node."""

import hashlib
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from shoal.defenses.attacks import Attack, Knowledge
from shoal.defenses.config import DefenseConfig
from shoal.defenses.vouched import answer_span, vouched_tokens
from shoal.node.anchors import Anchors
from shoal.node.compute import InlineCompute
from shoal.node.config import Mixing, SimulateConfig
from shoal.node.events import RoundResult
from shoal.node.judges import make_judge
from shoal.node.loop import Habits, Node
from shoal.node.wiring import Conduct, Surroundings, defenses_without, sampling_of, wire
from shoal.protocol.identity import Identity
from shoal.protocol.manifest import Admission, Manifest, SwarmLimits, TaskEntry
from shoal.protocol.sequence import SequenceCounter
from shoal.protocol.staleness import Clock
from shoal.protocol.transport import Transport
from shoal.protocol.wire import MILLION
from shoal.trainer.batch import Origin, foreign_rows
from shoal.trainer.engine import Sampling
from shoal.trainer.evidence import RowEvidence
from shoal.trainer.model import Policy
from shoal.trainer.tasks.registry import TaskRegistry
from shoal.trainer.verify import Grader


@dataclass(frozen=True, slots=True)
class Role:
    """What one node of a simulated arm does: how it mixes, how much it samples, and whether it attacks."""

    number: int
    mixing: Mixing
    prompts: int
    shared: int
    shares: bool
    attack: Attack | None = None


@dataclass(frozen=True, slots=True)
class Commons:
    """What the nodes of one process have in common: configuration, manifest, tasks and the verifier pool."""

    config: SimulateConfig
    manifest: Manifest
    registry: TaskRegistry
    grader: Grader
    now: Callable[[], float]


def simulated_identity(seed: int, number: int) -> Identity:
    """Return the identity of a simulated node, equal for equal seeds. Never use it on a real network."""
    return Identity.from_seed(hashlib.sha256(f"shoal/simulate/{seed}/{number}".encode()).digest())


def simulated_manifest(config: SimulateConfig, registry: TaskRegistry, slots: int) -> Manifest:
    """Return the signed manifest of a simulated swarm: an allow-list with one operator for each node."""
    founder = simulated_identity(config.swarm.seed, 0)
    nodes = range(config.swarm.nodes)
    keys = {f"node-{number}": [simulated_identity(config.swarm.seed, number).key.hex()] for number in nodes}
    sampling = sampling_of(config.learning, registry)
    limits = SwarmLimits(
        max_tokens=max(4096, sampling.max_tokens),
        temperature=(0, max(2 * MILLION, round(sampling.temperature * MILLION))),
        max_age_rounds=config.swarm.max_age_rounds,
        max_lag=config.swarm.max_lag,
        shared_slots=max(64, slots),
        own_slots=max(64, slots),
        rollouts_per_key_per_round=max(64, slots),
    )
    return Manifest(
        name="simulated",
        founder=founder.key.hex(),
        genesis=0,
        round_seconds=config.links.round_seconds,
        tasks=[TaskEntry(name=s.name, weight=s.weight, config=dict(s.config)) for s in registry.specs],
        limits=limits,
        admission=Admission(mode="allow-list", operators=keys),
    ).sign(founder)


def slowness(config: SimulateConfig, number: int) -> float:
    """Return how many times longer than the median node this one takes: exp(spread * u), u spread evenly in [-1, 1]."""
    nodes = config.swarm.nodes
    place = 0.0 if nodes == 1 else 2.0 * number / (nodes - 1) - 1.0
    return math.exp(config.links.speed_spread * place)


def assemble(
    commons: Commons, role: Role, policy: Policy, transport: Transport, record: Callable[[RoundResult], None]
) -> Node:
    """Wire one node of a simulated arm."""
    config, manifest = commons.config, commons.manifest
    seed = f"{config.swarm.seed}/{role.number}"
    speed = random.Random(f"{seed}/speed")
    surroundings = Surroundings(
        identity=simulated_identity(config.swarm.seed, role.number),
        manifest=manifest,
        registry=commons.registry,
        grader=commons.grader,
        transport=transport,
        clock=Clock(commons.now, manifest.genesis, manifest.round_seconds),
        compute=InlineCompute(manifest.round_seconds, slowness(config, role.number), speed),
        sequences=SequenceCounter(lambda _: None),
    )
    habits = _habits(config, role, sampling_of(config.learning, commons.registry))
    defenses = defenses_without(config.swarm.defenses_off)
    judge = partial(make_judge, config.defenses, defenses, rng=random.Random(f"{seed}/judge"))
    anchors = Anchors(config.defenses.anchors)
    conduct = Conduct(
        config.learning, habits, defenses, seed, config.canary, config.run.eval_items, judge=judge, anchors=anchors
    )
    node = wire(surroundings, conduct, policy, record)
    if role.attack is not None:
        role.attack.know(_knowledge(node, habits, conduct.defenses, config.swarm.rounds))
        node.organs.publisher.corrupt(role.attack, random.Random(f"{seed}/attack"))
    return node


def _knowledge(node: Node, habits: Habits, defenses: DefenseConfig, rounds: int) -> Knowledge:
    """Return what an attacker has from running this program: the thresholds, and how its own model reads a text."""
    trainer, temperature = node.organs.trainer, habits.sampling.temperature
    policy = trainer.policy

    def reads(prompt: str, completions: Sequence[str], answer: str | None) -> list[RowEvidence]:
        texts = [(text, True) for text in completions]
        rows = foreign_rows(policy, prompt, texts, [1.0] * len(texts), Origin(0, temperature=temperature))
        return trainer.evidence(rows, [vouched(text, answer) for text in completions])

    def vouched(text: str, answer: str | None) -> list[bool]:
        span = None if answer is None else answer_span(text, answer)
        return vouched_tokens(policy.completion_offsets(text, finished=True), span, finished=True)

    return Knowledge(
        config=defenses,
        max_tokens=habits.sampling.max_tokens,
        tokens=lambda text: len(policy.encode_completion(text, finished=False)),
        reads=reads,
        rounds=rounds,
    )


def _habits(config: SimulateConfig, role: Role, sampling: Sampling) -> Habits:
    return Habits(
        mixing=role.mixing,
        sampling=sampling,
        prompts=role.prompts,
        shared=role.shared,
        wait_seconds=config.links.wait_fraction * config.links.round_seconds,
        passes=config.links.passes,
        shares=role.shares,
        learns=role.attack is None,
    )
