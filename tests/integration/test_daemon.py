"""The life of a daemon: alone and in company, through failures, stops and restarts."""

import asyncio
import os
import signal
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from daemon_pieces import Home, MemoryNetwork, daemon_of, home_of, manifest_of, until

from shoal.node.daemon import Daemon
from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.protocol.identity import Identity
from shoal.trainer.checkpoint import load_latest

FOUNDER = Identity.from_seed(bytes(range(32)))


def run(main: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())  # type: ignore[arg-type]


async def lives(daemon: Daemon, while_it_runs: Callable[[], Awaitable[Any]]) -> int:
    """Run a daemon, do something meanwhile, stop it, and return its exit code."""
    running = asyncio.create_task(daemon.run())
    try:
        doing = asyncio.create_task(while_it_runs())  # type: ignore[arg-type]
        await asyncio.wait({running, doing}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            doing.cancel()
            return await running
        await doing
    finally:
        if not running.done():
            daemon.stop()
    return await running


def rows(home: Home, query: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(f"file:{home.database}?mode=ro", uri=True)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def test_a_node_without_a_network_trains_alone_and_joins_when_there_is_one(tmp_path: Path) -> None:
    """Failures 1, 2 and 11: the network is slow, fails to start, comes later; training waits for none of it."""

    async def main() -> None:
        daemon = daemon_of(home_of(tmp_path), manifest_of(FOUNDER), MemoryNetwork())
        transport = daemon.parts.transport
        transport.start_errors = [EnvironmentFault("no daemon yet"), EnvironmentFault("no daemon yet")]

        async def watch() -> None:
            await until(lambda: daemon.board.steps >= 1)
            assert daemon.status()["steps_total"] >= 1
            await until(lambda: transport.started == 3)
            before = daemon.board.steps
            await until(lambda: daemon.board.steps > before)

        assert await lives(daemon, watch) == 0
        assert daemon.counters.get("network/start_failed") == 2
        assert daemon.board.failures == 0

    run(main)


def test_a_taken_port_ends_the_node_with_the_reason_and_its_state_saved(tmp_path: Path) -> None:
    """Failure 5."""

    async def main() -> None:
        home = home_of(tmp_path)
        daemon = daemon_of(home, manifest_of(FOUNDER), MemoryNetwork())
        daemon.parts.transport.start_errors = [UsageError("port 47700 is taken: give another --port")]
        with pytest.raises(UsageError, match="--port"):
            await daemon.run()
        assert not home.socket.exists()

    run(main)


def test_nodes_share_and_the_ledger_knows_it(tmp_path: Path) -> None:
    """Failure 37: where are my points."""

    async def main() -> None:
        network, manifest = MemoryNetwork(), manifest_of(FOUNDER)
        homes = [home_of(tmp_path / name) for name in "ab"]
        first, second = (daemon_of(home, manifest, network) for home in homes)

        def used(daemon: Daemon) -> int:
            return daemon.counters.get("choice/usable")

        async def both() -> None:
            await until(lambda: used(first) >= 2 and used(second) >= 2)

        async def company() -> None:
            assert await lives(second, both) == 0

        assert await lives(first, company) == 0
        for home in homes:
            own = rows(home, "SELECT COUNT(*) FROM rollouts WHERE own")[0][0]
            foreign = rows(home, "SELECT COUNT(*) FROM rollouts WHERE NOT own AND action = 'accept'")[0][0]
            assert own >= 2
            assert foreign >= 2
            assert rows(home, "SELECT MIN(n) FROM (SELECT COUNT(*) AS n FROM passes GROUP BY round, number)") == [(1,)]

    run(main)


def test_a_restart_goes_on_where_it_was_and_enters_no_round_twice(tmp_path: Path) -> None:
    """Failures 22 and 36: killed without warning after publishing, and started again in the same round."""

    async def main() -> None:
        network, manifest, home = MemoryNetwork(), manifest_of(FOUNDER, round_seconds=2), home_of(tmp_path)
        daemon = daemon_of(home, manifest, network)

        async def some() -> None:
            await until(lambda: daemon.board.steps >= 4)

        await lives(daemon, some)
        node = daemon.parts.learner.node
        version, round, passes = node.organs.trainer.policy.version, node.round, node.passes
        again = daemon_of(home, manifest, network)
        restored = again.parts.learner.node
        assert restored.organs.trainer.policy.version == version
        assert (restored.round, restored.passes) == (round, passes)
        assert restored.organs.publisher.sequences.position > 10**12, "a ledger begins its numbers at the time"

        async def more() -> None:
            await until(lambda: again.board.steps >= 2)

        await lives(again, more)
        seen = rows(home, "SELECT round, number, COUNT(*) FROM passes GROUP BY round, number")
        assert all(count == 1 for _, _, count in seen)
        sequences = [s for (s,) in rows(home, "SELECT sequence FROM rollouts WHERE own AND sequence NOT NULL")]
        assert len(sequences) == len(set(sequences)) > 0
        versions = [v for (v,) in rows(home, "SELECT policy_version FROM rollouts WHERE own ORDER BY sequence")]
        assert versions == sorted(versions)

    run(main)


def test_versions_as_published_never_fall_when_the_latest_checkpoints_are_lost(tmp_path: Path) -> None:
    async def main() -> None:
        manifest, home = manifest_of(FOUNDER), home_of(tmp_path)
        daemon = daemon_of(home, manifest, MemoryNetwork(), life__checkpoint_every=1000)

        async def some() -> None:
            await until(lambda: daemon.parts.learner.node.organs.trainer.policy.version >= 2)

        await lives(daemon, some)
        for path in home.checkpoints.glob("step-*"):
            path.rename(home.path / path.name)
        again = daemon_of(home, manifest, MemoryNetwork())
        assert again.parts.learner.node.organs.trainer.policy.version == 0

        async def more() -> None:
            await until(lambda: again.board.steps >= 2)

        await lives(again, more)
        versions = [v for (v,) in rows(home, "SELECT policy_version FROM rollouts WHERE own ORDER BY sequence")]
        assert versions == sorted(versions)
        assert len(versions) >= 4

    run(main)


def test_passes_that_keep_failing_end_the_node_with_its_state_saved(tmp_path: Path) -> None:
    """Failure 16: never "failed, continuing" for ever."""

    async def main() -> None:
        home = home_of(tmp_path)
        daemon = daemon_of(home, manifest_of(FOUNDER), MemoryNetwork(), life__failures=3)
        node = daemon.parts.learner.node

        def broken(*_: Any) -> None:
            raise RuntimeError("out of memory")

        async def break_it() -> None:
            await until(lambda: daemon.board.steps >= 1)
            node.update = broken  # called in each pass; the trainer is not when no group has a signal
            await asyncio.Event().wait()

        assert await lives(daemon, break_it) == 1
        assert daemon.board.failures == daemon.counters.get("supervisor/training") == 3
        assert "out of memory" in daemon.board.last_failure
        assert any(home.checkpoints.glob("step-*"))

    run(main)


def test_one_bad_pass_is_counted_and_the_next_one_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        daemon = daemon_of(home_of(tmp_path), manifest_of(FOUNDER), MemoryNetwork())
        trainer = daemon.parts.learner.node.organs.trainer
        update, broken = trainer.update, []

        def once(*arguments: Any) -> Any:
            if not broken:
                broken.append(True)
                raise RuntimeError("a hiccup")
            return update(*arguments)

        trainer.update = once

        async def watch() -> None:
            await until(lambda: daemon.board.steps >= 2)

        assert await lives(daemon, watch) == 0
        assert (daemon.board.failures, daemon.board.failures_in_a_row) == (1, 0)

    run(main)


def test_a_disk_that_takes_no_checkpoint_stops_no_training(tmp_path: Path) -> None:
    """Failure 38, for what this node writes."""

    async def main() -> None:
        home = home_of(tmp_path)
        daemon = daemon_of(home, manifest_of(FOUNDER), MemoryNetwork(), life__checkpoint_every=1)
        home.checkpoints.rmdir()
        home.checkpoints.write_text("not a folder")

        async def watch() -> None:
            await until(lambda: daemon.board.steps >= 3)
            assert daemon.counters.get("checkpoint/failed") >= 2

        with pytest.raises(EnvironmentFault):  # at the end it is said aloud
            await lives(daemon, watch)

    run(main)


def test_a_signal_drains_and_saves(tmp_path: Path) -> None:
    async def main() -> None:
        home = home_of(tmp_path)
        daemon = daemon_of(home, manifest_of(FOUNDER), MemoryNetwork(), life__checkpoint_every=1000)
        running = asyncio.create_task(daemon.run())
        await until(lambda: daemon.board.steps >= 2)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running == 0
        saved = load_latest(home.checkpoints)
        node = daemon.parts.learner.node
        assert saved is not None
        assert saved.state["position"][:2] == [node.round, node.passes], "not only the first one, but this one"
        recorded = rows(home, "SELECT COUNT(*) FROM passes")[0][0]
        assert recorded == daemon.board.steps

    run(main)


def test_pause_holds_the_steps_and_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        daemon = daemon_of(home_of(tmp_path), manifest_of(FOUNDER), MemoryNetwork())

        async def watch() -> None:
            await until(lambda: daemon.board.steps >= 1)
            daemon.pause()
            await until(lambda: daemon.pace.phase == "paused")
            held = daemon.board.steps
            round = daemon.parts.clock.round()
            await until(lambda: daemon.parts.transport.round >= round + 2)
            assert daemon.board.steps == held
            assert daemon.stepping()[0]
            path = await daemon.checkpoint()
            assert Path(path).is_dir()
            exported = await daemon.export(str(tmp_path / "model"))
            assert (Path(exported) / "model.safetensors").is_file()
            daemon.resume()
            await until(lambda: daemon.board.steps > held)

        assert await lives(daemon, watch) == 0

    run(main)


def test_a_revision_comes_into_force_in_its_round(tmp_path: Path) -> None:
    async def main() -> None:
        manifest = manifest_of(FOUNDER)
        daemon = daemon_of(home_of(tmp_path), manifest, MemoryNetwork())
        now = daemon.parts.clock.round()
        import msgspec

        limits = msgspec.structs.replace(manifest.limits, max_lag=3, shard_bits=2)
        later = msgspec.structs.replace(manifest, revision=1, effective_round=now + 4, limits=limits).sign(FOUNDER)

        async def watch() -> None:
            assert daemon.parts.revisions.offer(later.to_toml())
            await until(lambda: daemon.parts.manifest.revision == 1)
            assert daemon.parts.clock.round() >= now + 4
            gate = daemon.parts.learner.node.organs.gatherer.gate
            assert gate.context.manifest.limits.max_lag == 3
            assert daemon.parts.transport.bits == (2, 1)

        assert await lives(daemon, watch) == 0

    run(main)


@pytest.mark.parametrize("mode", ["bootstrap_only", "rollouts_only", "observe"])
def test_the_other_modes_do_what_they_say(tmp_path: Path, mode: str) -> None:
    async def main() -> None:
        network, manifest = MemoryNetwork(), manifest_of(FOUNDER)
        daemon = daemon_of(home_of(tmp_path / "a"), manifest, network, **{mode: True})
        peer = daemon_of(home_of(tmp_path / "b"), manifest, network)

        async def watch() -> None:
            await until(lambda: peer.board.steps >= 3)
            if mode != "bootstrap_only":
                await until(lambda: daemon.board.steps >= 2)
            ready, _ = daemon.ready()
            assert ready or mode != "bootstrap_only"

        async def company() -> None:
            assert await lives(peer, watch) == 0

        assert await lives(daemon, company) == 0
        status = daemon.status()
        assert status["mode"] == mode
        if mode == "bootstrap_only":
            assert daemon.parts.learner is None
            assert status["counts"] == {} or not any(name.startswith("publish") for name in status["counts"])
            return
        assert daemon.parts.learner.node.organs.trainer.policy.version == 0
        assert bool(daemon.counters.get("publish/announced")) is (mode == "rollouts_only")
        assert bool(daemon.counters.get("screen/accepted")) is (mode == "observe")

    run(main)
