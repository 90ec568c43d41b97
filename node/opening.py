"""The start gate: peers' rollouts wait until this node can tell right from wrong by itself."""

import math
from collections.abc import Sequence
from typing import Any

from shoal.node.sets import OwnSet

WINDOW = 5  # passes; with 8 groups of 8 the mean of five is good to about .03, so one lucky pass does not open it


class StartGate:
    """Opens for good once the mean reward of own rollouts over the last passes has reached `rate`.

    A node whose own answers are nearly all wrong has no baseline to measure peers by, and takes over whatever they send
    first. Passes are averaged with equal weight; one in which nothing could be scored does not count.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.open = rate <= 0.0
        self._means: list[float] = []

    def note(self, own: Sequence[OwnSet]) -> None:
        """Take in the own sets of one pass."""
        if self.open:
            return
        rewards = [reward for own_set in own for reward in own_set.rewards if not math.isnan(reward)]
        if rewards:
            self._means = [*self._means, math.fsum(rewards) / len(rewards)][-WINDOW:]
        self.open = len(self._means) == WINDOW and math.fsum(self._means) / WINDOW >= self.rate

    def state(self) -> list[Any]:
        """Return whether it is open, and the mean rewards it goes by."""
        return [self.open, list(self._means)]

    def restore(self, state: Sequence[Any]) -> None:
        """Take over what `state` returned; a rate that is 0 by now leaves it open."""
        opened, means = state
        self.open = opened or self.rate <= 0.0
        self._means = list(means)
