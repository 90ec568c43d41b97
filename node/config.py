"""What a node and a simulated swarm can be told, and the checks made before anything is loaded.

Each class is one group of options in `shoal simulate --help`; the docstring of a field is its help text.
"""

import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from shoal.node.defense_options import DefenseOptions, check_defenses
from shoal.protocol.errors import UsageError

Arm = Literal["swarm", "isolated", "isolated_total"]
MixMode = Literal["whole", "joined"]
RowRule = Literal["all", "positive", "likely"]
Recipe = Literal["grpo", "dr_grpo", "dapo"]


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """What one update is made of."""

    local: int = 4
    """I: own rollouts in one update."""
    external: int = 4
    """J: peers' rollouts in one update; 0 is plain GRPO."""
    group_size: int = 8
    """G: completions sampled for each prompt."""
    tasks_per_node: int | None = None
    """Prompts that a node samples each round (I + J when left out)."""
    mix: MixMode = "whole"
    """whole: a peer's rollout is a group of its own; joined: its completions enter the own group of the same prompt."""
    peer_rows: RowRule = "positive"
    """Which rows of peers train: all, only positive advantages, or likely: negatives too where the own policy finds
    them likely."""
    baseline: Literal["local", "mixed"] = "local"
    """What joined rows are measured against: own rows only, or own and peers' rows. With the defence layer mixing off
    it is mixed, and peers' rows are divided by the group's std like own ones, as in the published recipe."""
    centre: Literal["mean", "median"] = "mean"
    """Middle of a group's rewards. The median withstands single odd rewards: an odd G is sampled, and the row that is
    the median does not train; the std becomes a median deviation. No help against poison that earns true rewards."""
    noise: float = 0.0
    """Share of rewards that the verifier is assumed to flip, e.g. 0.1: groups whose spread flips could explain weigh
    less, or nothing. 0 for none."""
    damping: float | None = None
    """TAU: tokens of peers' rows that are less likely here than this probability train less, in proportion. Not damped
    when left out."""
    start_gate: float = 0.0
    """RATE: peers' rollouts are trained on once the mean reward of own ones over five passes has reached this, e.g.
    0.3; 0 for from the beginning."""
    shared_prompts: int | None = None
    """Prompts a round that the whole swarm samples alike. When left out: all of them when joined, and for `run` in an
    open swarm, where peers learn from shared prompts only; else none."""

    @property
    def sampled(self) -> int:
        """Return the number of prompts that a node samples in one pass."""
        return self.local + self.external if self.tasks_per_node is None else self.tasks_per_node

    @property
    def shared(self) -> int:
        """Return how many of the sampled prompts are shared ones."""
        if self.shared_prompts is not None:
            return self.shared_prompts
        return self.sampled if self.mix == "joined" else 0


@dataclass(frozen=True, kw_only=True)
class Learning:
    """The policy and how it is updated."""

    model: str = "default"
    """`default`, or a directory that transformers can load (config, weights, tokenizer)."""
    recipe: Recipe = "grpo"
    """The method of group-relative policy optimization."""
    lr: float = 3e-4
    """Learning rate of AdamW."""
    minibatches: int = 2
    """Optimizer steps in one update."""
    entropy: float = 0.01
    """Coefficient of the entropy bonus."""
    temperature: float = 1.0
    """Sampling temperature."""
    max_tokens: int | None = None
    """Longest completion in tokens (what the tasks suggest when left out)."""
    chat_template: Annotated[bool, Parameter(negative="--no-chat-template")] = True
    """Prompts go through the tokenizer's chat template where there is one; --no-chat-template for few-shot prompts."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the forward and backward pass."""
    micro_tokens: int = 2048
    """Tokens of one forward pass: bounds the memory; 0 finds it from what is free, and runs then differ by machine."""
    checkpointing: bool = False
    """Keep little for the backward pass and compute it again: for models that do not fit otherwise."""
    lora_rank: int | None = None
    """Train adapters of this rank beside the frozen weights (LoRA), all weights when left out."""
    device: str = "cpu"
    """Where the models live, e.g. cpu or cuda:0."""


