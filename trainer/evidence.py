"""What the own model says about each token of a completion: the evidence of the likelihood defence.

The values come from the pass that gives the old log-probs, so they cost a few more sums over the logits and no second
forward. Nothing here judges: the tests are in the defences.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoal.protocol.errors import UsageError
from shoal.trainer.logprobs import token_logits
from shoal.trainer.packing import Batch

# Logits looked at in one go. Beside the logits themselves the statistics need a few copies of this many numbers,
# whatever the vocabulary and the batch; 4 MB of float32 also stay in the cache of one core.
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class RowEvidence:
    """One value a token of a completion, at the row's temperature; the end mark is among them when it finished.

    `surprise` is -ln p(x) and `entropy` its expectation, in nats; `variance` is that of the surprise; `tail` the
    probability of all tokens that are at most as likely as x; `rank` the number of tokens that are likelier. `vouched`
    marks what the verifier confirmed. A row that the model cannot read has no values.
    """

    logps: Tensor
    surprise: list[float]
    entropy: list[float]
    variance: list[float]
    tail: list[float]
    rank: list[int]
    vouched: list[bool]
    finished: bool


def token_statistics(model: nn.Module, batch: Batch) -> Tensor:
    """Log-prob, entropy, variance of the surprise, tail mass and rank of each completion token (N, 5), in row order."""
    parts: list[Tensor] = []
    for span, logits_NV in token_logits(model, batch):
        step, targets_N = max(1, CHUNK // logits_NV.shape[1]), batch.targets_N[span]
        for start in range(0, len(logits_NV), step):
            part = slice(start, start + step)
            parts.append(_statistics(logits_NV[part], targets_N[part]))
    return torch.cat(parts)


def _statistics(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
    chosen_N1 = logits_NV.gather(1, targets_N[:, None])
    log_norm_N1 = logits_NV.logsumexp(-1, keepdim=True)
    likelier_NV = logits_NV > chosen_N1
    log_p_NV = logits_NV - log_norm_N1
    p_NV = log_p_NV.exp()
    entropy_N1 = -(p_NV * log_p_NV).sum(-1, keepdim=True)
    # About the mean, not as a difference of squares: those are large and near each other at a high entropy.
    variance_N1 = log_p_NV.add_(entropy_N1).square_().mul_(p_NV).sum(-1, keepdim=True)
    rank_N1 = likelier_NV.sum(-1, keepdim=True)
    tail_N1 = p_NV.masked_fill_(likelier_NV, 0.0).sum(-1, keepdim=True)
    return torch.cat([chosen_N1 - log_norm_N1, entropy_N1, variance_N1, tail_N1, rank_N1.to(p_NV.dtype)], dim=1)


def row_evidence(values_T5: Tensor, vouched: Sequence[bool], finished: bool) -> RowEvidence:
    """Evidence of one row from its tokens' statistics. Raises UsageError where `vouched` has another length."""
    if len(vouched) != len(values_T5):
        raise UsageError(f"vouched has {len(vouched)} values for {len(values_T5)} tokens: give one a token")
    logps, entropy, variance, tail, rank = values_T5.T.tolist()
    return RowEvidence(
        # A copy: a column of the table would keep the whole table alive until the update.
        logps=values_T5[:, 0].clone(),
        surprise=[-logp for logp in logps],
        entropy=entropy,
        variance=variance,
        tail=tail,
        rank=[int(count) for count in rank],
        vouched=list(vouched),
        finished=finished,
    )


NO_EVIDENCE = RowEvidence(torch.empty(0), [], [], [], [], [], [], False)
"""Of a row that the model cannot read."""
