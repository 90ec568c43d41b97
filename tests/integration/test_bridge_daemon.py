"""The bridge beside a whole daemon, under uvloop: a swarm of the other client that is out of reach harms nothing."""

import asyncio
from pathlib import Path

import uvloop
from daemon_pieces import MemoryNetwork, daemon_of, home_of, manifest_of, until

from shoal.protocol.identity import Identity

FOUNDER = Identity.from_seed(bytes(range(32)))
DEAD = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWBvUPDdVVyeDpXbe8d2TVQx5zV6kQk3kY5FNXUoK6K9dV"


def test_a_daemon_trains_beside_a_bridge_to_nowhere_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async def main() -> None:
        home, settings = home_of(tmp_path), {"bridge__read": True, "bridge__bootstrap": (DEAD,)}
        daemon = daemon_of(home, manifest_of(FOUNDER), MemoryNetwork(), **settings)
        assert daemon.parts.learner is not None
        bridge = daemon.parts.learner.bridge
        assert bridge is not None
        assert daemon.parts.learner.node.lane is bridge
        running = asyncio.create_task(daemon.run())
        await until(lambda: daemon.counters.get("bridge/no_answer") >= 1 or running.done())
        steps = daemon.board.steps
        await until(lambda: daemon.board.steps > steps or running.done())
        daemon.stop()
        assert await running == 0
        assert daemon.board.failures == 0
        assert daemon.counters.get("bridge/bootstrap_unreachable") >= 1
        assert bridge.organs.network.caller.pid == 0, "its network daemon is gone"  # type: ignore[attr-defined]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_a_daemon_has_no_bridge_unless_it_is_asked_for(tmp_path: Path) -> None:
    daemon = daemon_of(home_of(tmp_path), manifest_of(FOUNDER), MemoryNetwork())
    assert daemon.parts.learner is not None
    assert daemon.parts.learner.bridge is None
    assert daemon.parts.learner.node.lane.share == 0.0
    daemon.parts.close()
