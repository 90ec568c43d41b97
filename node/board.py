"""The state of a daemon as one plain dict: what health, metrics, commands and pages all read."""

import os
import statistics
import time
from collections import deque
from typing import Any

from shoal.node.events import RoundResult, gauge, mean_reward
from shoal.node.view import StepStatus

STEPS_REMEMBERED = 32
MIB = 2**20


class StepBoard:
    """What the training has come to: steps, failures, and how long a step takes."""

    def __init__(self) -> None:
        self.started = time.time()
        self.started_at = time.monotonic()
        self.able_since = self.started_at  # monotonic: when the node last became able to step
        self.steps = 0
        self.failures = 0
        self.failures_in_a_row = 0
        self.last_failure: str | None = None
        self.last: StepStatus | None = None
        self._ended_at: float | None = None
        self._seconds: deque[float] = deque(maxlen=STEPS_REMEMBERED)

    def step_ended(self, result: RoundResult, seconds: float) -> None:
        """Note a step that ended well, after `seconds` of the pass."""
        self.steps += 1
        self.failures_in_a_row = 0
        self._ended_at = time.monotonic()
        self._seconds.append(seconds)
        report = result.report
        self.last = {
            "round": result.round,
            "pass": result.passes,
            "policy_version": report.version,
            "ended_at": time.time(),
            "reward": mean_reward(result.own),
            "loss": report.loss,
            "mismatch": gauge(report),
            "own_sets": result.mixed.own_sets,
            "peer_sets": result.mixed.peer_sets,
            "peer_rows": report.counts.get("trained_peer_rows", 0),
            "note": report.reason,
            "seconds": {name: round(value, 4) for name, value in result.watch.seconds.items()},
        }

    def step_failed(self, error: BaseException) -> None:
        """Note a pass that ended in an error."""
        self.failures += 1
        self.failures_in_a_row += 1
        self.last_failure = f"{type(error).__name__}: {error}"

    def state(self) -> dict[str, Any]:
        """Return the part of the status that is about steps."""
        now = time.monotonic()
        return {
            "started": self.started,
            "uptime_seconds": now - self.started_at,
            "active_seconds": now - self.able_since,
            "step": self.last,
            "steps_total": self.steps,
            "failures_in_a_row": self.failures_in_a_row,
            "failures_total": self.failures,
            "last_failure": self.last_failure,
            "expected_step_seconds": statistics.median(self._seconds) if self._seconds else None,
            "last_step_age_seconds": None if self._ended_at is None else now - self._ended_at,
        }


def resident_mb() -> float:
    """Return the resident memory of this process in MiB; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB
