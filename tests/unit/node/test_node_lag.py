"""The event-loop lag: a sorted ring whose percentiles are those of the newest samples."""

import asyncio
import random
import time

from shoal.node.lag import LagMonitor


def test_nothing_measured_is_zero() -> None:
    assert LagMonitor().milliseconds() == {"p50": 0.0, "p99": 0.0, "max": 0.0}


def test_percentiles_by_nearest_rank() -> None:
    monitor = LagMonitor()
    for sample in random.Random(1).sample(range(1, 101), 100):
        monitor.add(sample / 1000)
    assert monitor.milliseconds() == {"p50": 50.0, "p99": 99.0, "max": 100.0}


def test_the_oldest_sample_leaves_and_equal_ones_stay() -> None:
    monitor = LagMonitor(samples=4)
    for sample in (9.0, 1.0, 2.0, 2.0, 3.0):
        monitor.add(sample)
    assert monitor.milliseconds() == {"p50": 2000.0, "p99": 3000.0, "max": 3000.0}
    monitor.add(1.0)  # 1.0 goes, 1.0 comes
    monitor.add(5.0)  # one of the twos goes
    assert monitor.milliseconds() == {"p50": 2000.0, "p99": 5000.0, "max": 5000.0}


def test_the_ring_holds_512_samples() -> None:
    monitor = LagMonitor()
    monitor.add(7.0)
    for _ in range(511):
        monitor.add(0.0)
    assert monitor.milliseconds()["max"] == 7000.0
    monitor.add(0.0)
    assert monitor.milliseconds()["max"] == 0.0


def test_a_blocked_loop_shows() -> None:
    async def measure() -> float:
        monitor = LagMonitor(interval=0.001)
        task = asyncio.create_task(monitor.run())
        while not monitor.milliseconds()["max"]:
            await asyncio.sleep(0.001)
        time.sleep(0.06)  # what a callback must not do
        for _ in range(20):
            await asyncio.sleep(0.001)
        task.cancel()
        return monitor.milliseconds()["max"]

    assert asyncio.run(measure()) > 40.0
