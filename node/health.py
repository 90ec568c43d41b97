"""Is the node stepping, is it ready: pure judgements on a status, for probes, watchdogs and metrics alike."""

from collections.abc import Mapping
from typing import Any

from shoal.node.view import STEPLESS, find, number

STEPS_MISSED = 3.0  # a step of three times the usual length is slow; beyond that something is stuck
START_GRACE_SECONDS = 120.0  # loading a model and the first step, on a slow disk


def step_limit(status: Mapping[str, Any]) -> float:
    """Return how many seconds may pass without a step ending well before the node counts as stuck."""
    expected = number(status, "expected_step_seconds") or 0.0
    round_seconds = number(status, "swarm.round_seconds") or 0.0
    return max(STEPS_MISSED * expected, STEPS_MISSED * round_seconds, START_GRACE_SECONDS)


def stepless(status: Mapping[str, Any]) -> str:
    """Return why no step is due now, in a few words; empty when steps are due."""
    phase = status.get("phase")
    if status.get("mode") in STEPLESS:
        return f"{str(status['mode']).replace('_', '-')}: no steps to take"
    if status.get("paused") or phase == "paused":
        return "paused"
    present, done = number(status, "swarm.round"), number(status, "step.round")
    if phase == "waiting" and present is not None and done is not None and present < done:
        return f"waiting for round {done + 1:.0f}: the clock was set back to round {present:.0f}"
    return {"waiting_for_genesis": "waiting for genesis", "draining": "draining"}.get(str(phase), "")


def seconds_without_step(status: Mapping[str, Any], since: float = 0.0) -> float:
    """Return the seconds since a step ended well, or since one could have begun, whichever is shorter.

    `since` is the age of the status itself in seconds, for one that was kept.
    """
    waiting = [number(status, name) for name in ("last_step_age_seconds", "active_seconds", "uptime_seconds")]
    return min((seconds for seconds in waiting if seconds is not None), default=0.0) + since


def stepping(status: Mapping[str, Any], since: float = 0.0) -> tuple[bool, str]:
    """Return whether the node does its work, and the reason in one line.

    A node that has no step to take (paused, before genesis, a bootstrap, draining) is not stuck. Failed steps are no
    steps: a node that only says "failed, continuing" turns red like one that says nothing.
    """
    why_none = stepless(status)
    if why_none:
        return True, why_none
    waited, limit = seconds_without_step(status, since), step_limit(status)
    failures = int(number(status, "failures_in_a_row") or 0)
    bound = f"limit {limit:.0f} s" + (f", {failures} failed in a row" if failures else "")
    first = number(status, "last_step_age_seconds") is None
    if waited > limit:
        what = "no step ended yet" if first else "no step ended"
        return False, f"stuck in {find(status, 'phase') or 'unknown phase'}: {what} for {waited:.0f} s, {bound}"
    if first:
        return True, f"first step under way for {waited:.0f} s, {bound}"
    return True, f"stepping: last step ended {waited:.0f} s ago, {bound}"


def ready(status: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether the node takes part in its swarm, and the reason in one line."""
    if not find(status, "swarm.id"):
        return False, "no manifest yet"
    if not find(status, "network.daemon_alive"):
        return False, "the transport is down"
    if status.get("phase") == "draining":
        return False, "draining"
    if status.get("mode") in STEPLESS:
        return True, f"ready as {str(status['mode']).replace('_', '-')}"
    if not number(status, "steps_total"):
        return False, f"no step done yet ({status.get('phase') or 'unknown phase'})"
    return True, "ready"
