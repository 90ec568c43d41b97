"""Staying alive on a real network: daemons that die or freeze, peers that fall silent, halves that meet again."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import live_transports as live
import pytest
from live_transports import digest

from shoal.protocol.errors import FetchFailed
from shoal.protocol.libp2p.addresses import full, parse
from shoal.protocol.libp2p.transport import Libp2pTransport
from shoal.protocol.records import PeerRecord

PATIENT = replace(live.QUICK, answer=2.0, connect=3.0, call=60.0)  # a frozen daemon is left alone


async def heard(node: Libp2pTransport, count: int) -> list[bytes]:
    """The next announcements."""
    reader = node.announcements()
    async with asyncio.timeout(live.GENEROUS):
        return [(await anext(reader)).data for _ in range(count)]


async def reason(request: object) -> str:
    with pytest.raises(FetchFailed) as caught:
        await request
    return caught.value.reason


def test_a_killed_daemon_comes_back_and_the_node_goes_on():
    """Failures 11: same identity, same port; records, blobs and announcements work again, and it is counted."""

    async def main() -> None:
        async with live.swarm(2) as (first, second):
            blob = b"blob" * 1000
            first.offer(digest(blob), blob)
            await first.publish_record("things", b"mine", 600)
            reading = asyncio.create_task(heard(first, 2))
            await second.announce(b"before")
            await live.until(lambda: first.counters.get("received"))
            port, addresses, pid = first.port, first.addresses(), first.daemon_pid
            os.kill(pid, signal.SIGKILL)
            await live.until(lambda: not first.daemon_alive)
            await first.announce(b"lost or not, it does not raise")
            await first.publish_record("others", b"late", 600)
            assert await reason(first.fetch(live.identity(2).key, digest(blob), 10_000)) == "unreachable"
            await live.until(lambda: first.daemon_alive and first.daemon_pid != pid)
            await live.meshed(first, second)
            assert (first.port, first.addresses()) == (port, addresses)
            assert first.daemon_restarts == first.counters["p2pd_ended"] == 1
            await second.announce(b"after")
            assert await reading == [b"before", b"after"]
            assert await second.fetch(live.identity(1).key, digest(blob), 10_000) == blob
            assert set(await first.lookup_records("things")) == {b"mine"}
            assert set(await first.lookup_records("others")) == {b"late"}

    live.run(main)


def test_a_daemon_that_freezes_is_replaced():
    async def main() -> None:
        node = live.transport(1, rhythm=replace(live.QUICK, call=0.5))
        await node.start()
        try:
            pid = node.daemon_pid
            os.kill(pid, signal.SIGSTOP)
            await live.until(lambda: node.daemon_restarts == 1)
            assert node.daemon_pid not in (0, pid)
        finally:
            await node.close()

    live.run(main)


def test_a_frozen_peer_costs_a_fetch_its_time_only_and_is_marked_down():
    """Failures 27 and 26: no sign of life while its connection and its record still stand; back when it thaws."""

    async def main() -> None:
        async with live.swarm(2, rhythm=PATIENT) as (first, second):
            blob = b"blob" * 1000
            first.offer(digest(blob), blob)
            os.kill(first.daemon_pid, signal.SIGSTOP)
            try:
                assert await reason(second.fetch(live.identity(1).key, digest(blob), 10_000)) == "timeout"
                await live.until(lambda: second.peers() == [])
                assert [peer.connected for peer in second.known()] == [False]
                assert second.counters["peer_down"] == 1
            finally:
                os.kill(first.daemon_pid, signal.SIGCONT)
            await live.until(lambda: second.peers() == [live.identity(1).key])
            assert await second.fetch(live.identity(1).key, digest(blob), 10_000) == blob
            assert first.daemon_restarts == 0

    live.run(main)


def test_a_dead_gossip_thread_is_started_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shoal.protocol.libp2p.mesh.RESTART_SECONDS", 0.2)

    async def main() -> None:
        async with live.swarm(2) as (first, second):
            life = first._mesh._gossip._life
            assert life is not None
            life.session.call(lambda: 1 / 0)  # in the trio thread, where nothing may raise
            await live.until(lambda: first.counters.get("gossip_crashed"))
            await live.meshed(first, second)
            await second.announce(b"after")
            assert await heard(first, 1) == [b"after"]

    live.run(main)


def test_a_machine_that_has_slept_begins_anew(monkeypatch: pytest.MonkeyPatch):
    """Timers stand still meanwhile: records have run out, and bootstraps wait for their next turn."""

    async def main() -> None:
        async with live.swarm(2, rhythm=replace(live.QUICK, ping=1000.0)) as (first, second):
            asleep = 0.0
            monkeypatch.setattr(
                "shoal.protocol.libp2p.transport.time", SimpleNamespace(time=lambda: time.time() + asleep)
            )
            met, told = second.counters["bootstrap_met"], second.known()[0].record.sequence
            asleep = 3600.0
            await live.until(lambda: second.counters.get("woke_up") == first.counters.get("woke_up") == 1)
            await live.until(lambda: second.counters["bootstrap_met"] > met)
            await live.until(lambda: second.known()[0].record.sequence > told)

    live.run(main)


def test_the_same_identity_may_start_twice():
    """Two processes on one identity are a mistake, which the lock of a home refuses; here neither ends the other."""

    async def main() -> None:
        async with live.swarm(2) as (first, second):
            twin = live.transport(2, first)
            await twin.start()
            try:
                await live.until(lambda: twin.connected_bootstraps == 1)
                assert twin.port != second.port
                first.offer(digest(b"blob"), b"blob")
                for each in (twin, second):
                    await live.until(lambda each=each: each.peers() == [live.identity(1).key])
                    assert await each.fetch(live.identity(1).key, digest(b"blob"), 10) == b"blob"
            finally:
                await twin.close()

    live.run(main)


@asynccontextmanager
async def doorway(target: int) -> AsyncIterator[tuple[int, Callable[[bool], None]]]:
    """A port that leads to another one while it is open: what connects two halves of a network."""
    is_open, tasks = False, set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while is_open and (data := await reader.read(65536)):
                writer.write(data)
                await writer.drain()
        except OSError:
            return
        finally:
            writer.close()

    def enter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(through(reader, writer)))

    async def through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not is_open:
            writer.close()
            return
        far = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(carry(reader, far[1]), carry(far[0], writer))

    def switch(to: bool) -> None:
        nonlocal is_open
        is_open = to

    server = await asyncio.start_server(enter, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], switch
    finally:
        server.close()
        for task in tasks:
            task.cancel()


def test_two_halves_of_a_swarm_meet_when_they_can():
    """Failures 21: bootstraps are tried for ever, also by who has company already, and one meeting joins the halves."""

    async def main() -> None:
        bootstrap, left, right, friend = (live.transport(1), None, None, None)
        started = [bootstrap]
        await bootstrap.start()
        try:
            async with doorway(bootstrap.port) as (port, switch):
                left = live.transport(2, bootstrap)
                peer = bootstrap.addresses()[0].rpartition("/p2p/")[2]
                right = live.transport(3, full(f"/ip4/127.0.0.1/tcp/{port}", peer))
                for node in (left, right):
                    await node.start()
                    started.append(node)
                friend = live.transport(4, right)
                await friend.start()
                started.append(friend)
                await live.meshed(bootstrap, left)
                await live.meshed(right, friend)
                await live.until(lambda: right.counters.get("bootstrap_failed", 0) >= 2)
                switch(True)
                await live.until(lambda: all(len(node.peers()) == 3 for node in started))
                await live.until(lambda: all(node.gossip_peers == 3 for node in started))
                await left.announce(b"hello, other half")
                assert await heard(friend, 1) == [b"hello, other half"]
        finally:
            for node in started:
                await node.close()

    live.run(main)


def test_records_carry_what_the_node_says_and_changes_travel():
    async def main() -> None:
        heard: list[PeerRecord] = []
        revision = 4
        first = live.transport(1)
        first._record._about = lambda: live.about()._replace(revision=revision)
        await first.start()
        second = live.transport(2, first)
        second.on_record = heard.append
        try:
            await second.start()
            await live.meshed(first, second)
            assert (heard[-1].key, heard[-1].revision, heard[-1].capabilities) == (live.identity(1).key, 4, ("train",))
            view = second.known()[0]
            assert (view.key, view.record, view.connected) == (live.identity(1).key, heard[-1], True)
            assert all(parse(address) is not None for address in view.addresses)
            await live.until(lambda: second.known()[0].seen_at == (f"/ip4/127.0.0.1/tcp/{first.port}",))
            revision = 5
            await live.until(lambda: heard[-1].revision == 5)
        finally:
            await second.close()
            await first.close()

    live.run(main)


def test_a_node_knows_that_it_can_be_reached():
    """Failures 6, on a machine where nothing is in the way; the other verdicts have tests of their own."""

    async def main() -> None:
        async with live.swarm(2) as nodes:
            await live.until(lambda: all(node.reachability().verdict == "public" for node in nodes))
            assert nodes[1].reachability().seen_as == (f"/ip4/127.0.0.1/tcp/{nodes[1].port}",)

    live.run(main)
