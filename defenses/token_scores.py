"""Scores of one completion, one for each likelihood test: the higher, the stranger is the text to the own model."""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

from shoal.defenses.config import DefenseConfig

WINDOWS = (4, 8, 16, 32)
"""Tokens in a window: a slogan, a sentence, a paragraph."""

LEAST = 1e-300
"""A probability that is 0 in float32 still has a logarithm."""


class TokenEvidence(Protocol):
    """What the own model says of one completion, one value a token; the end mark is among them when it finished.

    `surprise` is -ln p(x) in nats at the sampling temperature, `entropy` its expectation, `variance` that of the
    surprise, `tail` the probability of all tokens at most as likely as x, `rank` how many are likelier.
    """

    @property
    def surprise(self) -> Sequence[float]: ...
    @property
    def entropy(self) -> Sequence[float]: ...
    @property
    def variance(self) -> Sequence[float]: ...
    @property
    def tail(self) -> Sequence[float]: ...
    @property
    def rank(self) -> Sequence[int]: ...
    @property
    def vouched(self) -> Sequence[bool]: ...
    @property
    def finished(self) -> bool: ...


def token_scores(evidence: TokenEvidence, config: DefenseConfig, rare_rate: float) -> dict[str, float]:
    """Return the score of each test that applies; empty where no token is left to judge.

    `rare_rate` is the share of own tokens whose rank is at least `config.rare_rank`. Sums over fewer than
    `config.least_tokens` say no more than the rarest token does.
    """
    free = unvouched(evidence)
    if not free:
        return {}
    scores = {"tail": -math.log(len(free)) - math.log(max(min(evidence.tail[at] for at in free), LEAST))}
    if len(free) >= config.least_tokens:
        excess = [evidence.surprise[at] - evidence.entropy[at] for at in free]
        variance = [evidence.variance[at] + config.variance_floor for at in free]
        z = sum(excess) / math.sqrt(sum(variance))
        prefix, window = _windows(excess, variance)
        rare = sum(evidence.rank[at] >= config.rare_rank for at in free)
        rank = -log_binomial_tail(rare, len(free), rare_rate)
        scores |= {"surprise": z, "likely": -z, "window": window, "prefix": prefix, "rank": rank}
    if evidence.finished and not evidence.vouched[-1]:
        scores["end"] = evidence.surprise[-1]
    return scores


def unvouched(evidence: TokenEvidence) -> list[int]:
    """Return the places of the tokens that nothing vouches for."""
    return [at for at, vouched in enumerate(evidence.vouched) if not vouched]


def theory_p(evidence: TokenEvidence) -> dict[str, float]:
    """Return p-values of the rarest token and of the rarest window that hold for any text sampled from the own policy.

    P(q_t <= x) <= x whatever came before, so n tokens have one with q_t < alpha / n with probability alpha at most, and
    the sum of -ln q_t over w tokens is at most a Gamma(w) variable (Fisher's method).
    """
    free = unvouched(evidence)
    logs = [-math.log(max(evidence.tail[at], LEAST)) for at in free]
    sums = [0.0, *accumulate(logs)]
    widths = sorted({min(width, len(free)) for width in WINDOWS})
    most = {width: max(sums[end] - sums[end - width] for end in range(width, len(sums))) for width in widths}
    looks = sum(len(sums) - width for width in widths)
    return {
        "tail": min(1.0, len(free) * math.exp(-max(logs))),
        "window": min(1.0, looks * min(_gamma_tail(total, width) for width, total in most.items())),
    }


def _gamma_tail(total: float, shape: int) -> float:
    """Return P(X >= total) of a sum X of `shape` exponential variables."""
    if total <= 0.0:
        return 1.0
    return min(1.0, math.fsum(math.exp(k * math.log(total) - total - math.lgamma(k + 1)) for k in range(shape)))


def _windows(excess: Sequence[float], variance: Sequence[float]) -> tuple[float, float]:
    """Return the highest standardised surprise of a window at the start, and of one anywhere."""
    sums, spreads = [0.0, *accumulate(excess)], [0.0, *accumulate(variance)]
    at_start, anywhere = -math.inf, -math.inf
    for width in sorted({min(width, len(excess)) for width in WINDOWS}):
        scores = [
            (sums[end] - sums[end - width]) / math.sqrt(spreads[end] - spreads[end - width])
            for end in range(width, len(sums))
        ]
        at_start, anywhere = max(at_start, scores[0]), max(anywhere, *scores)
    return at_start, anywhere


def log_binomial_tail(successes: int, trials: int, rate: float) -> float:
    """Return ln P(X >= successes) of a binomial X, and 0 up to its mean, where it is no evidence."""
    if successes <= trials * rate:
        return 0.0
    first = (
        math.lgamma(trials + 1) - math.lgamma(successes + 1) - math.lgamma(trials - successes + 1)
        + successes * math.log(rate) + (trials - successes) * math.log1p(-rate)
    )  # fmt: skip
    total = term = 1.0
    for more in range(successes, trials):
        term *= (trials - more) / (more + 1) * rate / (1 - rate)
        total += term
        if term < 1e-12 * total:
            break
    return min(0.0, first + math.log(total))
