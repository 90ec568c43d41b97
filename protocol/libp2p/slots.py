"""Places for work of which only so much may go on at once, in all and for one peer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Busy(Exception):
    """No place became free in time, or too many wait already."""


class Slots:
    """`total` places, at most `each` for one peer; at most `waiting` wait for one, for `seconds`."""

    def __init__(self, total: int, each: int, waiting: int, seconds: float) -> None:
        self._total, self._each, self._waiting, self._seconds = total, each, waiting, seconds
        self._taken: Counter[str] = Counter()
        self._queued: Counter[str] = Counter()
        self._changed = asyncio.Condition()

    @property
    def taken(self) -> int:
        """Places in use."""
        return self._taken.total()

    @asynccontextmanager
    async def place(self, peer: str) -> AsyncGenerator[None]:
        """Hold a place. Raises Busy. A peer's share of the queue is its share of the places, so it cannot fill it."""
        await self._take(peer)
        try:
            yield
        finally:
            self._taken -= Counter([peer])  # drops what falls to zero
            async with self._changed:
                self._changed.notify_all()

    async def _take(self, peer: str) -> None:
        if not self._free(peer):
            share = max(1, self._waiting * self._each // self._total)
            if self._queued.total() >= self._waiting or self._queued[peer] >= share:
                raise Busy
            self._queued[peer] += 1
            try:
                async with asyncio.timeout(self._seconds), self._changed:
                    await self._changed.wait_for(lambda: self._free(peer))
                    self._taken[peer] += 1
            except TimeoutError:
                raise Busy from None
            finally:
                self._queued -= Counter([peer])
        else:
            self._taken[peer] += 1

    def _free(self, peer: str) -> bool:
        return self._taken.total() < self._total and self._taken[peer] < self._each
