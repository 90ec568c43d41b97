"""A daemon among faults that are nobody's plan: of its own libraries, of its disk, and of whoever starts it anew."""

import asyncio
import shutil
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from daemon_pieces import Home, MemoryNetwork, daemon_of, home_of, manifest_of, until
from safetensors.torch import load_file, save_file

from shoal.node import keeper
from shoal.node.daemon import Daemon
from shoal.protocol.errors import UsageError
from shoal.protocol.identity import Identity
from shoal.protocol.manifest import Manifest
from shoal.trainer.model import DEFAULT_MODEL

FOUNDER = Identity.from_seed(bytes(range(32)))


def run(main: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())  # type: ignore[arg-type]


async def steps(home: Home, manifest: Manifest, count: int = 2, **settings: Any) -> Daemon:
    """Run a node on a home for a few steps."""
    daemon = daemon_of(home, manifest, MemoryNetwork(), **settings)
    running = asyncio.create_task(daemon.run())
    await until(lambda: daemon.board.steps >= count or running.done())
    daemon.stop()
    assert await running == 0
    return daemon


def test_another_model_does_not_go_on_from_a_checkpoint_that_is_not_its_own(tmp_path: Path) -> None:
    """Of the same shape, so that the tensors fit: the node would claim a lineage that its weights do not have."""

    async def main() -> None:
        home, manifest = home_of(tmp_path / "home"), manifest_of(FOUNDER)
        await steps(home, manifest)
        other = tmp_path / "model"
        shutil.copytree(DEFAULT_MODEL, other)
        weights = next(other.glob("*.safetensors"))
        save_file({name: 2 * tensor for name, tensor in load_file(weights).items()}, weights, {"format": "pt"})
        with pytest.raises(UsageError, match=r"another model.*--model.*move .*checkpoints away"):
            daemon_of(home, manifest, MemoryNetwork(), learning__model=str(other))

    run(main)


def test_in_another_swarm_the_training_goes_on_and_nothing_else_comes_along(tmp_path: Path) -> None:
    async def main() -> None:
        home, first = home_of(tmp_path), manifest_of(FOUNDER)
        before = await steps(home, first)
        node = before.parts.learner.node
        assert node.organs.publisher.served
        second = manifest_of(FOUNDER, name="another")
        after = daemon_of(home, second, MemoryNetwork())
        restored = after.parts.learner.node
        assert restored.organs.trainer.policy.version == node.organs.trainer.policy.version > 0
        assert not restored.organs.publisher.served
        assert not restored.organs.lags.state()[0]
        assert restored.organs.gatherer.gate.state()["round"] == 0
        after.parts.close()
        back = daemon_of(home, first, MemoryNetwork())
        assert back.parts.learner.node.organs.publisher.served
        back.parts.close()

    run(main)


def test_a_network_library_that_fails_in_an_unforeseen_way_ends_no_training(tmp_path: Path) -> None:
    async def main() -> None:
        daemon = daemon_of(home_of(tmp_path), manifest_of(FOUNDER), MemoryNetwork())
        transport = daemon.parts.transport
        transport.start_errors = [RuntimeError("never seen"), OSError(28, "No space left on device")]
        running = asyncio.create_task(daemon.run())
        await until(lambda: transport.started == 3 and daemon.board.steps >= 1)
        assert daemon.counters.get("supervisor/connect") == 2
        daemon.stop()
        assert await running == 0

    run(main)


def test_who_asks_for_a_checkpoint_while_the_node_ends_gets_it(tmp_path: Path) -> None:
    async def main() -> None:
        daemon = daemon_of(home_of(tmp_path), manifest_of(FOUNDER), MemoryNetwork())
        running = asyncio.create_task(daemon.run())
        await until(lambda: daemon.board.steps >= 1 and daemon.pace.phase not in ("waiting", "paused"))
        asked = asyncio.create_task(daemon.checkpoint())
        await asyncio.sleep(0)
        daemon.stop()
        assert await running == 0
        assert Path(await asyncio.wait_for(asked, 1)).is_dir()

    run(main)


def test_who_asks_for_a_checkpoint_and_goes_costs_no_pass(tmp_path: Path) -> None:
    async def main() -> None:
        daemon = daemon_of(home_of(tmp_path), manifest_of(FOUNDER), MemoryNetwork())
        running = asyncio.create_task(daemon.run())
        await until(lambda: daemon.board.steps >= 1 and daemon.pace.phase not in ("waiting", "paused"))
        asked = asyncio.create_task(daemon.checkpoint())
        await asyncio.sleep(0)
        asked.cancel()
        done = daemon.board.steps
        await until(lambda: daemon.board.steps >= done + 2 or daemon.board.failures > 0)
        assert daemon.board.failures == 0
        daemon.stop()
        assert await running == 0

    run(main)


def test_a_ledger_that_hangs_does_not_keep_a_node_from_leaving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "DRAIN_SECONDS", 0.2)

    async def main() -> None:
        daemon = daemon_of(home_of(tmp_path), manifest_of(FOUNDER), MemoryNetwork())
        assert daemon.ledger is not None
        disk = threading.Event()

        class Hanging:
            def record_pass(self, *_: Any) -> int:
                disk.wait()
                return 0

        daemon.ledger.recorder = Hanging()  # type: ignore[assignment]
        running = asyncio.create_task(daemon.run())
        await until(lambda: daemon.board.steps >= 2)
        daemon.stop()
        try:
            async with asyncio.timeout(60):
                assert await running == 0
        finally:
            disk.set()  # the thread itself lasts as long as the disk hangs
        assert daemon.counters.get("ledger/dropped_at_end") >= 1
        assert daemon.counters.get("checkpoint/saved") >= 1

    run(main)


def test_what_fails_to_close_keeps_nothing_else_open(tmp_path: Path) -> None:
    async def main() -> None:
        home = home_of(tmp_path)
        daemon = daemon_of(home, manifest_of(FOUNDER), MemoryNetwork())
        closed: list[bool] = []

        async def fails() -> None:
            raise OSError("gone")

        daemon.parts.transport.close = fails  # type: ignore[method-assign]
        daemon.parts.learner.grader.close = lambda: closed.append(True)
        running = asyncio.create_task(daemon.run())
        await until(lambda: daemon.board.steps >= 1)
        daemon.stop()
        with pytest.raises(OSError, match="gone"):
            await running
        assert closed
        assert not home.socket.exists()

    run(main)


def test_what_a_clock_that_ran_ahead_dated_after_now_is_served_no_longer(tmp_path: Path) -> None:
    """It stood before all that came later, so that nothing was ever withdrawn again."""

    async def main() -> None:
        daemon = daemon_of(home_of(tmp_path), manifest_of(FOUNDER), MemoryNetwork())
        publisher = daemon.parts.learner.node.organs.publisher
        oldest = daemon.parts.clock.round() - 100
        for round in (oldest, 10**8, oldest):
            publisher.served.append((round, bytes(32), b""))
        running = asyncio.create_task(daemon.run())
        await until(lambda: daemon.board.steps >= 1)
        assert all(oldest < round <= daemon.parts.clock.round() for round, _, _ in publisher.served)
        assert daemon.counters.get("publish/withdrawn") == 3
        daemon.stop()
        assert await running == 0

    run(main)
