"""What arrived and waits to be read: one bounded queue behind every transport's `announcements`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable

from shoal.protocol.limits import MIB
from shoal.protocol.transport import Received

MAX_QUEUE = 4096  # announcements that wait to be read
MAX_QUEUE_BYTES = 8 * MIB  # and their bytes


class Inbox:
    """Announcements in order of arrival. A full one drops what comes and counts it."""

    def __init__(self, count: Callable[[str], None]) -> None:
        self.closed = False
        self._count = count
        self._queue: deque[Received] = deque()
        self._bytes = 0
        self._readers: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        return len(self._queue)

    def deliver(self, received: Received) -> None:
        """Take one announcement in."""
        if self.closed:
            self._count("dropped_closed")
        elif len(self._queue) >= MAX_QUEUE or self._bytes + len(received.data) > MAX_QUEUE_BYTES:
            self._count("dropped_queue_full")
        else:
            self._count("received")
            self._queue.append(received)
            self._bytes += len(received.data)
            self._wake()

    async def read(self) -> AsyncIterator[Received]:
        """Announcements until this inbox is closed and empty."""
        while True:
            while self._queue:
                received = self._queue.popleft()
                self._bytes -= len(received.data)
                yield received
            if self.closed:
                return
            reader = asyncio.get_running_loop().create_future()
            self._readers.append(reader)
            await reader

    def close(self) -> None:
        """Take nothing more; whoever reads gets to the end of what is queued."""
        self.closed = True
        self._wake()

    def items(self) -> list[Received]:
        """What waits to be read."""
        return list(self._queue)

    def restore(self, items: Iterable[Received], closed: bool) -> None:
        """Take over what an earlier inbox held."""
        self.closed = closed
        self._queue = deque(items)
        self._bytes = sum(len(received.data) for received in self._queue)

    def _wake(self) -> None:
        for reader in self._readers:
            if not reader.done():
                reader.set_result(None)
        self._readers.clear()
