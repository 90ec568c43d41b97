"""Shares with their uncertainty: one interval for every accuracy that is shown."""

import math
from dataclasses import dataclass

Z_95 = 1.959963984540054  # two-sided 95 % point of the normal distribution


@dataclass(frozen=True, slots=True)
class Interval:
    """A share in [0, 1] with its 95 % interval and the number of items behind it."""

    mean: float
    low: float
    high: float
    items: int

    def overlaps(self, other: "Interval") -> bool:
        """Return True when the two intervals share a point: the difference is then not claimed."""
        return self.low <= other.high and other.low <= self.high


def wilson(hits: float, items: int) -> Interval:
    """Return the Wilson score interval of `hits` out of `items` (Wilson 1927); `items` must be positive.

    Unlike mean ± 2 standard errors it stays inside [0, 1] and is honest at 0 and at all. Partial credit counts as a
    fraction of a hit, which makes the interval too wide rather than too narrow.
    """
    if items <= 0 or not 0 <= hits <= items:
        raise ValueError(f"{hits} of {items} is no share")
    share = hits / items
    weight = Z_95**2 / items
    centre = (share + weight / 2) / (1 + weight)
    half = Z_95 * math.sqrt(share * (1 - share) / items + weight / (4 * items)) / (1 + weight)
    # At 0 and at all hits the bound is exact; without the clamp rounding would put it just outside.
    return Interval(share, max(0.0, min(centre - half, share)), min(1.0, max(centre + half, share)), items)


def percent(share: float, digits: int = 1) -> str:
    """Return a share as text, e.g. 61.2 %."""
    return f"{100 * share:.{digits}f} %"


def span(interval: Interval) -> str:
    """Return mean and bounds as text, e.g. 61.2 % (58.0–64.3)."""
    return f"{percent(interval.mean)} ({100 * interval.low:.1f}–{100 * interval.high:.1f})"
