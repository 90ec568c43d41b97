"""A bounded map whose entries belong to groups: when it is full, the group that holds most gives way, and no other."""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

G = TypeVar("G")
K = TypeVar("K")
V = TypeVar("V")


class GroupedMap(Generic[G, K, V]):
    """At most `capacity` entries, `each` of one group. So nobody costs a smaller group a place, with however many
    entries, or groups of one entry each. Of a group the oldest entry gives way, or the latest one with `latest`: then
    who came first stays. `evicted` is called for each entry that is dropped or not taken in.
    """

    def __init__(self, capacity: int, each: int, evicted: Callable[[], None], latest: bool = False) -> None:
        self._capacity, self._each, self._evicted, self._latest = capacity, each, evicted, latest
        self._groups: dict[G, dict[K, V]] = {}
        self._group_of: dict[K, G] = {}
        self._by_size: dict[int, dict[G, None]] = {}  # so that the greatest group is found at once

    def __len__(self) -> int:
        return len(self._group_of)

    def get(self, key: K) -> V | None:
        """Return the value, or None; looking does not make an entry younger."""
        return self._groups[self._group_of[key]][key] if key in self._group_of else None

    def put(self, group: G, key: K, value: V) -> None:
        """Store a value as the latest of its group; then one of the group, or of the greatest, may have to give way."""
        self.pop(key)
        self._resized(group, 1)
        self._groups.setdefault(group, {})[key] = value
        self._group_of[key] = group
        if len(self._groups[group]) > self._each:
            self._give_way(group)
        elif len(self._group_of) > self._capacity:
            self._give_way(self._greatest())

    def pop(self, key: K) -> V | None:
        """Remove and return a value, or None."""
        if key not in self._group_of:
            return None
        group = self._group_of.pop(key)
        self._resized(group, -1)
        value = self._groups[group].pop(key)
        if not self._groups[group]:
            del self._groups[group]
        return value

    def expire(self, keep: Callable[[K, V], bool]) -> None:
        """Drop every entry whose time is over; this is its planned end, so it is no eviction."""
        for key in [key for _, key, value in self.items() if not keep(key, value)]:
            self.pop(key)

    def items(self) -> Iterator[tuple[G, K, V]]:
        """Iterate over (group, key, value), smaller groups first, each from its oldest entry to its latest: whoever
        takes them over in this order drops the same ones later on."""
        groups = [group for size in sorted(self._by_size) for group in self._by_size[size]]
        return ((group, key, value) for group in groups for key, value in self._groups[group].items())

    def replace(self, entries: Iterable[tuple[G, K, V]]) -> None:
        """Take over entries in their order (restoring a state)."""
        self._groups, self._group_of, self._by_size = {}, {}, {}
        for group, key, value in entries:
            self.put(group, key, value)

    def _greatest(self) -> G:
        """Of several groups the one that has held so many for longest."""
        return next(iter(self._by_size[max(self._by_size)]))

    def _give_way(self, group: G) -> None:
        entries = self._groups[group]
        self.pop(next(reversed(entries)) if self._latest else next(iter(entries)))
        self._evicted()

    def _resized(self, group: G, change: int) -> None:
        size = len(self._groups.get(group, ()))
        if size:
            same = self._by_size[size]
            del same[group]
            if not same:
                del self._by_size[size]
        if size + change:
            self._by_size.setdefault(size + change, {})[group] = None
