"""Wall time by phase of a pass; it goes to the timings, never into a result."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up wall seconds under the names of phases."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Count the time spent inside under `phase`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - began

    def take(self) -> dict[str, float]:
        """Return the seconds counted since the last call."""
        seconds, self.seconds = self.seconds, {}
        return seconds
