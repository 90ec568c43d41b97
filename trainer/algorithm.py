"""AlgorithmSpec, one choice per axis, checked when it is made; recipes, the published names of such choices."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from shoal.protocol.errors import UsageError
from shoal.trainer.advantages import ASSIGNS, BASELINES, CENTRES, PEER_ROWS, SCALES, SHAPES
from shoal.trainer.objectives import AGGREGATIONS, GATES, KLS, RATIOS
from shoal.trainer.rewards import REWARDS


def _choose(field: str, value: str, known: Collection[str]) -> None:
    _require(value in known, f"unknown {field} {value!r}: choose one of {', '.join(known)}")


def _require(good: bool, message: str) -> None:
    if not good:
        raise UsageError(message)


@dataclass(frozen=True, slots=True)
class AlgorithmSpec:
    """How rewards become a loss. Raises UsageError for a name that no registry has or a number out of range.

    `max_tokens` is L_max, the cap on completions: set it to what the engine samples with. `clip_high` above
    `clip_low` is DAPO's asymmetric clip. `minibatches` >= 2 makes the clip matter: with one, r is 1 throughout.
    `scale_peers` divides peers' rows by the group's scale like own ones, as the published recipe of swarm sampling does
    (arXiv 2509.08721). `flip_rate` belongs to the shape `noise_aware`. `damping` is tau of `objectives.damped`.
    `importance_cap` is C of `mismatch.importance`, for engines whose log-probs are not quite the trainer's; 2 is usual.
    """

    name: str = "grpo"
    rewards: tuple[str, ...] = ("task",)
    centre: str = "mean"
    scale: str = "group_std"
    shape: str = "none"
    flip_rate: float = 0.1
    assign: str = "sequence"
    baseline: str = "local"
    scale_peers: bool = False
    peer_rows: str = "positive"
    likely_floor: float = -1.0
    drop_uniform: bool = False
    ratio: str = "token"
    gate: str = "ppo_clip"
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None
    damping: float | None = None
    importance_cap: float | None = None
    aggregation: str = "seq_mean_token_mean"
    kl: str = "none"
    beta: float = 0.0
    entropy: float = 0.01
    max_tokens: int = 256
    overlong_cache: int | None = None
    minibatches: int = 2
    epochs: int = 1

    def __post_init__(self) -> None:
        """Check the whole specification before anything is loaded."""
        for field, known in _AXES.items():
            _choose(field, getattr(self, field), known)
        for name in self.rewards:
            _choose("reward", name, REWARDS)
        _require(bool(self.rewards), 'rewards is empty: name at least one, usually "task"')
        _require(0 < self.clip_low < 1, f"clip_low is {self.clip_low}: give a number between 0 and 1, e.g. 0.2")
        _require(self.clip_high > 0, f"clip_high is {self.clip_high}: give a positive number, e.g. 0.28")
        dual = self.dual_clip
        _require(dual is None or dual > 1, f"dual_clip is {dual}: give a number above 1, e.g. 3, or leave it out")
        damping, flips = self.damping, self.flip_rate
        _require(damping is None or 0 < damping <= 1, f"damping is {damping}: give a probability above 0, e.g. 0.1")
        cap = self.importance_cap
        _require(
            cap is None or 1 <= cap < float("inf"), f"importance_cap is {cap}: give 1 or more, e.g. 2, or leave it out"
        )
        _require(0 <= flips < 0.5, f"flip_rate is {flips}: give 0 or more and less than 0.5, e.g. 0.1")
        _require(self.beta >= 0, f"beta is {self.beta}: give 0 (no KL) or more")
        _require(self.entropy >= 0, f"entropy is {self.entropy}: give 0 (no bonus) or more")
        _require(
            (self.kl == "none") == (self.beta == 0), 'kl and beta go together: kl = "k3" needs beta > 0, e.g. 0.04'
        )
        for field in ("max_tokens", "minibatches", "epochs"):
            _require(getattr(self, field) >= 1, f"{field} is {getattr(self, field)}: give 1 or more")
        cache = self.overlong_cache
        _require(cache is None or 1 <= cache <= self.max_tokens, f"overlong_cache is {cache}: give 1 to max_tokens")

    @property
    def cache_tokens(self) -> int:
        """Tokens before L_max over which the overlong penalty grows; a fifth of L_max as in DAPO (4096 of 20480)."""
        return self.overlong_cache or max(1, self.max_tokens // 5)


_AXES: dict[str, Collection[str]] = {
    "centre": CENTRES,
    "scale": SCALES,
    "shape": SHAPES,
    "assign": ASSIGNS,
    "baseline": BASELINES,
    "peer_rows": PEER_ROWS,
    "ratio": RATIOS,
    "gate": GATES,
    "aggregation": AGGREGATIONS,
    "kl": KLS,
}

RECIPES: dict[str, AlgorithmSpec] = {
    # arXiv 2402.03300 with the clip and the missing KL of swarm sampling (arXiv 2509.08721). The entropy bonus is in
    # neither paper: it keeps small models from collapsing.
    "grpo": AlgorithmSpec(name="grpo"),
    # arXiv 2503.20783: no std, no length normalisation, symmetric clip.
    "dr_grpo": AlgorithmSpec(
        name="dr_grpo", scale="none", aggregation="seq_mean_token_sum_norm", clip_high=0.2, entropy=0.0
    ),
    # arXiv 2503.14476: token mean, clip-higher, soft overlong penalty, uniform groups left out.
    "dapo": AlgorithmSpec(
        name="dapo", rewards=("task", "soft_overlong"), aggregation="token_mean", drop_uniform=True, entropy=0.0
    ),
}


def recipe(name: str, **changes: Any) -> AlgorithmSpec:
    """The named recipe with some fields changed. Raises UsageError for an unknown recipe, field or value."""
    _choose("recipe", name, RECIPES)
    unknown = sorted(set(changes) - set(AlgorithmSpec.__dataclass_fields__))
    _require(not unknown, f"unknown algorithm setting {', '.join(unknown)}")
    return replace(RECIPES[name], **changes)


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """AdamW and how a step is computed.

    `micro_tokens` bounds the padded tokens of one forward and so the memory; it changes the gradient's rounding only.
    None finds it from the free memory, and switches checkpointing on where that needs it: the run then depends on the
    machine in its last bits, so whoever must repeat one elsewhere gives a number.
    `dtype` "bfloat16" runs the forward under autocast with float32 weights: faster for models of 100 M parameters and
    more, slower for tiny ones. `checkpointing` keeps only each layer's input for the backward pass: about a third more
    computing, for models whose activations do not fit otherwise. `lora_rank` trains adapters of that rank instead of
    the weights (lora.py), scaled by `lora_alpha` / rank (alpha None: twice the rank), beside the linear layers whose
    names end in one of `lora_targets` (none given: all but the output layer).
    """

    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    dtype: str = "float32"
    micro_tokens: int | None = 2048
    checkpointing: bool = False
    lora_rank: int | None = None
    lora_alpha: float | None = None
    lora_targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the whole specification before anything is loaded."""
        _choose("dtype", self.dtype, ("float32", "bfloat16"))
        _require(self.lr > 0, f"lr is {self.lr}: give a positive number, e.g. 3e-4")
        _require(self.grad_clip > 0, f"grad_clip is {self.grad_clip}: give a positive number, e.g. 1")
        micro, rank, alpha = self.micro_tokens, self.lora_rank, self.lora_alpha
        _require(micro is None or micro >= 1, f"micro_tokens is {micro}: give 1 or more, or leave it to the memory")
        _require(rank is None or rank >= 1, f"lora_rank is {rank}: give 1 or more, e.g. 16, or leave it out")
        _require(alpha is None or alpha > 0, f"lora_alpha is {alpha}: give a positive number, or leave it out")
        adapted = alpha is not None or bool(self.lora_targets)
        _require(rank is not None or not adapted, "lora_alpha and lora_targets say nothing without a lora_rank")
        _require(self.weight_decay >= 0, f"weight_decay is {self.weight_decay}: give 0 or more")
        _require(all(0 <= b < 1 for b in self.betas), f"betas are {self.betas}: give two numbers in [0, 1)")


DEFAULT_OPTIMIZER = OptimizerSpec()
