"""Accuracy of graded items, with its uncertainty."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from shoal.trainer.verify import Score

Z_95 = 1.959963984540054  # two-sided 95 % point of the normal distribution


def wilson(hits: float, items: int, z: float = Z_95) -> tuple[float, float]:
    """Return the Wilson score interval (low, high) of a share (Wilson 1927), here of `hits` out of `items`.

    It stays inside [0, 1] and has a width at no hits and at all hits, where the normal interval has none. Raises
    ValueError when `hits` of `items` is no share.
    """
    if items <= 0 or not 0 <= hits <= items:
        raise ValueError(f"{hits} of {items} is no share")
    share = hits / items
    weight = z * z / items
    centre = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / items + weight / (4 * items)) / (1 + weight)
    # at both ends the bound equals the share, which rounding would miss
    return max(0.0, min(centre - half, share)), min(1.0, max(centre + half, share))


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The mean reward of some items, with its 95 % interval.

    An unscorable answer counts as an item without reward, as an answer that its verifier had to be stopped for is not
    right; how many there were, and why, stands beside it.
    """

    mean: float
    low: float
    high: float
    items: int
    unscorable: dict[str, int]


def accuracy(scores: Iterable[Score]) -> Accuracy:
    """Return the accuracy of graded items; raises ValueError when there are none."""
    graded = list(scores)
    reward = math.fsum(score.reward or 0.0 for score in graded)
    low, high = wilson(min(reward, len(graded)), len(graded))
    stopped = Counter(score.reason for score in graded if score.reward is None)
    return Accuracy(reward / len(graded), low, high, len(graded), dict(sorted(stopped.items())))
