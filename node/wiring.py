"""Wiring: how a node is put together. Daemon and simulator hand in other surroundings and get the same node."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from shoal.defenses.appraisal import AppraisalMemory
from shoal.defenses.canary import Canary
from shoal.defenses.config import DefenseConfig
from shoal.defenses.duplicates import DuplicateMemory
from shoal.defenses.gate import Gate, GateContext
from shoal.defenses.invariants import check_invariants
from shoal.defenses.judge import Judge
from shoal.defenses.newcomers import PrefixOf, no_prefix
from shoal.defenses.screen import ScreenContext, ScreenMemory
from shoal.defenses.verdict import LAYERS, Counters
from shoal.node.anchors import NO_ANCHORS, Anchors
from shoal.node.appraise import AppraisalContext, Assessor
from shoal.node.canary import CanaryWatch, Eyes
from shoal.node.compute import Compute
from shoal.node.config import CanaryOptions, Learning, Mixing
from shoal.node.draw import LocalPrompts
from shoal.node.engine_options import EngineOptions
from shoal.node.events import RoundResult
from shoal.node.gather import Gatherer, Screening
from shoal.node.heldout import canary_prompts
from shoal.node.loop import Habits, Node, Organs
from shoal.node.mix import Mixer
from shoal.node.publish import Claims, Publisher
from shoal.node.regrade import Regrader
from shoal.protocol.identity import Identity
from shoal.protocol.manifest import Manifest
from shoal.protocol.sequence import SequenceCounter
from shoal.protocol.staleness import LAG_MEMORY, Clock, LagClock
from shoal.protocol.transport import Transport
from shoal.protocol.wire import MILLION, SamplerSettings
from shoal.trainer.algorithm import RECIPES, AlgorithmSpec, OptimizerSpec, recipe
from shoal.trainer.engine import Sampling, VllmOptions, make_engine
from shoal.trainer.model import Policy
from shoal.trainer.step import Trainer
from shoal.trainer.tasks.base import Prompt
from shoal.trainer.tasks.registry import TaskRegistry
from shoal.trainer.verify import Grader

OPTIONAL_LAYERS = tuple(layer for layer in LAYERS if layer != "schema")  # without a schema there is nothing to train on


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a node stands in: who it is, its swarm, its tasks and graders, network, time, and where heavy work runs.

    `prefix_of` tells where on the network a key lives, as far as that means anything.
    """

    identity: Identity
    manifest: Manifest
    registry: TaskRegistry
    grader: Grader
    transport: Transport
    clock: Clock
    compute: Compute
    sequences: SequenceCounter
    prefix_of: PrefixOf = no_prefix


@dataclass(frozen=True, slots=True)
class Conduct:
    """What a node does: how it learns, its habits in a round, its defences, and the seed of its random choices.

    `evaluated` held-out prompts are kept for evaluations: the canary leaves them alone. `judge` makes the judge, if
    there is to be one, with the node's counters; `anchors` are base models of other lineages.
    """

    learning: Learning
    habits: Habits
    defenses: DefenseConfig
    seed: str
    canary: CanaryOptions = CanaryOptions()
    evaluated: int = 0
    judge: Callable[[Counters], Judge | None] = lambda _: None
    anchors: Anchors = NO_ANCHORS
    engine: EngineOptions = EngineOptions()


def sampling_of(learning: Learning, registry: TaskRegistry) -> Sampling:
    """Return the sampler settings: completions as long as asked, or as the most talkative task suggests."""
    longest = learning.max_tokens or max(registry.task(name).max_tokens for name in registry.names)
    return Sampling(temperature=learning.temperature, max_tokens=longest)


def algorithm_of(learning: Learning, mixing: Mixing, max_tokens: int, fair: bool = True) -> AlgorithmSpec:
    """Return the recipe with the options that were given.

    Without robust mixing (`fair` False) peers' rows are treated as the published recipe of swarm sampling does: they
    enter the baseline and are divided by the group's std (arXiv 2509.08721).
    """
    chosen = RECIPES[learning.recipe]
    median = mixing.centre == "median"
    return recipe(
        learning.recipe,
        centre=mixing.centre,
        scale="mad" if median and chosen.scale == "group_std" else chosen.scale,
        shape="noise_aware" if mixing.noise > 0 else chosen.shape,
        flip_rate=mixing.noise,
        damping=mixing.damping,
        baseline=mixing.baseline if fair else "mixed",
        scale_peers=not fair,
        peer_rows=mixing.peer_rows,
        entropy=learning.entropy,
        minibatches=learning.minibatches,
        max_tokens=max_tokens,
    )


def defenses_without(layers: tuple[str, ...]) -> DefenseConfig:
    """Return the defences with the named layers switched off ("all" for every one); `UsageError` for an unknown one."""
    return DefenseConfig.without(OPTIONAL_LAYERS if "all" in layers else layers)


