"""Swarm time and the bounds on age and lag. No coordinator: a round is a slot of the clock that everyone shares.

Age is counted in rounds, lag in the receiver's own updates since the rollout's round began. Both are exact across a
restart because the tables below are part of the checkpoint.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from enum import Enum
from typing import Any

from shoal.protocol.sequence import SequenceCounter, SequenceWindow

__all__ = [
    "Clock",
    "Freshness",
    "LagClock",
    "SequenceCounter",
    "SequenceWindow",
    "freshness",
    "round_at",
]

LAG_MEMORY = 256  # rounds; a node whose swarm allows a greater age asks for more


def round_at(now: float, genesis: float, round_seconds: float) -> int:
    """The round of an instant (all in seconds); negative before genesis."""
    return math.floor((now - genesis) / round_seconds)


class Clock:
    """Swarm time, read from a clock that is passed in: the wall clock in a daemon, the virtual one in a simulation."""

    def __init__(self, now: Callable[[], float], genesis: float, round_seconds: float) -> None:
        if round_seconds <= 0:
            raise ValueError("a round lasts longer than 0 seconds")
        self.now = now
        self.genesis = genesis
        self.round_seconds = round_seconds

    def round(self) -> int:
        """The current round."""
        return round_at(self.now(), self.genesis, self.round_seconds)

    def start_of(self, round: int) -> float:
        """The instant, in the clock's seconds, at which a round begins."""
        return self.genesis + round * self.round_seconds

    def seconds_left(self, round: int) -> float:
        """Seconds until a round ends; 0 when it is over."""
        return max(0.0, self.start_of(round + 1) - self.now())


class Freshness(Enum):
    """How a rollout's round stands to the current one."""

    FRESH = "fresh"
    EARLY = "early"  # one round ahead: clocks differ a little, so it is held until its round begins
    STALE = "stale"  # beyond the bound
    AHEAD = "ahead"  # more than one round ahead


def freshness(current_round: int, round: int, max_age_rounds: int) -> Freshness:
    """Judge a round by its age = current_round - round; a bound of 0 is synchronous."""
    age = current_round - round
    if age < -1:
        return Freshness.AHEAD
    if age == -1:
        return Freshness.EARLY
    return Freshness.FRESH if age <= max_age_rounds else Freshness.STALE


class LagClock:
    """How many updates this node has completed since a round began, for the last `memory` rounds that it saw."""

    def __init__(self, memory: int = LAG_MEMORY) -> None:
        self._memory = memory
        self._rounds: list[int] = []  # growing
        self._updates: list[int] = []  # completed when that round was first seen; never falling

    def began(self, round: int, updates: int) -> None:
        """Note the first sight of a round. Later calls for it, or for a round before the newest, change nothing."""
        if self._rounds and round <= self._rounds[-1]:
            return
        self._rounds.append(round)
        self._updates.append(updates)
        del self._rounds[: -self._memory], self._updates[: -self._memory]

    def lag(self, round: int, updates: int) -> int:
        """Updates completed since a round began.

        A round that was slept through counts from the last known one before it: the lag is never understated. A round
        older than all known ones counts from the oldest, and every update counts when none is known.
        """
        known = bisect_right(self._rounds, round) - 1
        if not self._rounds:
            return updates
        return updates - self._updates[max(known, 0)]

    def state(self) -> list[list[int]]:
        """Plain lists for a checkpoint."""
        return [list(self._rounds), list(self._updates)]

    def restore(self, state: Any) -> None:
        """Take over what state() gave."""
        rounds, updates = state
        self._rounds, self._updates = list(rounds), list(updates)
