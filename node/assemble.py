"""Wiring: how a node of a simulated swarm is put together, from the same parts as any other node."""

import hashlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from shoal.defenses.attacks import Attack
from shoal.defenses.config import DefenseConfig
from shoal.defenses.duplicates import DuplicateMemory
from shoal.defenses.gate import Gate, GateContext
from shoal.defenses.screen import ScreenContext, ScreenMemory
from shoal.defenses.verdict import LAYERS
from shoal.node.compute import InlineCompute
from shoal.node.config import Mixing, SimulateConfig
from shoal.node.draw import LocalPrompts
from shoal.node.events import RoundResult
from shoal.node.gather import Gatherer, Screening
from shoal.node.loop import Habits, Node, Organs
from shoal.node.mix import Mixer
from shoal.node.publish import Claims, Publisher
from shoal.node.regrade import Regrader
from shoal.protocol.identity import Identity
from shoal.protocol.manifest import Admission, Manifest, SwarmLimits, TaskEntry
from shoal.protocol.sequence import SequenceCounter
from shoal.protocol.staleness import Clock, LagClock
from shoal.protocol.transport import Transport
from shoal.protocol.wire import SamplerSettings
from shoal.trainer.algorithm import AlgorithmSpec, OptimizerSpec, recipe
from shoal.trainer.engine import Sampling, make_engine
from shoal.trainer.model import Policy
from shoal.trainer.step import Trainer
from shoal.trainer.tasks.registry import TaskRegistry
from shoal.trainer.verify import Grader

MILLION = 1_000_000  # sampler settings travel as integers in millionths
OPTIONAL_LAYERS = tuple(layer for layer in LAYERS if layer != "schema")  # without a schema there is nothing to train on


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
    sampling = sampling_of(config, registry)
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


def sampling_of(config: SimulateConfig, registry: TaskRegistry) -> Sampling:
    """Return the sampler settings: completions as long as asked, or as the most talkative task suggests."""
    longest = config.learning.max_tokens or max(registry.task(name).max_tokens for name in registry.names)
    return Sampling(temperature=config.learning.temperature, max_tokens=longest)


def algorithm_of(config: SimulateConfig, max_tokens: int) -> AlgorithmSpec:
    """Return the recipe with the options that were given."""
    return recipe(
        config.learning.recipe,
        baseline=config.mixing.baseline,
        peer_rows=config.mixing.peer_rows,
        entropy=config.learning.entropy,
        minibatches=config.learning.minibatches,
        max_tokens=max_tokens,
    )


def defenses_of(config: SimulateConfig) -> DefenseConfig:
    """Return the defences with the layers that were named switched off."""
    named = set(config.swarm.defenses_off)
    return DefenseConfig.without(OPTIONAL_LAYERS if "all" in named else named)


def assemble(
    commons: Commons, role: Role, policy: Policy, transport: Transport, record: Callable[[RoundResult], None]
) -> Node:
    """Wire one node."""
    config, manifest = commons.config, commons.manifest
    seed = f"{config.swarm.seed}/{role.number}"
    clock = Clock(commons.now, manifest.genesis, manifest.round_seconds)
    lags = LagClock(manifest.limits.max_age_rounds + 2)
    prompts = LocalPrompts(manifest, commons.registry)
    sampling = sampling_of(config, commons.registry)
    identity = simulated_identity(config.swarm.seed, role.number)
    gate = _gate(commons, identity, clock, lags, policy)
    claims = _claims(manifest, policy, sampling)
    publisher = Publisher(identity, transport, SequenceCounter(lambda _: None), claims, gate.counters)
    if role.attack is not None:
        publisher.corrupt(role.attack, random.Random(f"{seed}/attack"))
    optimizer = OptimizerSpec(lr=config.learning.lr, dtype=config.learning.dtype)
    organs = Organs(
        clock=clock,
        lags=lags,
        compute=InlineCompute(manifest.round_seconds, slowness(config, role.number), random.Random(f"{seed}/speed")),
        prompts=prompts,
        engine=make_engine(policy),
        grader=commons.grader,
        trainer=Trainer(policy, algorithm_of(config, sampling.max_tokens), optimizer),
        mixer=Mixer(role.mixing, policy, clock, lags, sampling.temperature, gate.context.config.on("mixing")),
        publisher=publisher,
        gatherer=_gatherer(commons, transport, prompts, gate, policy),
    )
    return Node(organs, _habits(config, role, sampling), seed, record)


def _claims(manifest: Manifest, policy: Policy, sampling: Sampling) -> Claims:
    millionths = [round(value * MILLION) for value in (sampling.temperature, sampling.top_p)]
    settings = SamplerSettings(millionths[0], millionths[1], sampling.top_k, sampling.max_tokens)
    return Claims(manifest.swarm_id, policy.lineage, policy.tokenizer_hash, settings)


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


def _gate(commons: Commons, identity: Identity, clock: Clock, lags: LagClock, policy: Policy) -> Gate:
    context = GateContext(commons.manifest, identity.key, config=defenses_of(commons.config))
    return Gate(context, clock, lambda round: lags.lag(round, policy.version))


def _gatherer(commons: Commons, transport: Transport, prompts: LocalPrompts, gate: Gate, policy: Policy) -> Gatherer:
    registry, config = commons.registry, gate.context.config
    context = ScreenContext(
        manifest=commons.manifest,
        rebuild=prompts.rebuild,
        claimed=prompts.claimed,
        own_tokenizer=policy.tokenizer_hash,
        max_chars=lambda task: registry.task(task).max_chars,
        decode_ids=policy.decode,
        vocabulary=len(policy.tokenizer),
        special_tokens=tuple(policy.tokenizer.all_special_tokens),
        config=config,
    )
    memory = ScreenMemory(DuplicateMemory(config, gate.counters), gate.reputation, gate.counters)
    regrader = Regrader(registry, commons.grader, gate.counters)
    return Gatherer(transport, gate, Screening(context, memory), regrader)
