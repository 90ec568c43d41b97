"""What operators reported of other networks, tried on real transports: docs/field-failures.md names each line."""

import asyncio
import logging
import os
import shlex
import signal
import socket
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import live_transports as live
import pytest

from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.protocol.libp2p import p2pd
from shoal.protocol.libp2p.keys import peer_id
from shoal.protocol.records import TRANSPORT, prove

LISTENING = "0A"  # a state in /proc/net/tcp
FROZEN = replace(live.QUICK, connect=2.0, answer=1.0, refresh=3.0)


def address_of(number: int, port: int) -> str:
    """Where the transport of this number will be, whether it is there or not."""
    return f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer_id(prove(live.identity(number), TRANSPORT)[0])}"


def slow_p2pd(folder: Path, wait: str) -> str:
    """A p2pd that does something else first."""
    script = folder / "p2pd"
    script.write_text(f'#!/bin/sh\n{wait}\nexec {shlex.quote(p2pd.find_p2pd())} "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def test_a_slow_start_is_waited_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(p2pd, "NOTICE_SECONDS", 0.2)
    gate = tmp_path / "gate"
    node = live.transport(1, daemon=slow_p2pd(tmp_path, f"until [ -e {gate} ]; do sleep 0.05; done"))

    async def main() -> None:
        starting = asyncio.create_task(node.start())
        try:
            await live.until(lambda: "still starting" in caplog.text)
            assert not starting.done()
            gate.touch()
            await starting
            assert node.addresses()
        finally:
            await node.close()

    with caplog.at_level(logging.INFO, "shoal.network"):
        live.run(main)


def test_what_never_starts_is_an_error_that_leaves_nothing_behind(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    node = live.transport(1, daemon=slow_p2pd(tmp_path, f"echo $$ > {told}\nsleep 600"), start_seconds=1.0)

    async def main() -> None:
        with pytest.raises(EnvironmentFault, match="did not start within 1 s"):
            await node.start()

    live.run(main)
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)


def test_halves_that_know_a_dead_bootstrap_only_are_one_swarm_when_it_answers() -> None:
    async def main() -> None:
        port = p2pd.take_port("127.0.0.1", 0)
        dead = address_of(3, port)
        first, second = live.transport(1, dead), live.transport(2, dead)
        late = live.transport(3, port=port)
        try:
            await first.start()
            await second.start()
            await live.until(lambda: all(each.counters.get("bootstrap_failed", 0) >= 2 for each in (first, second)))
            assert (first.connected_bootstraps, first.peers(), second.peers()) == (0, [], [])
            await late.start()
            await live.meshed(first, second, late)
            assert first.connected_bootstraps == second.connected_bootstraps == 1
        finally:
            for each in (first, second, late):
                await each.close()

    live.run(main)


def sockets(pid: int, table: str) -> Iterator[tuple[str, int]]:
    """Local addresses (as the kernel writes them) and ports of a process's sockets; of TCP, those that listen."""
    held = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            held.add(os.readlink(descriptor))
        except FileNotFoundError:  # closed meanwhile
            continue
    for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
        words = line.split()
        if f"socket:[{words[9]}]" in held and (table.startswith("udp") or words[3] == LISTENING):
            host, port = words[1].split(":")
            yield host, int(port, 16)


def test_one_port_serves_everything() -> None:
    async def main() -> None:
        port = p2pd.take_port("0.0.0.0", 0)
        node = live.transport(1, host="0.0.0.0", port=port)
        await node.start()
        try:
            tables = ("tcp", "tcp6", "udp", "udp6")
            opened = {(table[:3], number) for table in tables for _, number in sockets(node.daemon_pid, table)}
            assert {("tcp", port), ("udp", port)} <= opened
            listening = {number for table in ("tcp", "tcp6") for _, number in sockets(node.daemon_pid, table)}
            assert listening == {port}
            own = {host for table in ("tcp", "tcp6") for host, _ in sockets(os.getpid(), table)}
            assert own == {"0100007F"}, "this process listens on loopback alone"
        finally:
            await node.close()

    live.run(main)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_taken_port_is_named_with_its_option(kind: socket.SocketKind) -> None:
    async def main() -> None:
        with socket.socket(socket.AF_INET, kind) as taken:
            taken.bind(("127.0.0.1", 0))
            if kind == socket.SOCK_STREAM:
                taken.listen()
            port = taken.getsockname()[1]
            node = live.transport(1, port=port)
            with pytest.raises(UsageError, match=rf"port {port} .* --port"):
                await node.start()
            assert node.daemon_pid == 0

    live.run(main)


def test_a_dead_network_daemon_is_started_again_on_its_port() -> None:
    async def main() -> None:
        async with live.swarm(2) as (first, second):
            port, reader = second.port, second.announcements()
            os.kill(second.daemon_pid, signal.SIGKILL)
            await live.until(lambda: second.daemon_restarts == 1)
            assert second.port == port
            assert second.counters["p2pd_ended"] == 1
            await live.meshed(first, second)
            await first.announce(b"after")
            async with asyncio.timeout(live.GENEROUS):
                assert (await anext(reader)).data == b"after"

    live.run(main)


def test_a_silent_peer_is_marked_down_and_comes_back() -> None:
    """It holds its connections and answers nothing: neither a closed connection nor its record tells."""

    async def main() -> None:
        async with live.swarm(2, rhythm=FROZEN) as (first, second):
            os.kill(second.daemon_pid, signal.SIGSTOP)
            try:
                await live.until(lambda: first.peers() == [])
                assert first.counters["peer_down"] == 1
                assert [peer.connected for peer in first.known()] == [False]
            finally:
                os.kill(second.daemon_pid, signal.SIGCONT)
            await live.until(lambda: first.peers() == [live.identity(2).key])

    live.run(main)


def test_who_has_left_is_no_peer_any_more() -> None:
    async def main() -> None:
        async with live.swarm(2, rhythm=FROZEN) as (first, second):
            await second.close()
            await live.until(lambda: first.peers() == [])

    live.run(main)
