"""Sequence numbers: unique in a sliding window for each key, and committed to disk before they are used."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from shoal.protocol.errors import Malformed

DEFAULT_WINDOW = 1024
DEFAULT_KEYS = 4096  # times 16 bytes times the window: 64 MiB at the very worst
DEFAULT_BLOCK = 64


class _Seen:
    """The sequences of one key within the window, ascending, each with its policy version (never falling)."""

    __slots__ = ("dropped_version", "sequences", "versions")

    def __init__(self) -> None:
        self.sequences = array("Q")
        self.versions = array("Q")
        self.dropped_version = 0  # the newest version among those that left the window

    def accept(self, sequence: int, version: int, size: int) -> None:
        if self.sequences and sequence <= self.sequences[-1] - size:
            raise Malformed("sequence_too_old")
        place = bisect_left(self.sequences, sequence)
        if place < len(self.sequences) and self.sequences[place] == sequence:
            raise Malformed("replayed_sequence")
        before = self.versions[place - 1] if place else self.dropped_version
        after = self.versions[place] if place < len(self.versions) else version
        if not before <= version <= after:
            raise Malformed("version_fell")
        self.sequences.insert(place, sequence)
        self.versions.insert(place, version)
        self._slide(size)

    def _slide(self, size: int) -> None:
        leaving = bisect_left(self.sequences, self.sequences[-1] - size + 1)
        if leaving:
            self.dropped_version = self.versions[leaving - 1]
            del self.sequences[:leaving]
            del self.versions[:leaving]


class SequenceWindow:
    """Which sequence numbers of which keys were seen. Order is not required; a number is accepted once.

    The least recently active keys are forgotten (`evicted` counts them), so that memory is bounded.
    """

    def __init__(self, size: int = DEFAULT_WINDOW, keys: int = DEFAULT_KEYS) -> None:
        self._size = size
        self._max_keys = keys
        self._keys: OrderedDict[bytes, _Seen] = OrderedDict()
        self.evicted = 0

    def accept(self, key: bytes, sequence: int, policy_version: int) -> None:
        """Record a number of a key, which is verified already: forged headers must not burn sequences.

        Raises Malformed: replayed_sequence, sequence_too_old, or version_fell when the sender's policy version falls
        as its sequence grows. What is refused leaves no trace.
        """
        seen = self._keys.get(key)
        if seen is None:
            seen = _Seen()
        seen.accept(sequence, policy_version, self._size)
        self._keys[key] = seen
        self._keys.move_to_end(key)
        while len(self._keys) > self._max_keys:
            self._keys.popitem(last=False)
            self.evicted += 1

    def newest_version(self, key: bytes) -> int | None:
        """The newest policy version accepted from a key; None for an unknown key. Version lag counts from it."""
        seen = self._keys.get(key)
        return seen.versions[-1] if seen is not None else None

    def state(self) -> list[Any]:
        """Plain lists and bytes for a checkpoint, least recently active key first."""
        rows = [[key, list(s.sequences), list(s.versions), s.dropped_version] for key, s in self._keys.items()]
        return [self.evicted, rows]

    def restore(self, state: Any) -> None:
        """Take over what state() gave."""
        self.evicted, rows = state
        self._keys = OrderedDict()
        for key, sequences, versions, dropped in rows:
            seen = _Seen()
            seen.sequences.extend(sequences)
            seen.versions.extend(versions)
            seen.dropped_version = dropped
            self._keys[key] = seen


class SequenceCounter:
    """Hands out a node's own sequence numbers and commits a whole block to disk before the first of it is used.

    So a crash skips at most a block and can never make an honest node reuse a number, which looks like equivocation.
    """

    def __init__(self, persist: Callable[[int], None], start: int = 0, block: int = DEFAULT_BLOCK) -> None:
        self._persist = persist
        self._block = block
        self.position = start  # the next number; a clean stop may resume from it, a crash from the persisted end
        self._committed = start

    def resume(self, position: int) -> None:
        """Go on at a position of an earlier run, unless this counter has been told of a later one."""
        self.position = max(self.position, position)

    def next(self) -> int:
        """The next number. When persisting fails, no number is given out."""
        if self.position >= self._committed:
            end = self.position + self._block
            self._persist(end)
            self._committed = end
        number = self.position
        self.position += 1
        return number
