"""Where a node's heavy work runs: inline on a virtual clock in the simulator, in a thread of its own in the daemon."""

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, Protocol, TypeVar

Result = TypeVar("Result")
Work = Literal["sample", "screen", "update", "save", "canary"]

SHARE_OF_ROUND: dict[Work, float] = {"sample": 0.3, "update": 0.1}
"""Virtual cost of each kind of work on a node of median speed, as a share of a round; the rest takes no time."""


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
        if kind not in SHARE_OF_ROUND:
            return result
        jitter = self.rng.uniform(0.9, 1.1)
        await asyncio.sleep(SHARE_OF_ROUND[kind] * self.round_seconds * self.slowness * jitter)
        return result


class ThreadCompute:
    """Runs work in one thread, one piece after the other, while the event loop serves the network.

    A piece that has begun is always seen to its end: whoever is cancelled meanwhile learns of it afterwards, so that no
    update goes on behind the back of a node that is being saved.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="shoal-compute")

    async def run(self, kind: Work, work: Callable[[], Result]) -> Result:  # noqa: ARG002 - one thread for all kinds
        """Run `work` in the thread and return its result."""
        running = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise

    def close(self) -> None:
        """End the thread when it has finished what it does."""
        self._thread.shutdown()
