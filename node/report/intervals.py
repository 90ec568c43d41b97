"""Shares with their uncertainty: one interval for every accuracy that is shown."""

from dataclasses import dataclass

from shoal.trainer.evaluate import wilson as bounds


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
    """Return the share of `hits` among `items` with its Wilson score interval; raises ValueError when it is none.

    Partial credit counts as a fraction of a hit, which makes the interval too wide rather than too narrow.
    """
    low, high = bounds(hits, items)
    return Interval(hits / items, low, high, items)


def percent(share: float, digits: int = 1) -> str:
    """Return a share as text, e.g. 61.2 %."""
    return f"{100 * share:.{digits}f} %"


def span(interval: Interval) -> str:
    """Return mean and bounds as text, e.g. 61.2 % (58.0–64.3)."""
    return f"{percent(interval.mean)} ({100 * interval.low:.1f}–{100 * interval.high:.1f})"
