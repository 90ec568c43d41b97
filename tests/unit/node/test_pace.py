"""Pausing, stopping, and work in a thread."""

import asyncio
import threading

import pytest

from shoal.defenses.verdict import Counters
from shoal.node.compute import ThreadCompute
from shoal.node.pace import Steered
from shoal.node.pool import Pool


async def nothing() -> None:
    return


def test_a_rest_ends_at_once_when_the_node_is_told_to_stop() -> None:
    async def main() -> None:
        pace = Steered(nothing)
        resting = asyncio.create_task(pace.rest(3600.0))
        await asyncio.sleep(0)
        pace.stop()
        await asyncio.wait_for(resting, 10)
        assert pace.stopped

    asyncio.run(main())


def test_a_paused_node_waits_until_it_is_resumed_or_stopped() -> None:
    async def main() -> None:
        for wake in (Steered.resume, Steered.stop):
            pace = Steered(nothing)
            pace.pause()
            waiting = asyncio.create_task(pace.may_go_on())
            for _ in range(5):
                await asyncio.sleep(0)
            assert not waiting.done()
            assert pace.phase == "paused"
            wake(pace)
            await asyncio.wait_for(waiting, 10)
            assert not pace.paused

    asyncio.run(main())


def test_a_stopped_node_is_not_paused_any_more() -> None:
    async def main() -> None:
        pace = Steered(nothing)
        pace.stop()
        pace.pause()
        await asyncio.wait_for(pace.may_go_on(), 10)

    asyncio.run(main())


def test_a_closed_pool_is_not_waited_for() -> None:
    async def main() -> None:
        pool = Pool(Counters())
        waiting = asyncio.create_task(pool.wait(3600.0))
        await asyncio.sleep(0)
        pool.close()
        assert await asyncio.wait_for(waiting, 10) is False
        assert await pool.wait(3600.0) is False

    asyncio.run(main())


def test_work_that_has_begun_is_seen_to_its_end_when_its_caller_is_cancelled() -> None:
    release, ended = threading.Event(), []

    def work() -> None:
        release.wait(10)
        ended.append(True)

    async def main() -> None:
        compute = ThreadCompute()
        running = asyncio.create_task(compute.run("update", work))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.sleep(0)
        assert not running.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert ended == [True]
        compute.close()

    asyncio.run(main())


def test_the_loop_goes_on_while_work_runs() -> None:
    began, release = threading.Event(), threading.Event()

    def work() -> str:
        began.set()
        assert release.wait(10)
        return threading.current_thread().name

    async def main() -> None:
        compute = ThreadCompute()
        running = asyncio.create_task(compute.run("sample", work))
        while not began.is_set():
            await asyncio.sleep(0)
        release.set()  # only a loop that is free gets here
        assert (await running).startswith("shoal-compute")
        compute.close()

    asyncio.run(main())
