"""A node that only looks like one, for the doors, the metrics and the commands."""

from typing import Any

from shoal.node import health
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
