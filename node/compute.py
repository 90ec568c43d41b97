"""Where a node's heavy work runs: inline on a virtual clock in the simulator."""

import asyncio
import random
from collections.abc import Callable
from typing import Literal, Protocol, TypeVar

Result = TypeVar("Result")
Work = Literal["sample", "update"]

SHARE_OF_ROUND: dict[Work, float] = {"sample": 0.3, "update": 0.1}
"""Virtual cost of each kind of work on a node of median speed, as a share of a round."""


class Compute(Protocol):
    """Runs blocking work without blocking the network."""

    async def run(self, kind: Work, work: Callable[[], Result]) -> Result:
        """Run `work` and return its result once the time that it takes has passed."""
        ...


class InlineCompute:
    """Runs work at once and lets the virtual clock pass as long as a node of this speed would need.

    `slowness` is 1.0 for a node of median speed, 2.0 for one that takes twice as long. Each piece of work varies by
    a seeded ten per cent, so that nodes overtake one another.
    """

    def __init__(self, round_seconds: float, slowness: float, rng: random.Random) -> None:
        self.round_seconds = round_seconds
        self.slowness = slowness
        self.rng = rng

    async def run(self, kind: Work, work: Callable[[], Result]) -> Result:
        """Run `work` inline, then sleep its virtual cost in seconds."""
        result = work()
        jitter = self.rng.uniform(0.9, 1.1)
        await asyncio.sleep(SHARE_OF_ROUND[kind] * self.round_seconds * self.slowness * jitter)
        return result
