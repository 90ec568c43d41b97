"""Starting on a real network: what delays, refuses or outlives a start. Failures 1, 2, 4 and 5."""

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import live_transports as live
import pytest

from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.protocol.libp2p import p2pd
from shoal.protocol.libp2p.keys import peer_id
from shoal.protocol.libp2p.p2pd import find_p2pd, take_port
from shoal.protocol.libp2p.settings import Libp2pSettings
from shoal.protocol.libp2p.transport import Libp2pTransport
from shoal.protocol.records import TRANSPORT, prove


@pytest.fixture(autouse=True)
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of this test's own for what p2pd needs; a short one, since it holds sockets."""
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture
def fake(tmp_path: Path) -> Callable[[str], str]:
    """A program in place of p2pd that does something first."""

    def make(first: str) -> str:
        path = tmp_path / "p2pd"
        path.write_text(f'#!/bin/sh\necho $$ > {tmp_path}/pid\n{first}\nexec {find_p2pd()} "$@"\n')
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def gone(pid: int) -> bool:
    """Whether a process has ended, whoever its parent is."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


def listens_on(pid: int) -> set[tuple[str, int]]:
    """The TCP addresses on which a process listens."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(entry))
        except FileNotFoundError:
            continue
    found = set()
    for name, size in (("tcp", 4), ("tcp6", 16)):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                host, port = fields[1].split(":")
                raw = bytes.fromhex(host)
                text = socket.inet_ntop(socket.AF_INET, raw[::-1]) if size == 4 else host
                found.add((text, int(port, 16)))
    return found


