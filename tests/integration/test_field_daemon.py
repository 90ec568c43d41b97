"""A daemon on a real network: the libp2p daemon beside it is killed, and training does not notice."""

import asyncio
import os
import signal
from pathlib import Path

import uvloop
from daemon_pieces import SMALL, home_of, manifest_of, until

from shoal.node.daemon import Daemon
from shoal.node.layers import load
from shoal.node.parts import put_together
from shoal.node.swarms import Revisions
from shoal.protocol.identity import Identity
from shoal.protocol.libp2p.transport import Libp2pTransport

FOUNDER = Identity.from_seed(bytes(range(32)))


def daemon_on_loopback(folder: Path) -> tuple[Daemon, Libp2pTransport]:
    """A daemon and its transport, which listens on a free port."""
    home = home_of(folder)
    config = load(home.config, {}, SMALL | {"network.host": "127.0.0.1", "network.port": 0}).config
    parts = put_together(home, config, Revisions(manifest_of(FOUNDER)))
    assert isinstance(parts.transport, Libp2pTransport)
    return Daemon(parts), parts.transport


def test_the_network_daemon_is_killed_and_training_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        daemon, transport = daemon_on_loopback(tmp_path)
        running = asyncio.create_task(daemon.run())
        try:
            await until(lambda: transport.daemon_pid and daemon.board.steps)
            port = transport.port
            for killed in (1, 2):
                steps = daemon.board.steps
                os.kill(transport.daemon_pid, signal.SIGKILL)
                await until(lambda steps=steps: daemon.board.steps > steps)
                await until(lambda killed=killed: transport.daemon_restarts == killed)
            network = daemon.status()["network"]
            assert (network["daemon_restarts"], network["daemon_alive"], transport.port) == (2, True, port)
            assert daemon.stepping()[0]
        finally:
            daemon.stop()
        assert await running == 0
        assert daemon.board.failures == 0

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
