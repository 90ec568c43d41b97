"""Counts of many hashed things in a fixed space: a count-min sketch that never says too little."""

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.uint16]
_SHIFTS = (0, 21, 42)  # three stretches of a 64-bit hash that do not overlap up to 2^21 counters
MOST = 0xFFFF


class CountMin:
    """Counters in three rows; an estimate is the least of three, so collisions only ever add (Cormode 2005).

    Counting is conservative (Estan and Varghese 2002): a counter grows no further than the estimate needs.
    """

    def __init__(self, bits: int) -> None:
        self._low = np.uint64((1 << bits) - 1)
        self._rows: list[Counts] = [np.zeros(1 << bits, np.uint16) for _ in _SHIFTS]

    def get(self, keys: Keys) -> Counts:
        """Return how often each 64-bit key was counted, or more."""
        first, second, third = (row[place] for row, place in zip(self._rows, self._places(keys), strict=True))
        return np.minimum(np.minimum(first, second), third)

    def add(self, keys: Keys) -> None:
        """Count each key once; the keys are distinct."""
        grown = np.minimum(self.get(keys), np.uint16(MOST - 1)) + np.uint16(1)
        for row, place in zip(self._rows, self._places(keys), strict=True):
            np.maximum.at(row, place, grown)

    def halve(self) -> None:
        """Forget half: every counter is halved, rounded down."""
        for row in self._rows:
            row >>= 1

    def _places(self, keys: Keys) -> list[npt.NDArray[np.intp]]:
        return [(keys >> np.uint64(shift) & self._low).astype(np.intp) for shift in _SHIFTS]

    def state(self) -> list[bytes]:
        """Return the rows, compressed."""
        return [zlib.compress(row.astype("<u2").tobytes(), 1) for row in self._rows]

    def restore(self, state: Iterable[Any]) -> None:
        """Take over what `state` returned."""
        self._rows = [np.frombuffer(zlib.decompress(bytes(row)), "<u2").astype(np.uint16) for row in state]
