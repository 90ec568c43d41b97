"""The one interface between a node and a network. What comes through it is untrusted bytes; it knows no meaning."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import NamedTuple, Protocol


class Received(NamedTuple):
    """Bytes from the network, and the transport's hint of who passed them on: never proof of who wrote them."""

    data: bytes
    sender: bytes


class Transport(Protocol):
    """Announce, receive, fetch. Queues are bounded; whatever is dropped has a counter."""

    @property
    def counters(self) -> dict[str, int]:
        """How often something was sent, received or dropped, by reason."""
        ...

    async def announce(self, data: bytes) -> None:
        """Gossip an announcement to all peers. It may get lost: nobody is told."""
        ...

    def announcements(self) -> AsyncIterator[Received]:
        """What peers announced, in order of arrival; ends when the transport is closed."""
        ...

    async def fetch(self, peer: bytes, digest: bytes, limit: int) -> bytes:
        """The blob with this SHA-256, from the peer with this 32-byte key, at most `limit` bytes.

        Raises FetchFailed: unreachable, not_found, too_large, timeout or wrong_digest.
        """
        ...

    def offer(self, digest: bytes, blob: bytes) -> None:
        """Serve a blob to whoever asks for its digest."""
        ...

    def withdraw(self, digest: bytes) -> None:
        """Serve a blob no longer; one that is not offered is no error."""
        ...

    def serve(self, name: str, provide: Callable[[], bytes]) -> None:
        """Answer whoever asks for the document `name` with what `provide` gives then; replaces an earlier one."""
        ...

    async def ask(self, peer: bytes, name: str, limit: int) -> bytes:
        """A document that a peer serves, at most `limit` bytes: its word and nothing more, unlike a blob.

        Raises FetchFailed: unreachable, not_found, too_large or timeout.
        """
        ...

    async def publish_record(self, topic: str, data: bytes, ttl: float) -> None:
        """Store this node's record under a topic for `ttl` seconds; a later one replaces it."""
        ...

    async def lookup_records(self, topic: str) -> list[bytes]:
        """The records under a topic that have not expired."""
        ...

    def peers(self) -> list[bytes]:
        """Keys of the peers that can be reached now, without this node's own."""
        ...

    async def close(self) -> None:
        """Leave the network; a second call does nothing."""
        ...
