"""An event loop whose clock is virtual: a sleep of a million seconds takes no time at all.

It is a plain asyncio loop with another selector: where asyncio would wait t seconds, the clock is moved on by t.
"""

from __future__ import annotations

import asyncio
import selectors


class _InstantSelector(selectors.DefaultSelector):
    """Never waits; what the loop would have waited is noted in `clock`."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.clock = start

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)  # signals and threads that wake the loop still come through
        if events:
            return events
        if timeout is None:
            raise RuntimeError("deadlock in virtual time: every task waits and nothing is scheduled to wake one")
        self.clock += max(timeout, 0.0)
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio loop in virtual time, for `asyncio.Runner(loop_factory=VirtualTimeLoop)`.

    Raises RuntimeError when nothing is scheduled, instead of waiting for ever. Threads are no part of virtual time:
    work that a task awaits from one is taken for a deadlock.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._instant = _InstantSelector(start)
        super().__init__(self._instant)
        # asyncio runs what is due within this span. At 1.7e9 s a float steps by 2.4e-7, more than the real clock's
        # resolution of 1e-9: a timer due exactly now would never count as due, and the loop would spin for ever.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """The virtual time in seconds."""
        return self._instant.clock

    def advance_to(self, instant: float) -> None:
        """Move the clock on, as computing in the loop's own thread does; what fell due meanwhile runs next.

        Raises ValueError for an instant in the past.
        """
        if instant < self._instant.clock:
            raise ValueError(f"virtual time does not run backwards: {instant} is before {self._instant.clock}")
        self._instant.clock = instant
