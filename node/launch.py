"""A node as a process: its home is held, its swarm found, its parts put together, and then it lives."""

import asyncio
import logging

import uvloop

from shoal.node.daemon import Daemon
from shoal.node.home import Home
from shoal.node.log import set_up, through_root
from shoal.node.options import RunConfig
from shoal.node.parts import put_together
from shoal.node.swarms import open_swarm

log = logging.getLogger(__name__)


def run_node(home: Home, config: RunConfig) -> int:
    """Run one node on a home until it is told to stop, and return the exit code.

    Raises UsageError when another process runs on this home or a port is taken, EnvironmentFault for what is missing.
    """
    with home.lock():
        set_up(home.log, config.life.log_level)
        revisions = open_swarm(config.swarm, home)
        parts = put_together(home, config, revisions)
        through_root()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                daemon = Daemon(parts)
            except BaseException:
                parts.close()
                raise
            return runner.run(daemon.run())