def wire(surroundings: Surroundings, conduct: Conduct, policy: Policy, record: Callable[[RoundResult], None]) -> Node:
    """Put one node together."""
    manifest, learning, habits = surroundings.manifest, conduct.learning, conduct.habits
    clock, sampling = surroundings.clock, habits.sampling
    lags = LagClock(max(LAG_MEMORY, manifest.limits.max_age_rounds + 2))  # a revision may raise the bound
    prompts = LocalPrompts(manifest, surroundings.registry)
    key, prefix_of = surroundings.identity.key, surroundings.prefix_of
    context = GateContext(manifest, key, config=conduct.defenses, prefix_of=prefix_of)
    gate = Gate(context, clock, lambda round: lags.lag(round, policy.version))
    claims = _claims(manifest, policy, sampling)
    publisher = Publisher(surroundings.identity, surroundings.transport, surroundings.sequences, claims, gate.counters)
    optimizer = OptimizerSpec(
        lr=learning.lr,
        dtype=learning.dtype,
        micro_tokens=learning.micro_tokens or None,
        checkpointing=learning.checkpointing,
        lora_rank=learning.lora_rank,
    )
    fair = conduct.defenses.on("mixing")
    algorithm = algorithm_of(learning, habits.mixing, sampling.max_tokens, fair)
    trainer = Trainer(policy, replace(algorithm, importance_cap=conduct.engine.cap(learning.dtype)), optimizer)
    organs = Organs(
        clock=clock,
        lags=lags,
        compute=surroundings.compute,
        prompts=prompts,
        engine=make_engine(policy, vllm_of(conduct), gate.counters.add),
        grader=surroundings.grader,
        trainer=trainer,
        mixer=Mixer(habits.mixing, policy, clock, lags, sampling.temperature, fair),
        publisher=publisher,
        gatherer=_gatherer(surroundings, gate, prompts, _assessor(conduct, gate, prompts, trainer)),
    )
    node = Node(organs, habits, conduct.seed, record)
    node.canary = _canary(organs, conduct, surroundings.registry)
    return node


def vllm_of(conduct: Conduct) -> VllmOptions | None:
    """Return how vLLM is to be started; None when the torch engine samples."""
    options = conduct.engine
    if options.engine != "vllm":
        return None
    return VllmOptions(
        dtype=conduct.learning.dtype,
        kv_cache_mb=options.engine_cache_mb,
        max_rows=options.engine_rows,
        context=options.engine_context,
        sleep=options.engine_sleep,
    )


def _canary(organs: Organs, conduct: Conduct, registry: TaskRegistry) -> CanaryWatch | None:
    """Return the canary of a node that learns from peers, unless the layer is off."""
    habits, options, evaluated = conduct.habits, conduct.canary, conduct.evaluated
    mixes = habits.learns and habits.shares and habits.mixing.external > 0
    if not mixes or not conduct.defenses.on("canary"):
        return None
    counters = organs.gatherer.counters

    def violates(text: str, prompt: Prompt) -> bool:
        return not check_invariants(text, prompt.text, organs.prompts.invariants(prompt.task)).usable

    eyes = Eyes(
        prompts=lambda: canary_prompts(registry, options.canary_items, evaluated),
        engine=organs.engine,
        grader=organs.grader,
        sampling=habits.sampling,
        trainer=organs.trainer,
        violates=violates,
    )
    watch = CanaryWatch(options, Canary(conduct.defenses, counters), eyes, organs.gatherer, organs.compute)
    watch.seed(conduct.seed)
    return watch


def _claims(manifest: Manifest, policy: Policy, sampling: Sampling) -> Claims:
    millionths = [round(value * MILLION) for value in (sampling.temperature, sampling.top_p)]
    settings = SamplerSettings(millionths[0], millionths[1], sampling.top_k, sampling.max_tokens)
    return Claims(manifest.swarm_id, policy.lineage, policy.tokenizer_hash, settings)


def screen_context(prompts: LocalPrompts, policy: Policy, config: DefenseConfig) -> ScreenContext:
    """Return what a node with this policy screens by: the manifest and the tasks are those of its prompts."""
    registry = prompts.registry
    return ScreenContext(
        manifest=prompts.manifest,
        rebuild=prompts.rebuild,
        claimed=prompts.claimed,
        own_tokenizer=policy.tokenizer_hash,
        max_chars=lambda task: registry.task(task).max_chars,
        decode_ids=policy.decode,
        vocabulary=len(policy.tokenizer),
        special_tokens=tuple(policy.tokenizer.all_special_tokens),
        config=config,
    )


def _assessor(conduct: Conduct, gate: Gate, prompts: LocalPrompts, trainer: Trainer) -> Assessor:
    habits = conduct.habits
    context = AppraisalContext(
        rules=prompts.invariants,
        temperature=habits.sampling.temperature,
        max_tokens=habits.sampling.max_tokens,
        sets=habits.mixing.local,
        oldest=prompts.manifest.limits.max_age_rounds,
        judge=conduct.judge(gate.counters),
        anchors=conduct.anchors,
    )
    return Assessor(trainer, context, AppraisalMemory(conduct.defenses, gate.counters))


def _gatherer(surroundings: Surroundings, gate: Gate, prompts: LocalPrompts, assessor: Assessor) -> Gatherer:
    config = gate.context.config
    context = screen_context(prompts, assessor.trainer.policy, config)
    memory = ScreenMemory(DuplicateMemory(config, gate.counters), gate.reputation, gate.counters)
    regrader = Regrader(prompts.registry, surroundings.grader, gate.counters, config.on("verifier"))
    screening = Screening(context, memory, assessor)
    return Gatherer(surroundings.transport, gate, screening, regrader, surroundings.compute)
