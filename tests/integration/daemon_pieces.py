"""A daemon with all its parts, on a network in memory: for tests of its life, in real time and without sockets."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.node.daemon import Daemon
from shoal.node.home import Home
from shoal.node.layers import load
from shoal.node.parts import put_together
from shoal.node.swarms import Revisions
from shoal.protocol.identity import Identity
from shoal.protocol.libp2p.settings import PeerView, Reachability
from shoal.protocol.manifest import Admission, Manifest, TaskEntry
from shoal.protocol.memory import MemoryNetwork

SMALL = {
    "mixing.local": 2,
    "mixing.external": 2,
    "mixing.group_size": 4,
    "mixing.tasks_per_node": 2,
    "health.port": 0,
    "life.checkpoint_every": 2,
}
PATIENCE = 120.0  # seconds; a busy machine is slow, and a test that waits is not a test that measures


class MemoryDaemonTransport:
    """A member of a memory network with what a daemon asks of a transport besides."""

    def __init__(self, network: MemoryNetwork, key: bytes) -> None:
        self.member = network.join(key)
        self.on_record: Callable[..., None] | None = None
        self.round, self.bits = -1, (0, 1)
        self.started = 0
        self.start_errors: list[Exception] = []
        self.connected_bootstraps, self.daemon_restarts, self.daemon_alive = 0, 0, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.member, name)

    async def start(self) -> None:
        self.started += 1
        if self.start_errors:
            raise self.start_errors.pop(0)

    def set_round(self, round: int) -> None:
        self.round = round

    def set_bits(self, bits: int, per_node: int) -> None:
        self.bits = (bits, per_node)

    def known(self) -> list[PeerView]:
        return []

    def addresses(self) -> tuple[str, ...]:
        return ("/memory/1",)

    def reachability(self) -> Reachability:
        return Reachability("unknown", (), "")


def manifest_of(founder: Identity, round_seconds: int = 1, **changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "name": "memory",
        "founder": founder.key.hex(),
        "genesis": int(time.time()) - 5,
        "round_seconds": round_seconds,
        "tasks": [TaskEntry(name="strings/reverse"), TaskEntry(name="strings/sort")],
        "admission": Admission(mode="open"),
    }
    return Manifest(**(fields | changes)).sign(founder)


def home_of(folder: Path) -> Home:
    home = Home.make(folder)
    if not home.identity.exists():
        Identity.generate().save(home.identity)
    return home


def daemon_of(home: Home, manifest: Manifest, network: MemoryNetwork, **settings: Any) -> Daemon:
    """The daemon of a home; settings by their path with two underscores for the dot."""
    flags = SMALL | {name.replace("__", "."): value for name, value in settings.items()}
    config = load(home.config, {}, flags).config

    def connect(identity: Identity, *_: Any) -> Any:
        return MemoryDaemonTransport(network, identity.key)

    return Daemon(put_together(home, config, Revisions(manifest), connect))


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.02)
