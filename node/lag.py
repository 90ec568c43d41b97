"""How late the event loop wakes up: what a step, a big fetch or a slow callback costs everybody else in it."""

import asyncio
import time
from bisect import bisect_left, insort
from collections import deque

SAMPLES = 512  # about 50 s at the interval below: recent, and enough for a 99th percentile
INTERVAL_SECONDS = 0.1


class LagMonitor:
    """Sleeps for a fixed time over and over, and keeps by how much it overslept."""

    def __init__(self, samples: int = SAMPLES, interval: float = INTERVAL_SECONDS) -> None:
        self.interval = interval
        self._ring: deque[float] = deque(maxlen=samples)
        self._sorted: list[float] = []

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            due = time.monotonic() + self.interval  # not the loop's own time: uvloop's stands still within a turn
            await asyncio.sleep(self.interval)
            self.add(max(0.0, time.monotonic() - due))

    def add(self, seconds: float) -> None:
        """Take in one sample; the oldest goes when the ring is full."""
        if len(self._ring) == self._ring.maxlen:
            del self._sorted[bisect_left(self._sorted, self._ring[0])]
        self._ring.append(seconds)
        insort(self._sorted, seconds)

    def milliseconds(self) -> dict[str, float]:
        """Return p50, p99 and max over the ring in milliseconds (nearest rank); zeros before the first sample."""
        count = len(self._sorted)
        if not count:
            return {"p50": 0.0, "p99": 0.0, "max": 0.0}
        ranks = {"p50": -(-count * 50 // 100) - 1, "p99": -(-count * 99 // 100) - 1, "max": count - 1}
        return {name: round(1000 * self._sorted[rank], 3) for name, rank in ranks.items()}