def test_a_slow_start_is_waited_out_and_shown(
    fake: Callable[[str], str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """Failures 1."""
    monkeypatch.setattr(p2pd, "NOTICE_SECONDS", 0.5)

    async def main() -> None:
        node = live.transport(1, daemon=fake("sleep 2"))
        await node.start()
        assert node.daemon_alive
        await node.close()

    with caplog.at_level(logging.INFO, "shoal.network"):
        live.run(main)
    assert "still starting" in caplog.text


def test_a_start_that_never_ends_is_given_up_and_leaves_nothing(fake: Callable[[str], str], tmp_path: Path, base: Path):
    async def main() -> None:
        node = live.transport(1, daemon=fake("sleep 1000"), start_seconds=1.0)
        with pytest.raises(EnvironmentFault, match="did not start within 1 s"):
            await node.start()
        assert not node.daemon_alive
        await node.close()

    live.run(main)
    assert gone(int((tmp_path / "pid").read_text()))
    assert list(base.iterdir()) == []


def test_a_daemon_that_ends_at_once_says_why(fake: Callable[[str], str]):
    async def main() -> None:
        node = live.transport(1, daemon=fake("echo no such thing; exit 3"))
        with pytest.raises(EnvironmentFault, match="ended at once: no such thing"):
            await node.start()
        missing = live.transport(1, daemon="/nonexistent/p2pd")
        with pytest.raises(EnvironmentFault, match="ended at once"):
            await missing.start()

    live.run(main)


def test_a_taken_port_is_named_and_nothing_is_half_started(taken: int, fake: Callable[[str], str], tmp_path: Path):
    """Failures 5."""

    async def main() -> None:
        node = live.transport(1, port=taken, daemon=fake(""))
        with pytest.raises(UsageError, match=rf"port {taken} .* is taken .* --port") as caught:
            await node.start()
        assert caught.value.exit_code == 2
        await node.close()

    live.run(main)
    assert not (tmp_path / "pid").exists()


def test_a_port_is_free_for_tcp_and_udp_alike(taken: int):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        for port in (taken, udp.getsockname()[1]):
            with pytest.raises(UsageError, match=f"port {port} "):
                take_port("127.0.0.1", port)
    free = take_port("127.0.0.1", 0)
    assert take_port("127.0.0.1", free) == free
    with pytest.raises(UsageError, match=r"cannot listen on 192\.0\.2\.1"):
        take_port("192.0.2.1", 0)


def test_a_port_that_was_in_use_a_moment_ago_is_free():
    """A quick restart: connections of the earlier run linger in TIME_WAIT."""
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    client = socket.create_connection(("127.0.0.1", port))
    accepted, _ = server.accept()
    accepted.close()  # the serving side closes first, so the port keeps a connection in TIME_WAIT
    client.close()
    server.close()
    assert take_port("127.0.0.1", port) == port


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"host": "localhost"}, "--host"),
        ({"port": 70_000}, "--port"),
        ({"bootstraps": ("example.org:4001",)}, "is no address of a node"),
        ({"announce_addresses": ("example.org",)}, "to announce"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_the_start(fields: dict[str, object], words: str):
    with pytest.raises(UsageError, match=words):
        Libp2pTransport(live.identity(1), live.SWARM, Libp2pSettings(**fields), lambda data: True, live.about)


def test_one_port_is_all_that_others_can_reach():
    """Failures 4: whatever else listens does so on loopback."""

    async def main() -> None:
        node = live.transport(1, host="0.0.0.0", use_relays=False, quic=True)
        await node.start()
        try:
            own, daemon = listens_on(os.getpid()), listens_on(node.daemon_pid)
            assert ("0.0.0.0", node.port) in daemon
            reachable = {(host, port) for host, port in own | daemon if not host.startswith("127.")}
            assert reachable == {("0.0.0.0", node.port)}
            assert all(f"/{node.port}" in address for address in node.addresses())
        finally:
            await node.close()

    live.run(main)


def test_dead_bootstraps_do_not_hinder_a_start_and_are_tried_until_one_answers():
    """Failures 2."""

    async def main() -> None:
        port = take_port("127.0.0.1", 0)
        later = peer_id(prove(live.identity(1), TRANSPORT)[0])
        node = live.transport(2, f"/ip4/127.0.0.1/tcp/1/p2p/{later}", f"/ip4/127.0.0.1/tcp/{port}/p2p/{later}")
        bootstrap = live.transport(1, port=port)
        try:
            await node.start()
            await live.until(lambda: node.counters.get("bootstrap_failed", 0) >= 2)
            assert node.connected_bootstraps == 0
            assert node.reachability().verdict == "unknown"
            await node.announce(b"nobody hears it")
            await bootstrap.start()
            await live.meshed(node, bootstrap)
            assert node.connected_bootstraps == 1
        finally:
            await node.close()
            await bootstrap.close()

    live.run(main)


def test_a_ctrl_c_in_the_terminal_does_not_reach_the_daemon():
    """The kernel sends it to the whole group of the foreground; the node drains first and still needs the network."""

    async def main() -> None:
        node = live.transport(1)
        await node.start()
        assert os.getpgid(node.daemon_pid) != os.getpgid(0)
        await node.close()

    live.run(main)


def test_nothing_is_left_after_closing(base: Path):
    async def main() -> None:
        node = live.transport(1)
        await node.start()
        pid = node.daemon_pid
        assert not gone(pid)
        assert len(list(base.glob("shoal-p2pd-*"))) == 1
        await node.close()
        await node.close()
        assert gone(pid)
        assert (node.daemon_pid, node.daemon_alive, node.peers(), node.addresses()) == (0, False, [], node.addresses())

    live.run(main)
    assert list(base.iterdir()) == []


ORPHAN = """
import asyncio, sys, uvloop
sys.path.insert(0, {tests!r})
import live_transports as live

async def main():
    node = live.transport(1)
    await node.start()
    print(node.daemon_pid, flush=True)
    await asyncio.sleep(1000)

uvloop.run(main())
"""


def test_the_daemon_dies_with_a_killed_process():
    """Even when it is frozen and cannot notice by itself."""
    script = textwrap.dedent(ORPHAN).format(tests=str(Path(__file__).parent))
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / ".ns")}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        os.kill(pid, signal.SIGSTOP)
        process.kill()
        process.wait()
        late = time.monotonic() + live.GENEROUS
        while not gone(pid) and time.monotonic() < late:
            time.sleep(0.02)
        assert gone(pid)


def test_folders_of_killed_processes_are_removed(monkeypatch: pytest.MonkeyPatch, base: Path):
    """And only those that nobody holds."""
    monkeypatch.setattr(p2pd, "FRESH_SECONDS", -1.0)
    left, held = base / "shoal-p2pd-left", base / "shoal-p2pd-held"
    for folder in (left, held):
        folder.mkdir()

    async def main() -> None:
        descriptor = p2pd._lock(held)
        assert descriptor is not None
        node = live.transport(1)
        await node.start()
        assert not left.exists()
        assert held.exists()
        await node.close()
        os.close(descriptor)

    live.run(main)


def test_a_long_temporary_folder_is_no_obstacle(monkeypatch: pytest.MonkeyPatch, base: Path):
    deep = base / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))

    async def main() -> None:
        node = live.transport(1)
        await node.start()
        assert node.daemon_alive
        await node.close()

    live.run(main)


def test_the_private_key_is_not_written_down(base: Path):
    async def main() -> None:
        node = live.transport(1)
        await node.start()
        try:
            seed = live.identity(1).derive(TRANSPORT)
            for path in base.rglob("*"):
                assert not path.is_file() or seed not in path.read_bytes()
            command = Path(f"/proc/{node.daemon_pid}/cmdline").read_bytes()
            assert seed not in command
            assert seed.hex().encode() not in command
        finally:
            await node.close()

    live.run(main)
