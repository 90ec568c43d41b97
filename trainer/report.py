"""What one update did, and what a pass over rows found: the records that a trainer hands out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from shoal.trainer.mismatch import Mismatch
from shoal.trainer.selection import Selection


@dataclass(frozen=True, slots=True)
class Scores:
    """Own log-probs of rows, one tensor a row with a value per completion token.

    A row that the model cannot read (empty, or longer than its context) has no values and mean -inf.
    """

    logps: list[Tensor]

    @property
    def mean_logps(self) -> list[float]:
        """Mean log-prob of each row's completion tokens."""
        return [float(logps.mean()) if len(logps) else -math.inf for logps in self.logps]

    def as_lists(self) -> list[list[float]]:
        """The log-probs as plain lists, for code that knows no tensors."""
        return [logps.tolist() for logps in self.logps]


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one update did. `signal` False: nothing was learned, the policy is untouched and `reason` says why.

    Losses, fractions and norms are means over the optimizer steps or their tokens; `mismatch` compares the sampler's
    log-probs of own rows with the old local ones, `capped` is the share of tokens at the importance cap; `advantages`,
    `weights` and `trained` are per row, in the order of the rows given.
    """

    signal: bool
    reason: str
    version: int
    loss: float = 0.0
    clip_fraction: float = 0.0
    entropy: float | None = None
    kl: float | None = None
    drift: float = 0.0
    mismatch: Mismatch | None = None
    capped: float = 0.0
    grad_norm: float = 0.0
    tokens: int = 0
    steps: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    advantages: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)


def summary(chosen: Selection, steps: Sequence[dict[str, float]], reason: str, version: int) -> StepReport:
    """The report of an update from the sums of its optimizer steps; with a `reason` it is one without signal."""

    def total(name: str) -> float:
        return sum(step.get(name, 0.0) for step in steps)

    tokens, active = max(total("tokens"), 1.0), max(total("active"), 1.0)
    known = {name for step in steps for name in step}
    return StepReport(
        signal=not reason,
        reason=reason,
        version=version,
        loss=total("loss") / max(len(steps), 1),
        clip_fraction=total("clipped") / active,
        entropy=total("entropy") / tokens if "entropy" in known else None,
        kl=total("kl") / tokens if "kl" in known else None,
        drift=total("drift") / active,
        capped=total("capped") / active,
        grad_norm=total("grad_norm") / max(len(steps), 1),
        tokens=int(total("trained_tokens")),
        steps=len(steps),
        counts=chosen.counts,
        advantages=chosen.advantages_B.tolist(),
        weights=chosen.weight_B.tolist(),
        trained=chosen.train_B.tolist(),
    )


def silence(chosen: Selection) -> str:
    """Why nothing of a selection pushes the policy anywhere."""
    counts = chosen.counts
    if bool((chosen.train_B & (chosen.advantages_B != 0)).any()):
        return "no signal: every weight is 0"
    if counts["uniform_groups"]:
        return "no signal: all groups uniform"
    return "no signal: no row may train"
