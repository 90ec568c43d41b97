"""A node as a process: its home is held, its swarm found, its parts put together, and then it lives."""

import asyncio
import logging
import socket

import uvloop

from shoal.node.daemon import Daemon
from shoal.node.home import Home
from shoal.node.http import refused
from shoal.node.log import set_up, through_root
from shoal.node.options import RunConfig
from shoal.node.parts import put_together
from shoal.node.swarms import open_swarm
from shoal.protocol.libp2p.p2pd import take_port

log = logging.getLogger(__name__)


def check_ports(config: RunConfig) -> None:
    """Raise UsageError for a port that is taken, before anything is loaded; they are taken for good later."""
    take_port(config.network.host, config.network.port)
    health = config.health
    if health.health_port:
        try:
            with socket.create_server((health.health_host, health.health_port)):
                pass
        except OSError as error:
            raise refused(error, health.health_host, health.health_port) from error


def run_node(home: Home, config: RunConfig) -> int:
    """Run one node on a home until it is told to stop, and return the exit code.

    Raises UsageError when another process runs on this home or a port is taken, EnvironmentFault for what is missing.
    """
    with home.lock():
        set_up(home.log, config.life.log_level)
        check_ports(config)
        revisions = open_swarm(config.swarm, home)
        model = "no model" if config.bootstrap_only else f"model {config.learning.model}"
        log.info("starting in %s, with %s; home %s", revisions.name, model, home.path)
        parts = put_together(home, config, revisions)
        through_root()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                daemon = Daemon(parts)
            except BaseException:
                parts.close()
                raise
            return runner.run(daemon.run())
