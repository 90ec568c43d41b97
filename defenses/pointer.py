"""What the gate lets through: a checked announcement, whose blob is fetched only when it is chosen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.protocol.envelope import Announcement


@dataclass(frozen=True, slots=True)
class Pointer:
    """An announcement that passed the gate, with its operator and when it came.

    `arrival` counts up with every pointer of this node: it decides who published first.
    """

    announcement: Announcement
    operator: str
    received_round: int
    arrival: int

    @property
    def key(self) -> bytes:
        """The publisher's public key."""
        return self.announcement.header.key

    @property
    def round(self) -> int:
        """The round for which the rollout was sampled."""
        return self.announcement.header.round

    @property
    def sequence(self) -> int:
        """The publisher's sequence number."""
        return self.announcement.header.sequence

    @property
    def policy_version(self) -> int:
        """The publisher's policy version."""
        return self.announcement.header.policy_version

    @property
    def prompt_hash(self) -> bytes:
        """Hash of the prompt's text."""
        return self.announcement.header.prompt_hash

    @property
    def digest(self) -> bytes:
        """SHA-256 of the blob: what to fetch."""
        return self.announcement.header.payload_hash

    def state(self) -> list[Any]:
        """Return the pointer as a plain list, for checkpoints of the pool."""
        return [self.announcement.encode(), self.operator, self.received_round, self.arrival]

    @staticmethod
    def from_state(state: Sequence[Any]) -> "Pointer":
        """Rebuild a pointer from what `state` returned."""
        data, operator, received_round, arrival = state
        return Pointer(Announcement.decode(bytes(data)), str(operator), int(received_round), int(arrival))


@dataclass(frozen=True, slots=True)
class Held:
    """The announcement is of the coming round (clock skew): it is kept until that round begins."""

    round: int
