"""How unusual a score is among scores that are known to be good: a bounded sample, and a p-value from it.

Within the sample that is the conformal p-value (1 + #{score >= S}) / (N + 1), which holds whatever the scores are
distributed like. A sample of N cannot give less than 1 / (N + 1), so the outermost scores are continued by an
exponential tail: that of a log-probability is one in theory, and of age and other training only the slope is fitted.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence

FIT = 16
"""The tail is fitted to one in so many scores."""


class ScoreSample:
    """The most recent scores of one kind, at most `capacity` of them."""

    def __init__(self, capacity: int, scores: Iterable[float] = ()) -> None:
        self._capacity = capacity
        self._recent: deque[float] = deque()
        self._ranked: list[float] = []
        for score in scores:
            self.add(score)

    def __len__(self) -> int:
        return len(self._ranked)

    def add(self, score: float) -> None:
        """Take a score in; the oldest goes when there are too many, which is the sample's planned course."""
        if len(self._recent) >= self._capacity:
            del self._ranked[bisect_left(self._ranked, self._recent.popleft())]
        self._recent.append(score)
        insort(self._ranked, score)

    @property
    def ranked(self) -> Sequence[float]:
        """The scores, smallest first."""
        return self._ranked

    @property
    def median(self) -> float:
        """The middle score, the upper one of two."""
        return self._ranked[len(self._ranked) // 2]

    def state(self) -> list[float]:
        """Return the scores, oldest first."""
        return list(self._recent)


def tail_p(ranked: Sequence[float], score: float, slope: float, trim: int = 0) -> float:
    """Return the chance of a score of at least `score`, from scores in rising order (at least one).

    Beyond the outermost 1 / 16 of the scores the tail is exponential with the mean excess of these, a standard error
    added, and `slope` at least (the scale that theory gives). The `trim` highest scores (a third of them at most) are
    not believed: it only counts that they are above the others (censored), so their height decides nothing.
    """
    count = len(ranked)
    # Most of what the slope rests on must be scores that are believed.
    fitted = max(1, (count - trim) // FIT, 2 * trim)
    top = count - trim - fitted  # the first of the fitted scores
    start = ranked[max(top - 1, 0)]
    if score <= start:
        return (1 + count - bisect_left(ranked, score)) / (count + 1)
    limit = ranked[count - trim - 1]
    excess = sum(value - start for value in ranked[top : count - trim]) + trim * (limit - start)
    scale = max(slope, excess / fitted * (1 + 1 / math.sqrt(fitted)))
    return (1 + fitted + trim) / (count + 1) * math.exp(-(score - start) / scale)
