"""The pool of pointers is bounded, fair when it overflows, and loses nothing uncounted."""

import asyncio
from collections import Counter

from node_pieces import pointer

from shoal.defenses.verdict import Counters
from shoal.node.pool import Pool
from shoal.protocol.virtual import VirtualTimeLoop


def test_when_full_the_loudest_operator_loses_its_oldest() -> None:
    pool = Pool(Counters(), capacity=5)
    quiet = [pointer(1), pointer(2)]
    loud = [pointer(3, sequence) for sequence in range(6)]
    for item in [*quiet, *loud]:
        pool.add(item)
    held = pool.where(lambda _: True)
    assert Counter(item.operator for item in held) == {"operator-1": 1, "operator-2": 1, "operator-3": 3}
    assert [item.sequence for item in held if item.operator == "operator-3"] == [3, 4, 5]
    assert pool.counters.get("pool/evicted_full") == 3


def test_of_an_operator_with_many_keys_the_loudest_key_loses() -> None:
    pool = Pool(Counters(), capacity=6)
    for item in [*(pointer(1, n, "newcomers") for n in range(2)), pointer(3, 0, "known")]:
        pool.add(item)
    for sequence in range(50):
        pool.add(pointer(2, sequence, "newcomers"))
    held = Counter((item.operator, item.key) for item in pool.where(lambda _: True))
    assert sorted(held.values()) == [1, 2, 3]
    assert held["newcomers", pointer(1).key] == 2


def test_a_thousand_rounds_leave_no_more_than_the_capacity() -> None:
    pool = Pool(Counters(), capacity=64)
    one = pointer(1)
    for sequence in range(20_000):
        pool.add(type(one)(one.announcement, one.operator, 0, sequence))
    assert len(pool) == 64
    assert pool.counters.get("pool/evicted_full") == 20_000 - 64


def test_what_is_too_old_is_dropped_and_counted() -> None:
    pool = Pool(Counters())
    for sequence in range(4):
        pool.add(pointer(1, sequence))
    pool.expire(lambda item: item.sequence >= 3)
    assert [item.sequence for item in pool.where(lambda _: True)] == [3]
    assert pool.counters.get("pool/expired") == 3


def test_waiting_ends_with_an_arrival_or_with_the_time() -> None:
    async def story() -> tuple[bool, float, bool, float]:
        loop = asyncio.get_running_loop()
        pool = Pool(Counters())
        loop.call_later(5, pool.add, pointer(1))
        came, at = await pool.wait(60), loop.time()
        missed = await pool.wait(60)
        return came, at, missed, loop.time()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(story()) == (True, 5.0, False, 65.0)


def test_the_pool_comes_back_from_its_state() -> None:
    pool = Pool(Counters())
    for node in (3, 1, 2):
        pool.add(pointer(node))
    other = Pool(Counters())
    other.restore(pool.state())
    assert other.where(lambda _: True) == pool.where(lambda _: True)
