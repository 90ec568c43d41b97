"""Drawing one token: the sampling distribution, an inverse-CDF draw from it, and the log-probability of what came.

Every engine draws through `draw`, from uniforms laid out by (row, step). So the same generator gives the same
completions in any engine, and a row's draws depend neither on its neighbours nor on when finished rows are dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from shoal.protocol.errors import UsageError
from shoal.trainer.model import Policy

LIKELIEST = 1024  # tokens that top-p looks at before it sorts all


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are sampled: temperature 0 is greedy, top_k 0 and top_p 1 switch those filters off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 12

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature must be 0 or a positive number, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p must lie in (0, 1], not {self.top_p}")
        if self.top_k < 0:
            raise UsageError(f"top_k must be 0 (off) or positive, not {self.top_k}")
        if self.max_tokens < 1:
            raise UsageError(f"max_tokens must be at least 1, not {self.max_tokens}")


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled answer.

    `ids` includes the end mark when `finished`; `logps` holds, for each id, its log-probability under the
    distribution it was drawn from (temperature and filters applied; for greedy the plain softmax). `versions` holds
    the policy version by which each id was sampled, and nothing where that is the present one for all.
    """

    ids: list[int]
    logps: list[float]
    finished: bool
    text: str
    versions: tuple[int, ...] = ()


class Engine(Protocol):
    """What samples completions from a policy."""

    def sample(
        self, prompts: Sequence[str], group_size: int, sampling: Sampling, generator: torch.Generator
    ) -> list[list[Completion]]:
        """Return `group_size` completions for each prompt, equal for equal weights and generator state."""
        ...

    def refresh(self) -> None:
        """Take over the policy's present weights; to be called after every update."""
        ...

    def detach(self) -> None:
        """Copy the weights, now and at every `refresh`: from now on `sample` may run while the policy is trained.

        It sees the weights of the last `refresh`. A `refresh` waits until the `sample` that runs has ended.
        """
        ...


def uniforms(rows: int, max_tokens: int, generator: torch.Generator) -> torch.Tensor:
    """Return the draws of one `sample` call: [rows, max_tokens] numbers in [0, 1)."""
    return torch.rand((rows, max_tokens), generator=generator, device=generator.device)


def draw(logits_BV: torch.Tensor, sampling: Sampling, uniform_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (ids_B, logps_B) drawn from float32 logits, or the greedy choice when the temperature is 0."""
    if sampling.temperature == 0:
        ids_B = logits_BV.argmax(-1)
        return ids_B, logits_BV.log_softmax(-1).gather(1, ids_B[:, None])[:, 0]
    probs_BV = torch.softmax(filtered(logits_BV, sampling), -1)
    cumulative_BV = probs_BV.cumsum(-1)
    total_B1 = cumulative_BV[:, -1:]
    # Rounding could lift the target onto the total, past the last token that has any probability.
    below_B1 = total_B1 * (1 - 2**-23)
    target_B1 = torch.minimum(uniform_B[:, None] * total_B1, below_B1)
    ids_B1 = torch.searchsorted(cumulative_BV, target_B1, right=True)
    return ids_B1[:, 0], probs_BV.gather(1, ids_B1)[:, 0].log()


def filtered(logits_BV: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return logits after temperature, top-k and top-p, in that order; what is filtered out becomes -inf."""
    scaled_BV = logits_BV if sampling.temperature == 1 else logits_BV / sampling.temperature
    if 0 < sampling.top_k < logits_BV.shape[-1]:
        least_B1 = scaled_BV.topk(sampling.top_k, -1).values[:, -1:]
        scaled_BV = scaled_BV.masked_fill(scaled_BV < least_B1, float("-inf"))
    return scaled_BV if sampling.top_p == 1 else _nucleus(scaled_BV, sampling.top_p)


def _nucleus(scaled_BV: torch.Tensor, top_p: float) -> torch.Tensor:
    """Leave the likeliest tokens: one stays while the mass before it is below `top_p`; so the first one always does.

    To sort a whole large vocabulary costs as much as a pass of a small model, so the likeliest are tried alone first.
    """
    if scaled_BV.shape[-1] > 4 * LIKELIEST:
        values_BK, order_BK = scaled_BV.topk(LIKELIEST, -1)
        probs_BK = (values_BK - scaled_BV.logsumexp(-1, keepdim=True)).exp_()
        cumulative_BK = probs_BK.cumsum(-1)
        if bool((cumulative_BK[:, -1] >= top_p).all()):
            drop_BK = (cumulative_BK - probs_BK) >= top_p
            drop_BK[:, 0] = False
            kept_BK = values_BK.masked_fill_(drop_BK, float("-inf"))
            return torch.full_like(scaled_BV, float("-inf")).scatter_(1, order_BK, kept_BK)
    sorted_BV, order_BV = scaled_BV.sort(-1, descending=True)
    probs_BV = sorted_BV.softmax(-1)
    drop_BV = (probs_BV.cumsum(-1) - probs_BV) >= top_p
    drop_BV[:, 0] = False
    return scaled_BV.masked_fill(drop_BV.scatter(1, order_BV, drop_BV), float("-inf"))


def completed(
    policy: Policy, rows: Sequence[tuple[Sequence[int], Sequence[float], tuple[int, ...]]]
) -> list[Completion]:
    """Return the completions of (ids, log-probabilities, versions), each cut where it ends."""
    ends = set(policy.eos_ids)
    return [
        Completion(list(ids), list(logps), bool(ids) and ids[-1] in ends, text, versions)
        for (ids, logps, versions), text in zip(rows, _texts(policy, [ids for ids, _, _ in rows]), strict=True)
    ]


def _texts(policy: Policy, rows: Sequence[Sequence[int]]) -> list[str]:
    """Return what `policy.decode` makes of each row of completion ids; equal rows are decoded once, all in one call."""
    unique = list(dict.fromkeys(map(tuple, rows)))
    tokenizer = policy.tokenizer
    if unique and tokenizer.is_fast and not tokenizer.clean_up_tokenization_spaces:
        written = tokenizer.backend_tokenizer.decode_batch(list(map(list, unique)), skip_special_tokens=True)
    else:
        written = [policy.decode(ids) for ids in unique]
    known = dict(zip(unique, written, strict=True))
    return [known[tuple(row)] for row in rows]
