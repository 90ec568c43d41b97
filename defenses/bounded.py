"""A map that cannot grow without bound: everything keyed by what a peer sends lives in one of these."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedMap(Generic[K, V]):
    """A map of at most `capacity` entries that drops the one longest untouched and calls `evicted` for each drop."""

    def __init__(self, capacity: int, evicted: Callable[[], None]) -> None:
        self._capacity = capacity
        self._evicted = evicted
        self._entries: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        """Return the value, or None; looking does not make an entry younger."""
        return self._entries.get(key)

    def put(self, key: K, value: V) -> None:
        """Store a value as the youngest entry, evicting the oldest when full."""
        self._entries.pop(key, None)
        if len(self._entries) >= self._capacity:
            del self._entries[next(iter(self._entries))]
            self._evicted()
        self._entries[key] = value

    def pop(self, key: K) -> V | None:
        """Remove and return an entry, or None."""
        return self._entries.pop(key, None)

    def expire(self, keep: Callable[[K, V], bool]) -> None:
        """Drop every entry whose time is over; this is its planned end, so it is no eviction."""
        self._entries = {key: value for key, value in self._entries.items() if keep(key, value)}

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate from the oldest entry to the youngest."""
        return iter(self._entries.items())

    def replace(self, entries: Iterator[tuple[K, V]]) -> None:
        """Take over entries in their order (restoring a state); what does not fit is evicted and counted."""
        self._entries = {}
        for key, value in entries:
            self.put(key, value)
