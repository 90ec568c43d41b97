"""What the service manager hears, over real datagram sockets."""

import asyncio
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.node.notify import Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    name = str(tmp_path / "notify") if request.param == "path" else f"@shoal-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + name[1:] if name.startswith("@") else name)
        listening.settimeout(10.0)
        yield listening, name


def test_ready_watchdog_and_stopping_arrive(manager: tuple[socket.socket, str]) -> None:
    listening, name = manager
    notifier = Notifier(name)
    notifier.ready()
    notifier.alive(True, "stepping\nREADY=0")
    notifier.alive(False, "stuck")
    notifier.stopping()
    notifier.close()
    heard = [listening.recv(4096).decode() for _ in range(4)]
    assert heard == ["READY=1", "WATCHDOG=1\nSTATUS=stepping READY=0", "STATUS=stuck", "STOPPING=1"]
    assert notifier.failures == 0


def test_the_environment_is_read_once_and_not_handed_on(manager: tuple[socket.socket, str]) -> None:
    environment = {"NOTIFY_SOCKET": manager[1], "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid()), "A": "b"}
    notifier = Notifier.from_environment(environment)
    assert environment == {"A": "b"}
    assert notifier.active
    assert notifier.watchdog_seconds == 30.0
    notifier.close()


@pytest.mark.parametrize(
    "environment",
    [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1234"}, {"WATCHDOG_USEC": "nonsense"}],
)
def test_without_a_manager_nothing_happens(environment: dict[str, str]) -> None:
    notifier = Notifier.from_environment(environment)
    notifier.ready()
    notifier.alive(True, "stepping")
    assert not notifier.active
    assert notifier.watchdog_seconds is None
    assert notifier.failures == 0


def test_the_watchdog_of_another_process_is_not_ours() -> None:
    assert Notifier.from_environment({"WATCHDOG_USEC": "5000000", "WATCHDOG_PID": "1"}).watchdog_seconds is None


def test_a_manager_that_went_away_is_counted_and_survived(tmp_path: Path) -> None:
    notifier = Notifier(str(tmp_path / "gone"))
    notifier.ready()
    notifier.alive(True, "stepping")
    notifier.close()
    assert notifier.failures == 2


class Steps:
    """As much of a view as the notifier reads."""

    def __init__(self) -> None:
        self.good = True

    def stepping(self) -> tuple[bool, str]:
        return self.good, "so it is"


def test_the_watchdog_is_fed_only_while_the_node_is_healthy(manager: tuple[socket.socket, str]) -> None:
    listening, name = manager
    listening.setblocking(False)

    async def life() -> list[str]:
        loop, view, started = asyncio.get_running_loop(), Steps(), asyncio.Event()
        heard: list[str] = []

        async def hear(text: str) -> None:
            while not heard or heard[-1] != text:
                heard.append((await asyncio.wait_for(loop.sock_recv(listening, 4096), 20)).decode())

        task = asyncio.create_task(Notifier(name, watchdog_seconds=0.02).keep(view, started.is_set))
        await hear("WATCHDOG=1\nSTATUS=so it is")
        assert "READY=1" not in heard
        started.set()
        await hear("READY=1")
        await hear("WATCHDOG=1\nSTATUS=so it is")
        view.good = False
        await hear("STATUS=so it is")
        red = [(await asyncio.wait_for(loop.sock_recv(listening, 4096), 20)).decode() for _ in range(3)]
        task.cancel()
        return red

    assert asyncio.run(life()) == ["STATUS=so it is"] * 3
