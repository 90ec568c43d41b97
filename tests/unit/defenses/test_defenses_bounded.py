"""The bounded map."""

from shoal.defenses.bounded import BoundedMap


def filled(capacity: int) -> tuple[BoundedMap[int, str], list[int]]:
    evictions: list[int] = []
    entries: BoundedMap[int, str] = BoundedMap(capacity, lambda: evictions.append(1))
    return entries, evictions


def test_the_entry_longest_untouched_goes_and_is_counted():
    entries, evictions = filled(2)
    entries.put(1, "a")
    entries.put(2, "b")
    entries.put(1, "c")  # touched: now 2 is the oldest
    assert not evictions
    entries.put(3, "d")
    assert (list(entries.items()), len(evictions)) == ([(1, "c"), (3, "d")], 1)


def test_looking_makes_nothing_younger():
    entries, _ = filled(2)
    entries.put(1, "a")
    entries.put(2, "b")
    assert entries.get(1) == "a"
    entries.put(3, "c")
    assert 1 not in entries
    assert entries.get(1) is None


def test_expiry_is_no_eviction():
    entries, evictions = filled(4)
    for number in range(4):
        entries.put(number, str(number))
    entries.expire(lambda key, _: key >= 2)
    assert (list(entries.items()), evictions) == ([(2, "2"), (3, "3")], [])
    assert entries.pop(2) == "2"
    assert entries.pop(2) is None


def test_restoring_keeps_order_and_bound():
    entries, evictions = filled(2)
    entries.replace(iter([(1, "a"), (2, "b"), (3, "c")]))
    assert (list(entries.items()), len(evictions)) == ([(2, "b"), (3, "c")], 1)
