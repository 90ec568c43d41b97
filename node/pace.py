"""How a node waits between two pieces of work, and how it is told to pause or to stop."""

import asyncio
import math
from collections.abc import Awaitable, Callable

from shoal.node.view import Phase

LONGEST_REST = 5.0  # seconds; a sleep does not count while the machine is suspended, and clocks are set


class Pace:
    """Waits until the time has come, never stopped: the pace of a simulated node."""

    longest_rest = math.inf
    stopped = False
    phase: Phase = "starting"

    async def rest(self, seconds: float) -> None:
        """Let `seconds` pass."""
        await asyncio.sleep(seconds)

    async def may_go_on(self) -> None:
        """Return when the node may begin its next pass: at once."""


class Steered(Pace):
    """The pace of a daemon: rests are short and end at once when it is told to stop."""

    longest_rest = LONGEST_REST

    def __init__(self, between: Callable[[], Awaitable[None]]) -> None:
        self.phase = "starting"
        self._between = between
        self._stop = asyncio.Event()
        self._go = asyncio.Event()
        self._go.set()

    @property
    def stopped(self) -> bool:  # type: ignore[override]
        """Whether the node was told to stop: it finishes what it is at and begins nothing more."""
        return self._stop.is_set()

    @property
    def paused(self) -> bool:
        """Whether the node was told to pause."""
        return not self._go.is_set()

    def stop(self) -> None:
        """Stop after the piece of work in hand."""
        self._stop.set()
        self._go.set()

    def pause(self) -> None:
        """Begin no further pass; the network goes on being served."""
        if not self.stopped:
            self._go.clear()

    def resume(self) -> None:
        """Go on."""
        self._go.set()

    async def rest(self, seconds: float) -> None:
        """Let `seconds` pass, or less when told to stop."""
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            pass

    async def may_go_on(self) -> None:
        """Do what is due between two passes; return when the node is not paused, or is told to stop."""
        await self._between()
        if self.paused:
            self.phase = "paused"
            await self._go.wait()
