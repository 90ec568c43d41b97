"""Wiring: how a node of a simulated swarm is put together, from the same parts as any other node."""

import hashlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from shoal.defenses.attacks import Attack
from shoal.node.compute import InlineCompute
from shoal.node.config import Mixing, SimulateConfig
from shoal.node.events import RoundResult
from shoal.node.loop import Habits, Node
from shoal.node.wiring import Conduct, Surroundings, defenses_without, sampling_of, wire
from shoal.protocol.identity import Identity
from shoal.protocol.manifest import Admission, Manifest, SwarmLimits, TaskEntry
from shoal.protocol.sequence import SequenceCounter
from shoal.protocol.staleness import Clock
from shoal.protocol.transport import Transport
from shoal.protocol.wire import MILLION
from shoal.trainer.engine import Sampling
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
    conduct = Conduct(config.learning, habits, defenses_without(config.swarm.defenses_off), seed)
    node = wire(surroundings, conduct, policy, record)
    if role.attack is not None:
        node.organs.publisher.corrupt(role.attack, random.Random(f"{seed}/attack"))
    return node


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