@dataclass(frozen=True, kw_only=True)
class SwarmOptions:
    """Who takes part, and in what."""

    nodes: int = 4
    """Number of nodes, 1 to 32."""
    rounds: int = 60
    """Rounds of swarm time."""
    tasks: str = "strings"
    """A named set, or task names separated by commas, e.g. rg/chain_sum,rg/gcd."""
    task_config: Path | None = None
    """TOML file with one table of settings for each task name."""
    seed: int = 0
    """Seed of everything random."""
    start: Literal["auto", "skills", "same"] = "auto"
    """skills: each node is tuned to be fair at two tasks and poor at the rest (string tasks only); same: as loaded;
    auto: skills for the default model on the default tasks, else same."""
    own_skill: float = 0.4
    """Share of right answers towards which a node is tuned on its own two tasks (it starts at about half of that)."""
    other_skill: float = 0.005
    """The same on all other tasks."""
    attack: tuple[str, ...] = ()
    """NAME:SHARE of malicious nodes, e.g. text:0.25, rounded to whole nodes, at least one; may be repeated.
    `shoal redteam --list` lists the names."""
    defenses_off: tuple[str, ...] = ()
    """Defence layers to switch off, to see what they are worth: admission, quota, header, provenance, text, duplicates,
    verifier, invariants, likelihood, phrases, judge, mixing, reputation, canary; `all` for every one. Without mixing,
    peers' rows train as in the published recipe: they enter the baseline and are divided by the group's std."""
    max_age_rounds: int = 4
    """Oldest rollout of a peer that may be trained on, in rounds; 0 is synchronous."""
    max_lag: int = 8
    """Most updates that a node may have made since a rollout's round began."""


@dataclass(frozen=True, kw_only=True)
class CanaryOptions:
    """How a node looks at its own model, and what it does when that has picked something up from peers."""

    canary_every: int = 25
    """Passes between two runs of the canary prompts; sooner when the node's own samples look suspicious."""
    canary_items: int = 64
    """Canary prompts: held out, and apart from those of evaluations."""
    freeze_rounds: int = 16
    """Rounds without peers' rollouts after an alarm; doubled for alarms that follow soon, up to eight times as many."""


@dataclass(frozen=True, kw_only=True)
class Links:
    """The simulated network and clock."""

    round_seconds: int = 60
    """Length of a round in virtual seconds."""
    speed_spread: float = 0.5
    """How unequal the nodes' speeds are: 0 is lockstep, 1 lets the slowest take about e times the median."""
    passes: int = 1
    """Most passes that a fast node makes in one round, each with further own prompts."""
    wait_fraction: float = 0.3
    """Longest wait for peers' rollouts, as a share of a round."""
    delay: float = 0.2
    """Mean one-way delay in virtual seconds."""
    loss: float = 0.0
    """Share of announcements lost on each link."""
    partition: tuple[str, ...] = ()
    """FROM-TO:0,1|2,3 cuts the swarm into groups between two rounds; may be repeated."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where results go, and what is measured."""

    out: Path | None = None
    """Folder for the report, the metrics and the checkpoints (the next free number under runs/ when left out)."""
    resume: bool = False
    """Go on with the run in the output folder (the latest one under runs/ when left out)."""
    force: bool = False
    """Replace an earlier run in the output folder."""
    arms: tuple[Arm, ...] = ("swarm", "isolated", "isolated_total")
    """What to compare: the swarm, the same nodes isolated, and isolated at the swarm's total sampling cost."""
    eval_every: int = 5
    """Rounds between two evaluations on held-out prompts."""
    eval_items: int = 128
    """Held-out prompts in one evaluation."""
    checkpoint_every: int = 25
    """Rounds after which the swarm comes to rest and is saved."""
    threads: int = 1
    """Threads for tensor arithmetic; results are equal only for equal numbers of threads."""


@dataclass(frozen=True)
class SimulateConfig:
    """Everything `shoal simulate` was told."""

    mixing: Mixing = Mixing()
    learning: Learning = Learning()
    swarm: SwarmOptions = SwarmOptions()
    links: Links = Links()
    run: RunOptions = RunOptions()
    canary: CanaryOptions = CanaryOptions()
    defenses: DefenseOptions = DefenseOptions()

    def plain(self) -> dict[str, Any]:
        """Return the settings that shape the results as plain data; where they are written does not belong to them."""
        settings = asdict(self)
        for name in ("out", "resume", "force"):
            del settings["run"][name]
        config = settings["swarm"]["task_config"]
        settings["swarm"]["task_config"] = None if config is None else str(config.absolute())
        return settings


