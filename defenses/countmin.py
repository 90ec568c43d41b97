"""Counts of many hashed things in a fixed space: a count-min sketch that never says too little."""

import zlib
from array import array
from collections.abc import Iterable
from typing import Any

ROWS = 3
_SHIFTS = (0, 21, 42)  # three independent stretches of a 64-bit hash
MOST = 0xFFFF
MASK = (1 << 64) - 1


class CountMin:
    """Counters in three rows; an estimate is the least of three, so collisions only ever add (Cormode 2005).

    Counting is conservative (Estan and Varghese 2002): only counters at the least value grow.
    """

    def __init__(self, bits: int = 18) -> None:
        self._width = 1 << bits
        self._rows = [array("H", bytes(2 * self._width)) for _ in range(ROWS)]

    def get(self, key: int) -> int:
        """Return how often a 64-bit key was counted, or more."""
        low = self._width - 1
        first, second, third = self._rows
        return min(first[key & low], second[key >> _SHIFTS[1] & low], third[key >> _SHIFTS[2] & low])

    def add(self, keys: Iterable[int]) -> None:
        """Count each key once."""
        low = self._width - 1
        first, second, third = self._rows
        for key in keys:
            a, b, c = key & low, key >> _SHIFTS[1] & low, key >> _SHIFTS[2] & low
            least = min(first[a], second[b], third[c])
            if least == MOST:
                continue
            if first[a] == least:
                first[a] = least + 1
            if second[b] == least:
                second[b] = least + 1
            if third[c] == least:
                third[c] = least + 1

    def halve(self) -> None:
        """Forget half: every counter is halved, rounded down."""
        mask = int.from_bytes(b"\xff\x7f" * self._width, "little")  # the bit that a shift brings from the neighbour
        for place, row in enumerate(self._rows):
            shifted = int.from_bytes(_little(row), "little") >> 1 & mask
            self._rows[place] = _row(shifted.to_bytes(2 * self._width, "little"))

    def state(self) -> list[bytes]:
        """Return the rows, compressed."""
        return [zlib.compress(_little(row), 1) for row in self._rows]

    def restore(self, state: Iterable[Any]) -> None:
        """Take over what `state` returned."""
        self._rows = [_row(zlib.decompress(bytes(row))) for row in state]


def _little(row: "array[int]") -> bytes:
    copy = array("H", row)
    if _BIG:
        copy.byteswap()
    return copy.tobytes()


def _row(data: bytes) -> "array[int]":
    row = array("H", data)
    if _BIG:
        row.byteswap()
    return row


_BIG = array("H", [1]).tobytes() == b"\x00\x01"
