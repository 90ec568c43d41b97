"""The bridge's lookups against real hivemind nodes over loopback."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgpack
import pytest

from shoal.defenses.verdict import Counters
from shoal.node.bridge import rpc
from shoal.node.bridge.dht import ForeignDht, key_of_round
from shoal.node.bridge.wire import unwrap
from shoal.protocol.errors import UsageError
from shoal.protocol.libp2p.imports import hivemind

SEED = b"bridge" + bytes(26)
STRANGER = "12D3KooWBvUPDdVVyeDpXbe8d2TVQx5zV6kQk3kY5FNXUoK6K9dV"
DAY = 86_400.0


class Swarm:
    """Two hivemind nodes that know each other, and the bridge's client of the first."""

    def __init__(self, nodes: list[Any], bridge: ForeignDht, counters: Counters) -> None:
        self.first, self.second = nodes
        self.bridge, self.counters = bridge, counters

    async def honest(self, node: Any, round: int, value: bytes) -> bool:
        """Write as the other client does: hivemind's `store` with the own peer id as the subkey."""
        ends = time.time() + 600.0
        stored: bool = await node.store(str(round), subkey=str(node.peer_id), value=value, expiration_time=ends)
        return stored

    async def raw(self, round: int, value: bytes, expires: float, subkey: str | None = None) -> None:
        """Let the second node put raw bytes into the first one's storage."""
        key = self.first.node_id.from_bytes(key_of_round(round))
        subkeys = None if subkey is None else [subkey]
        taken = await self.second.protocol.call_store(self.first.peer_id, [key], [value], [expires], subkeys=subkeys)
        assert taken == [True]


async def begin() -> Swarm:
    hive, counters = hivemind(), Counters()
    first = await hive.DHTNode.create(startup_timeout=60)
    addresses = [str(address) for address in await first.get_visible_maddrs()]
    second = await hive.DHTNode.create(initial_peers=addresses, startup_timeout=60)
    return Swarm([first, second], ForeignDht(SEED, tuple(addresses), counters), counters)


async def end(there: Swarm) -> None:
    await there.bridge.close()
    await there.second.shutdown()
    await there.first.shutdown()


Run = Callable[[Callable[[Swarm], Awaitable[None]]], None]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Runs work on the one swarm of this module; each test has rounds of its own."""
    with asyncio.Runner() as runner:
        there = runner.run(begin())
        yield lambda work: runner.run(work(there))
        runner.run(end(there))


async def values(there: Swarm, round: int) -> dict[str, bytes]:
    return {entry.peer: unwrap(entry.value) for entry in await there.bridge.read(round)}


def test_it_reads_what_nodes_wrote_and_they_read_what_it_wrote(run: Run) -> None:
    async def work(there: Swarm) -> None:
        assert await there.bridge.read(3) == []
        assert await there.honest(there.second, 3, b"theirs")
        assert await there.bridge.write(3, b"ours") == 2
        assert await values(there, 3) == {str(there.second.peer_id): b"theirs", there.bridge.peer_id: b"ours"}
        found, _ = await there.first.get("3", latest=True)
        assert {peer: item.value for peer, item in found.items()} == await values(there, 3)

    run(work)


def test_an_unreadable_entry_hides_no_other(run: Run) -> None:
    """hivemind's own `get` decodes all entries of a key together: it never returns here."""

    async def work(there: Swarm) -> None:
        assert await there.honest(there.second, 7, b"theirs")
        await there.raw(7, b"\xc1", time.time() + 600.0, STRANGER)
        entries = {entry.peer: entry.value for entry in await there.bridge.read(7)}
        assert entries == {str(there.second.peer_id): msgpack.packb(b"theirs"), STRANGER: b"\xc1"}

    run(work)


def test_a_plain_value_stored_beforehand_blocks_one_holder_and_not_the_round(run: Run) -> None:
    async def work(there: Swarm) -> None:
        await there.raw(4, msgpack.packb(b"mine"), time.time() + DAY)
        await there.honest(there.second, 4, b"theirs")
        assert await values(there, 4) == {str(there.second.peer_id): b"theirs"}
        assert there.counters.get("bridge/plain_value") == 1
        blocked, _ = await there.second.get("4", latest=True)
        assert blocked == b"mine", "hivemind's own reader sees nothing else"

    run(work)


def test_an_entry_that_would_outlive_a_round_is_refused(run: Run) -> None:
    async def work(there: Swarm) -> None:
        await there.raw(5, msgpack.packb(b"x"), time.time() + DAY, STRANGER)
        assert await there.honest(there.second, 5, b"theirs")
        assert await values(there, 5) == {str(there.second.peer_id): b"theirs"}
        assert there.counters.get("bridge/expires_too_late") >= 1

    run(work)


def test_bootstraps_that_are_dead_are_a_count() -> None:
    async def work() -> None:
        counters = Counters()
        bridge = ForeignDht(SEED, (f"/ip4/127.0.0.1/tcp/1/p2p/{STRANGER}",), counters)
        assert await bridge.read(0) == []
        assert await bridge.write(0, b"x") == 0
        assert counters.get("bridge/bootstrap_unreachable") == 1
        assert counters.get("bridge/no_answer") == 2
        await bridge.close()

    asyncio.run(work())


@pytest.mark.parametrize("harm", [signal.SIGKILL, signal.SIGSTOP])
def test_a_daemon_that_died_or_froze_is_started_anew(
    harm: signal.Signals, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "REQUEST_SECONDS", 0.5)

    async def work(there: Swarm) -> None:
        assert await there.bridge.write(6, b"ours") == 2
        before = there.counters.get("bridge/daemon_restart")
        os.kill(there.bridge.caller.pid, harm)
        async with asyncio.timeout(60):  # on a busy machine a call may be given up before the daemon is
            while await values(there, 6) != {there.bridge.peer_id: b"ours"} or (
                there.counters.get("bridge/daemon_restart") == before
            ):
                await asyncio.sleep(0.1)

    run(work)


def test_an_address_without_a_peer_is_refused_at_once() -> None:
    with pytest.raises(UsageError):
        ForeignDht(SEED, ("/ip4/127.0.0.1/tcp/1",), Counters())
