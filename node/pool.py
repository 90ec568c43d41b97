"""The pool of pointers: what peers announced and may still be fetched."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from shoal.defenses.pointer import Pointer
from shoal.defenses.verdict import Counters

N = TypeVar("N", str, bytes)

CAPACITY = 4096  # about 2 MB of pointers; a swarm of 64 nodes that share 8 rollouts each fills it in 8 rounds


class Pool:
    """Admitted announcements in order of arrival.

    The pool is bounded. A pointer leaves it when it is taken, evicted or too old, and each of these is counted.
    """

    def __init__(self, counters: Counters, capacity: int = CAPACITY) -> None:
        self.counters = counters
        self.capacity = capacity
        self._pointers: dict[int, Pointer] = {}  # by arrival, which no two pointers share
        self._held: dict[str, dict[bytes, dict[int, None]]] = {}  # arrivals by operator and key
        self._waiting: asyncio.Event | None = None
        self.closed = False

    def __len__(self) -> int:
        return len(self._pointers)

    def add(self, pointer: Pointer) -> None:
        """Add a pointer; when the pool is full, the oldest one of the operator's that holds most gives way: of the
        key of it that holds most, since newcomers of open swarms are many under one name."""
        if len(self._pointers) >= self.capacity:
            keys = self._held[_loudest({name: sum(map(len, held.values())) for name, held in self._held.items()})]
            self._remove(next(iter(keys[_loudest({key: len(held) for key, held in keys.items()})])))
            self.counters.add("pool", "evicted_full")
        self._enter(pointer)
        if self._waiting is not None:
            self._waiting.set()

    def where(self, wanted: Callable[[Pointer], bool]) -> list[Pointer]:
        """Return the pointers that are wanted, in order of arrival."""
        return [pointer for pointer in self._pointers.values() if wanted(pointer)]

    def take(self, pointer: Pointer) -> None:
        """Remove a pointer that is about to be fetched: none is used twice."""
        self._remove(pointer.arrival)

    def expire(self, keep: Callable[[Pointer], bool]) -> None:
        """Drop every pointer that `keep` refuses."""
        stale = [arrival for arrival, pointer in self._pointers.items() if not keep(pointer)]
        for arrival in stale:
            self._remove(arrival)
        if stale:
            self.counters.add("pool", "expired", len(stale))

    async def wait(self, seconds: float) -> bool:
        """Wait for a new pointer, at most `seconds`; return whether one came. A closed pool is not waited for."""
        if self.closed:
            return False
        self._waiting = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                await self._waiting.wait()
                return not self.closed
        except TimeoutError:
            return False
        finally:
            self._waiting = None

    def close(self) -> None:
        """End all waiting: the node is about to stop."""
        self.closed = True
        if self._waiting is not None:
            self._waiting.set()

    def state(self) -> list[Any]:
        """Return the pointers as plain lists."""
        return [pointer.state() for pointer in self._pointers.values()]

    def restore(self, state: Sequence[Any]) -> None:
        """Take over what `state` returned."""
        pointers = [Pointer.from_state(item) for item in state]
        self._pointers, self._held = {}, {}
        for pointer in pointers:
            self._enter(pointer)

    def _enter(self, pointer: Pointer) -> None:
        self._pointers[pointer.arrival] = pointer
        self._held.setdefault(pointer.operator, {}).setdefault(pointer.key, {})[pointer.arrival] = None

    def _remove(self, arrival: int) -> None:
        pointer = self._pointers.pop(arrival)
        keys = self._held[pointer.operator]
        del keys[pointer.key][arrival]
        if not keys[pointer.key]:
            del keys[pointer.key]
        if not keys:
            del self._held[pointer.operator]


def _loudest(held: Mapping[N, int]) -> N:
    """The name that holds most; of several, the least."""
    return min(held, key=lambda name: (-held[name], name))