@dataclass(frozen=True)
class Cut:
    """A planned partition: rounds [start, end) and the groups of node numbers that can still talk."""

    start: int
    end: int
    groups: tuple[frozenset[int], ...]


def parse_attack(text: str) -> tuple[str, float]:
    """Split NAME:SHARE; raise `UsageError` when it is not of that form."""
    name, _, share = text.partition(":")
    try:
        value = float(share)
    except ValueError:
        value = math.nan
    if not 0.0 < value <= 1.0:
        raise UsageError(f"--attack {text!r}: write NAME:SHARE with a share above 0 and at most 1, e.g. text:0.25")
    return name, value


def parse_partition(text: str, nodes: int) -> Cut:
    """Read FROM-TO:0,1|2,3; raise `UsageError` for another form, an empty span or an unknown node."""
    match = re.fullmatch(r"(\d+)-(\d+):([\d,|]+)", text)
    try:
        groups = tuple(frozenset(int(n) for n in group.split(",")) for group in match[3].split("|")) if match else ()
    except ValueError:
        groups = ()
    if match is None or not groups:
        raise UsageError(f"--partition {text!r}: write FROM-TO:GROUP|GROUP with node numbers, e.g. 10-20:0,1|2,3")
    start, end = int(match[1]), int(match[2])
    if start >= end:
        raise UsageError(f"--partition {text!r}: round {start} is not before round {end}")
    members = [node for group in groups for node in group]
    if len(members) != len(set(members)) or any(node >= nodes for node in members):
        raise UsageError(f"--partition {text!r}: name each node at most once, numbers 0 to {nodes - 1}")
    return Cut(start, end, groups)


def require(condition: bool, message: str) -> None:
    """Raise `UsageError` with the message unless the condition holds."""
    if not condition:
        raise UsageError(message)


def check_mixing(mixing: Mixing, minibatches: int, peers: bool) -> None:
    """Raise `UsageError` for a mix that cannot be; `peers`: whether there can be any."""
    require(mixing.local >= 0 and mixing.external >= 0, "--local and --external cannot be negative")
    total = mixing.local + mixing.external
    require(total > 0, "--local 0 --external 0 leaves nothing to train on: give at least one of them")
    require(2 <= mixing.group_size <= 64, f"--group-size {mixing.group_size}: a group needs 2 to 64 completions")
    _check_estimate(mixing)
    require(
        mixing.external == 0 or peers,
        f"--external {mixing.external} needs peers, but --nodes is 1: add nodes or give --external 0",
    )
    require(minibatches >= 1, "--minibatches must be at least 1")
    require(
        total % minibatches == 0,
        f"the {total} sets of an update (--local {mixing.local} + --external {mixing.external}) do not divide into "
        f"--minibatches {minibatches}: choose a divisor of {total}",
    )
    require(
        mixing.sampled >= max(mixing.local, 1),
        f"--tasks-per-node {mixing.sampled} is fewer than --local {mixing.local}: a node uses no more than it samples",
    )
    joins = mixing.local > 0 and mixing.external > 0 and mixing.shared > 0
    require(
        mixing.mix == "whole" or joins,
        "--mix joined needs --local, --external and --shared-prompts above 0: peers join own groups of shared prompts",
    )
    require(
        0 <= mixing.shared <= mixing.sampled,
        f"--shared-prompts {mixing.shared} must lie between 0 and the {mixing.sampled} prompts a node samples",
    )


def _check_estimate(mixing: Mixing) -> None:
    """Check how the rewards of a group become advantages."""
    require(
        mixing.centre == "mean" or mixing.group_size % 2 == 1,
        f"--centre median needs an odd --group-size, not {mixing.group_size}: one completion is the median and "
        "does not train",
    )
    require(0 <= mixing.noise < 0.5, f"--noise {mixing.noise}: must be at least 0 and below 0.5")
    damping = mixing.damping
    require(damping is None or 0 < damping <= 1, f"--damping {damping}: must be above 0 and at most 1")
    require(0 <= mixing.start_gate <= 1, f"--start-gate {mixing.start_gate}: must lie between 0 and 1")


