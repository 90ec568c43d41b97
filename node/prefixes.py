"""Where on the network peers live, for the cap on keys at one place: see defenses/newcomers.py."""

from collections.abc import Callable, Iterable

from shoal.defenses.newcomers import address_prefix
from shoal.protocol.libp2p.settings import PeerView


class Prefixes:
    """The address prefix of each known peer, as of the last `look`; called with a key.

    A connection's address counts before those of the record, which are the peer's own claim. Claims are kept apart:
    else anybody could move into a victim's prefix by writing it down, and share the victim's voice.
    """

    def __init__(self, known: Callable[[], Iterable[PeerView]]) -> None:
        self._known = known
        self._proven: dict[bytes, str] = {}
        self._claimed: dict[bytes, str] = {}

    def look(self) -> None:
        """See where the known peers are now; of one that is no longer connected, where it was."""
        peers = list(self._known())
        proven = {peer.key: _first(peer.seen_at) or self._proven.get(peer.key) for peer in peers}
        claimed = {peer.key: _first(peer.addresses) for peer in peers}
        self._proven = {key: prefix for key, prefix in proven.items() if prefix is not None}
        self._claimed = {key: prefix for key, prefix in claimed.items() if prefix is not None}

    def __call__(self, key: bytes) -> str | None:
        """Return a key's prefix, None when no public address of it is known."""
        claimed = self._claimed.get(key)
        return self._proven.get(key) or (claimed and f"{claimed} (claimed)")


def _first(addresses: Iterable[str]) -> str | None:
    """The prefix of the first direct public address; behind a relay stands only the relay's."""
    for address in addresses:
        parts = address.split("/")
        if len(parts) > 2 and parts[1] in ("ip4", "ip6") and "p2p-circuit" not in parts:
            prefix = address_prefix(parts[2])
            if prefix is not None:
                return prefix
    return None
