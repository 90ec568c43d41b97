"""Sampler mismatch: how far the log-probs that the engine sampled with lie from those that the trainer computes.

An engine with its own arithmetic (another library, half precision) samples from a slightly different policy than the
one that is trained. `measure` says by how much; `importance` is the weight that corrects for it: truncated importance
sampling (Ionides 2008), which makes the loss that of the decoupled objective (arXiv 2505.24298). Both look at own rows
alone: what a peer claims says nothing here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.trainer.batch import Row

OFF = 0.1  # nats: a token whose probability differs by a tenth counts as off
LIMIT = 20.0  # nats: a difference beyond it, or one that is no number, counts as this much; e^20 stays finite


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The gauge over the tokens of some own rows.

    `mean` and `largest` are of |l_local - l_sampler|, `kl` is the k3 estimate per token of KL(sampler || local), `off`
    the share of tokens that differ by more than a tenth of a nat, `broken` how many had no usable number.
    """

    tokens: int
    mean: float
    largest: float
    kl: float
    off: float
    broken: int = 0


def measure(rows: Sequence[Row]) -> Mismatch | None:
    """Compare the sampler's log-probs with the old local ones; None when no own row has both.

    With top-p or top-k the sampler's are those of the filtered distribution, and the gauge shows that too.
    """
    known = [row for row in rows if row.own and row.behaviour_logps is not None and row.old_logps is not None]
    local = [row.old_logps.tolist() for row in known if row.old_logps is not None]
    return compare(local, [row.behaviour_logps or [] for row in known])


def compare(local: Sequence[Sequence[float]], sampler: Sequence[Sequence[float]]) -> Mismatch | None:
    """Compare two log-probs of each token, sequence by sequence; sequences of other lengths are left out."""
    pairs = [(a, b) for a, b in zip(local, sampler, strict=True) if len(a) == len(b)]
    local_N = torch.tensor([value for a, _ in pairs for value in a], dtype=torch.float64)
    sampler_N = torch.tensor([value for _, b in pairs for value in b], dtype=torch.float64)
    if not len(local_N):
        return None
    raw_N = local_N - sampler_N
    difference_N = torch.nan_to_num(raw_N, nan=LIMIT, posinf=LIMIT, neginf=-LIMIT).clamp(-LIMIT, LIMIT)
    return Mismatch(
        tokens=len(raw_N),
        mean=float(difference_N.abs().mean()),
        largest=float(difference_N.abs().max()),
        kl=float((difference_N.exp() - difference_N - 1).mean()),
        off=float((difference_N.abs() > OFF).double().mean()),
        broken=int((~raw_N.isfinite()).sum()),
    )


def importance(
    old_logps_BT: Tensor, behaviour_logps_BT: Tensor, own_B: Tensor | None, cap: float
) -> tuple[Tensor, Tensor]:
    """Weight of each token, min(exp(l_old - l_behaviour), cap) without gradient, and where the cap was reached.

    Tokens of peers' rows (`own_B` False) weigh 1, and so do those whose behaviour log-prob is no finite number: it says
    nothing.
    """
    behaviour_BT = behaviour_logps_BT.detach().to(old_logps_BT.dtype)
    usable_BT = behaviour_BT.isfinite()
    if own_B is not None:
        usable_BT = usable_BT & own_B[:, None]
    weight_BT = (old_logps_BT.detach() - behaviour_BT).exp().clamp(max=cap)
    return torch.where(usable_BT, weight_BT, torch.ones_like(weight_BT)), usable_BT & (weight_BT == cap)
