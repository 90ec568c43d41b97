"""How the memory network's links behave: delay, jitter, loss, bandwidth and partitions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Partition:
    """From `start` until before `end` (loop time) only members of one group reach each other.

    Groups hold indices in join order; members that no group names form one more group together.
    """

    start: float
    end: float
    groups: tuple[frozenset[int], ...]

    def separates(self, first: int, second: int, now: float) -> bool:
        """Whether two members cannot reach each other now."""
        return self.start <= now < self.end and self._group(first) != self._group(second)

    def _group(self, member: int) -> int:
        return next((number for number, group in enumerate(self.groups) if member in group), -1)


@dataclass(frozen=True, slots=True)
class LinkModel:
    """One model for every link; seconds, bytes per second of a sender's uplink, and a probability of loss."""

    delay: float = 0.05
    jitter: float = 0.05  # the most that is added to the delay, uniformly: this is what reorders
    loss: float = 0.0
    bandwidth: float | None = None  # None: unlimited
    partitions: tuple[Partition, ...] = ()

    def __post_init__(self) -> None:
        if self.delay < 0 or self.jitter < 0 or not 0 <= self.loss <= 1:
            raise ValueError("delay and jitter are not negative, loss is a probability")
        if self.bandwidth is not None and self.bandwidth <= 0:
            raise ValueError("bandwidth is positive, or None for unlimited")

    def connected(self, first: int, second: int, now: float) -> bool:
        """Whether no partition separates two members now."""
        return not any(partition.separates(first, second, now) for partition in self.partitions)
