"""Places by group: the greatest group gives way, and nobody else; held against a plain list."""

import random

import pytest

from shoal.defenses.grouped import GroupedMap


class Plain:
    """The same rules in the slowest and plainest way."""

    def __init__(self, capacity: int, each: int, latest: bool) -> None:
        self.capacity, self.each, self.latest = capacity, each, latest
        self.entries: list[tuple[str, int, int]] = []
        self.grown: dict[str, list[tuple[int, int]]] = {}  # by group: when it came to hold so many
        self.now = 0
        self.dropped = 0

    def size(self, group: str) -> int:
        return sum(g == group for g, _, _ in self.entries)

    def put(self, group: str, key: int, value: int) -> None:
        for g, k, _ in list(self.entries):
            if k == key:
                self.remove(g, k)
        self.entries.append((group, key, value))
        self.note(group)
        if self.size(group) > self.each:
            self.give_way(group)
        elif len(self.entries) > self.capacity:
            most = max(self.size(g) for g, _, _ in self.entries)
            greatest = {g for g, _, _ in self.entries if self.size(g) == most}
            self.give_way(min(greatest, key=lambda g: self.since[g]))

    since: dict[str, int]

    def note(self, group: str) -> None:
        self.now += 1
        self.since = {**getattr(self, "since", {}), group: self.now}

    def remove(self, group: str, key: int) -> None:
        self.entries = [entry for entry in self.entries if entry[1] != key]
        self.note(group)

    def give_way(self, group: str) -> None:
        keys = [k for g, k, _ in self.entries if g == group]
        self.remove(group, keys[-1] if self.latest else keys[0])
        self.dropped += 1


@pytest.mark.parametrize("latest", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_it_does_what_plain_lists_do(seed: int, latest: bool):
    rng = random.Random(seed)
    drops: list[int] = []
    fast: GroupedMap[str, int, int] = GroupedMap(12, 5, lambda: drops.append(1), latest)
    plain = Plain(12, 5, latest)
    for step in range(600):
        group, key = rng.choice("aaaabbcdefg"), rng.randrange(60)
        fast.put(group, key, step)
        plain.put(group, key, step)
        assert sorted((k, v) for _, k, v in fast.items()) == sorted((k, v) for _, k, v in plain.entries)
        assert len(fast) == len(plain.entries) <= 12
        assert len(drops) == plain.dropped
        if step % 7 == 0:
            again: GroupedMap[str, int, int] = GroupedMap(12, 5, lambda: drops.append(1), latest)
            again.replace(fast.items())
            assert list(again.items()) == list(fast.items())
            fast = again


def test_a_crowd_makes_room_with_its_own():
    kept: GroupedMap[str, int, None] = GroupedMap(100, 100, lambda: None)
    for key in range(5):
        kept.put(f"calm {key}", key, None)
    for key in range(1000, 5000):
        kept.put("crowd", key, None)
    assert all(key in {k for _, k, _ in kept.items()} for key in range(5))
    assert len(kept) == 100


def test_in_a_map_that_keeps_who_came_first_the_late_are_not_taken_in():
    drops: list[int] = []
    kept: GroupedMap[str, int, str] = GroupedMap(3, 3, lambda: drops.append(1), latest=True)
    for key in range(10):
        kept.put("crowd", key, "value")
    assert [kept.get(key) for key in (0, 1, 2, 3)] == ["value", "value", "value", None]
    kept.put("elsewhere", 99, "other")
    assert kept.get(99) == "other"
    assert kept.get(2) is None
    assert len(drops) == 8


def test_what_ends_as_planned_is_no_eviction():
    drops: list[int] = []
    kept: GroupedMap[str, int, int] = GroupedMap(8, 8, lambda: drops.append(1))
    for key in range(6):
        kept.put("ab"[key % 2], key, key)
    kept.expire(lambda key, value: key == value and value >= 4)
    assert [(g, k) for g, k, _ in kept.items()] == [("a", 4), ("b", 5)]
    assert (kept.pop(4), kept.pop(4), kept.get(5)) == (4, None, 5)
    assert drops == []
