"""Evidence of texts that are sampled from a distribution given as a plain list, worked out by definition."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

# One likely token, some fair ones, a long tail: what the next token of a text model looks like.
WORDS = (0.5, 0.2, 0.1, 0.1, 0.05, 0.03, 0.01, 0.006, 0.003, 0.001)


@dataclass
class Evidence:
    surprise: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    variance: list[float] = field(default_factory=list)
    tail: list[float] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    vouched: list[bool] = field(default_factory=list)
    finished: bool = False


def evidence_of(
    tokens: Sequence[int], p: Sequence[float] = WORDS, vouched: Sequence[int] = (), finished: bool = False
) -> Evidence:
    """Evidence of token numbers under one distribution for all places."""
    entropy = -math.fsum(x * math.log(x) for x in p)
    variance = math.fsum(x * (-math.log(x) - entropy) ** 2 for x in p)
    return Evidence(
        surprise=[-math.log(p[token]) for token in tokens],
        entropy=[entropy] * len(tokens),
        variance=[variance] * len(tokens),
        tail=[math.fsum(x for x in p if x <= p[token]) for token in tokens],
        rank=[sum(x > p[token] for x in p) for token in tokens],
        vouched=[at in vouched for at in range(len(tokens))],
        finished=finished,
    )


def sampled(random: Random, length: int, p: Sequence[float] = WORDS, finished: bool = False) -> Evidence:
    """Evidence of a text sampled from the distribution itself: an honest one."""
    return evidence_of(random.choices(range(len(p)), p, k=length), p, finished=finished)


def sharpened(power: float) -> list[float]:
    """The distribution of a policy that was trained further: its tokens, with another temperature."""
    raised = [x**power for x in WORDS]
    return [x / sum(raised) for x in raised]
