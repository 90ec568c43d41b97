"""A node that only looks like one, for the doors, the metrics and the commands."""

import asyncio
import socket
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import uvloop

from shoal.node import health
from shoal.node.control import Control
from shoal.node.home import Home
from shoal.node.http import HealthServer
from shoal.node.view import PeerDict, StatusDict

KEY = "ab" * 32


def sample_status() -> StatusDict:
    """A status with every key, as a training node would give it."""
    return {
        "version": "0.1.0",
        "key": KEY,
        "mode": "train",
        "home": "/home/of/the/node",
        "pid": 4242,
        "started": 1_700_000_000.0,
        "uptime_seconds": 3600.0,
        "active_seconds": 3600.0,
        "swarm": {
            "name": "river",
            "id": "cd" * 32,
            "revision": 2,
            "round": 60,
            "round_seconds": 60.0,
            "seconds_left": 12.5,
        },
        "phase": "gathering",
        "step": {
            "round": 60,
            "pass": 0,
            "policy_version": 59,
            "ended_at": 1_700_003_590.0,
            "reward": 0.5,
            "loss": -0.25,
            "mismatch": {"mean": 1e-6, "max": 1e-5, "kl": 1e-9, "off": 0.0, "broken": 0.0, "capped": 0.0},
            "own_sets": 4,
            "peer_sets": 3,
            "peer_rows": 11,
            "note": "",
            "seconds": {"sample": 3.0, "gather": 5.0, "update": 2.0},
        },
        "steps_total": 59,
        "failures_in_a_row": 0,
        "failures_total": 1,
        "last_failure": None,
        "expected_step_seconds": 20.0,
        "last_step_age_seconds": 10.0,
        "network": {
            "addresses": ["/ip4/192.0.2.7/tcp/47700/p2p/12D3KooWKRyzVWW6ChFjQjK4miCty85Niy48tpPV95XdKu1BcvMA"],
            "peers": 7,
            "connected": 5,
            "bootstraps_connected": 1,
            "daemon_restarts": 2,
            "daemon_alive": True,
            "reachability": {"verdict": "private", "seen_as": ["/ip4/192.0.2.7/tcp/47700"], "advice": "forward it"},
            "clock_offset_seconds": -0.25,
        },
        "counts": {"pool/used": 30, "text/zero_width": 2, "verifier/unscorable_cpu_time": 1},
        "transport": {"announced": 236, "dropped_queue_full": 3},
        "canary": {"frozen_rounds": 0, "evidence": 1.5, "passes_since_run": 4, "last_alarm": None},
        "store": {"ledger_rows": 1000, "blob_bytes": 65536},
        "memory_mb": 512.0,
        "loop_lag_ms": {"p50": 0.25, "p99": 12.5, "max": 40.0},
        "paused": False,
        "watchdog": "stepping",
    }


class FakeView:
    """Implements NodeView over a dict that a test may change; remembers what it was told."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = dict(sample_status())
        self.known: list[PeerDict] = []
        self.exported: list[str] = []
        self.failure: Exception | None = None

    def status(self) -> Any:
        if self.failure is not None:
            raise self.failure
        return self.state

    def peers(self) -> list[PeerDict]:
        return self.known

    def pause(self) -> None:
        self.state["paused"] = True

    def resume(self) -> None:
        self.state["paused"] = False

    async def export(self, folder: str) -> str:
        if self.failure is not None:
            raise self.failure
        self.exported.append(folder)
        return folder

    async def checkpoint(self) -> str:
        if self.failure is not None:
            raise self.failure
        return "/checkpoints/step-0000000059-000"

    def stepping(self) -> tuple[bool, str]:
        return health.stepping(self.status())

    def ready(self) -> tuple[bool, str]:
        return health.ready(self.status())


class ServedNode:
    """A server in a thread of its own, as a client in another process would meet it."""

    def __init__(self, home: Path) -> None:
        self.view, self.home = FakeView(), home
        self.socket, self.port = Home(home).socket, 0
        self._loop = uvloop.new_event_loop()  # as the daemon has it
        self._server = HealthServer(self.view)
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def open(self) -> None:
        self.port = self._do(self._server.open_public("127.0.0.1", 0))
        self._do(self._server.open_control(self.socket))

    def close(self) -> None:
        self._do(self._server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    @property
    def control(self) -> Control:
        return Control(self.socket, self.home)

    def ask(self, path: str, method: str = "GET", host: str | None = "localhost") -> tuple[int, dict[str, str], str]:
        """One raw request over TCP: status, headers, body."""
        lines = [f"{method} {path} HTTP/1.1", *([f"Host: {host}"] if host else []), "Connection: close", "", ""]
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            connection.sendall("\r\n".join(lines).encode("latin-1"))
            answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        head, _, body = answer.partition("\r\n\r\n")
        first, *rest = head.split("\r\n")
        return int(first.split()[1]), {k.lower(): v for k, _, v in (line.partition(": ") for line in rest)}, body