def check_learning(learning: Learning) -> None:
    """Raise `UsageError` for a number out of its range."""
    require(learning.lr > 0 and math.isfinite(learning.lr), f"--lr {learning.lr}: must be a positive number")
    require(learning.micro_tokens >= 0, f"--micro-tokens {learning.micro_tokens}: must be 0 (found) or positive")
    rank = learning.lora_rank
    require(rank is None or rank >= 1, f"--lora-rank {rank}: must be at least 1, e.g. 16")
    require(0 <= learning.entropy <= 1, f"--entropy {learning.entropy}: must lie between 0 and 1")
    require(0 < learning.temperature <= 5, f"--temperature {learning.temperature}: must be above 0 and at most 5")
    require(
        learning.max_tokens is None or 1 <= learning.max_tokens <= 16384,
        f"--max-tokens {learning.max_tokens}: must lie between 1 and 16384",
    )


def check_canary(canary: CanaryOptions) -> None:
    """Raise `UsageError` for a number out of its range."""
    every, items, rounds = canary.canary_every, canary.canary_items, canary.freeze_rounds
    require(1 <= every <= 10_000, f"--canary-every {every}: must lie between 1 and 10000")
    require(16 <= items <= 4096, f"--canary-items {items}: fewer than 16 show nothing, and 4096 are the most")
    require(1 <= rounds <= 10_000, f"--freeze-rounds {rounds}: must lie between 1 and 10000")


def _check_numbers(config: SimulateConfig) -> None:
    links, swarm, run = config.links, config.swarm, config.run
    require(links.round_seconds > 0, f"--round-seconds {links.round_seconds}: must be above 0")
    require(1 <= links.passes <= 16, f"--passes {links.passes}: must lie between 1 and 16")
    require(0 <= links.speed_spread <= 2, f"--speed-spread {links.speed_spread}: must lie between 0 and 2")
    require(0 <= links.wait_fraction <= 1, f"--wait-fraction {links.wait_fraction}: must lie between 0 and 1")
    require(0 <= links.delay < links.round_seconds, "--delay must be at least 0 and shorter than a round")
    require(0 <= links.loss < 1, f"--loss {links.loss}: must be at least 0 and below 1")
    require(0 <= swarm.max_age_rounds <= 256, f"--max-age-rounds {swarm.max_age_rounds}: must lie between 0 and 256")
    require(swarm.max_lag >= 0, f"--max-lag {swarm.max_lag}: cannot be negative")
    for name, value in (("--own-skill", swarm.own_skill), ("--other-skill", swarm.other_skill)):
        require(0 <= value <= 1, f"{name} {value}: must lie between 0 and 1")
    for name, count in (
        ("--eval-every", run.eval_every),
        ("--eval-items", run.eval_items),
        ("--checkpoint-every", run.checkpoint_every),
        ("--threads", run.threads),
    ):
        require(count >= 1, f"{name} {count}: must be at least 1")
    require(run.threads <= 256, f"--threads {run.threads}: must be at most 256")


def check(config: SimulateConfig) -> None:
    """Validate a configuration whole, before anything is loaded or written; raise `UsageError` with what to do."""
    swarm = config.swarm
    require(1 <= swarm.nodes <= 32, f"--nodes {swarm.nodes}: a simulated swarm has 1 to 32 nodes")
    require(swarm.rounds >= 1, f"--rounds {swarm.rounds}: must be at least 1")
    check_mixing(config.mixing, config.learning.minibatches, peers=swarm.nodes > 1)
    check_learning(config.learning)
    check_canary(config.canary)
    check_defenses(config.defenses)
    _check_numbers(config)
    shares = [parse_attack(text) for text in swarm.attack]
    attackers = sum(max(1, round(share * swarm.nodes)) for _, share in shares)
    require(
        attackers < swarm.nodes,
        f"--attack: {attackers} attackers leave no honest node among {swarm.nodes}; lower the shares",
    )
    for text in config.links.partition:
        parse_partition(text, swarm.nodes)
    require(bool(config.run.arms), "--arms: name at least one of swarm, isolated, isolated_total")
