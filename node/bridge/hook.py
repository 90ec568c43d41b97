"""What the loop knows of the bridge: a lane that takes own sets and gives unsigned ones, or none at all."""

from collections.abc import Sequence
from typing import Protocol

from shoal.node.sets import OwnSet, PeerSet


class UnsignedLane(Protocol):
    """Peers of another client, as one operator without a signature."""

    @property
    def share(self) -> float:
        """Most that the whole lane may weigh, as a share of J."""
        ...

    def offer(self, own: Sequence[OwnSet]) -> None:
        """Take the own sets of a pass, which that client's peers may read. Never waits."""
        ...

    async def sets(self, round: int, most: int, asked: frozenset[bytes] | None = None) -> list[PeerSet]:
        """Return sets for one pass, at most the lane's share of J and at most `most`.

        `asked` are the prompt hashes that a joined mix can use, None when any will do. Nothing is fetched now: what
        has been read already is judged and graded.
        """
        ...


class NoLane:
    """The lane of a node without a bridge."""

    share = 0.0

    def offer(self, own: Sequence[OwnSet]) -> None:
        """Forget them."""

    async def sets(self, round: int, most: int, asked: frozenset[bytes] | None = None) -> list[PeerSet]:  # noqa: ARG002
        """Return nothing."""
        return []


NO_LANE = NoLane()
