import asyncio
import os
import signal
import socket

import pytest

from shoal.protocol.virtual import VirtualTimeLoop


def run(main, start: float = 0.0):
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(start)) as runner:
        return runner.run(main)


def test_a_million_seconds_pass_in_order_and_at_once():
    """Were a single second waited for really, the suite would not end."""
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append((name, asyncio.get_running_loop().time()))

    async def main() -> None:
        await asyncio.gather(sleeper("late", 1e6), sleeper("soon", 0.25), sleeper("days", 2e5), sleeper("now", 0))

    run(main())
    assert [name for name, _ in woken] == ["now", "soon", "days", "late"]
    assert [time for _, time in woken] == pytest.approx([0, 0.25, 2e5, 1e6])


def test_time_starts_where_it_is_told():
    async def main() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        before = loop.time()
        await asyncio.sleep(0.125)
        return before, loop.time()

    assert run(main(), start=1.7e9) == (1.7e9, 1.7e9 + 0.125)


def test_timeouts_are_virtual_too():
    async def main() -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), timeout=500)
        return asyncio.get_running_loop().time()

    assert run(main()) == pytest.approx(500)


def test_a_deadlock_is_an_error_and_no_hang():
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="deadlock"):
        run(main())


def test_computing_moves_the_clock_on():
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        due: list[float] = []
        loop.call_later(5, lambda: due.append(loop.time()))
        loop.advance_to(20)
        assert due == []
        await asyncio.sleep(0)
        with pytest.raises(ValueError, match="backwards"):
            loop.advance_to(19)
        await asyncio.sleep(1)
        return [*due, loop.time()]

    assert run(main()) == [20.0, 21.0]


def test_real_events_come_through_before_time_moves():
    async def main() -> float:
        here, there = socket.socketpair()
        here.setblocking(False)
        loop = asyncio.get_running_loop()
        there.send(b"x")
        await loop.sock_recv(here, 1)
        here.close()
        there.close()
        return loop.time()

    assert run(main()) == 0.0


def test_ctrl_c_ends_the_loop():
    async def main() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(1e9)

    with pytest.raises(KeyboardInterrupt):
        run(main())
