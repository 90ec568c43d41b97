"""Whom a key of an open swarm counts for: all newcomers are one operator, and so are keys at one place on the network.

Keys cost nothing, so without an allow-list or invites nobody can tell a hundred people from one with a hundred keys.
What can be done is done here: keys that came lately share the influence of one operator, and later those share it whose
known public addresses lie in one /24 (IPv4) or /48 (IPv6). Whoever waits, at many places, still gets many voices.
"""

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from shoal.defenses.config import DefenseConfig
from shoal.defenses.grouped import GroupedMap
from shoal.defenses.verdict import Counters

NEWCOMERS = "newcomers"  # the operator of all keys that are too new to count for themselves

PrefixOf = Callable[[bytes], str | None]
"""Public key → the prefix of its public address as far as it is known, e.g. `address_prefix` gave it."""


def no_prefix(_: bytes) -> str | None:
    """Stand in where addresses mean nothing, as in the simulator."""
    return None


@lru_cache(maxsize=16_384)  # the same addresses come again in each record
def address_prefix(host: str) -> str | None:
    """Return the /24 or /48 of a public address; None for what is loopback, private, reserved or no address.

    IPv6 addresses that carry an IPv4 one (mapped, 6to4, Teredo) count as that: each such holder has a /48 of its own.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        carried = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        address = carried or address
    if not address.is_global or address.is_multicast:
        return None
    return str(ipaddress.ip_network((address, 24 if address.version == 4 else 48), strict=False))


@dataclass(slots=True)
class _Sight:
    first: int
    last: int


class Newcomers:
    """Remembers when keys were first seen, and forgets those that stay away.

    Bounded by address prefix: when all places are taken, the prefix with most keys loses its latest. So however many
    new keys come, who was there before stays, and who comes from elsewhere finds a place.
    """

    def __init__(self, config: DefenseConfig, counters: Counters, prefix_of: PrefixOf = no_prefix) -> None:
        self._config, self._counters, self._prefix_of = config, counters, prefix_of
        self._sights: GroupedMap[str, bytes, _Sight] = GroupedMap(
            config.first_sights,
            config.first_sights,
            partial(counters.add, "admission", "first_sight_not_kept"),
            latest=True,
        )

    def operator_of(self, key: bytes, round: int) -> str:
        """Return whom an unlisted key of an open swarm counts for in a round of this node's clock."""
        sight = self._sights.get(key)
        if sight is None or round - sight.first < self._config.newcomer_rounds:
            return NEWCOMERS
        prefix = self._prefix_of(key)
        return key.hex() if prefix is None else f"prefix {prefix}"

    def meet(self, key: bytes, round: int) -> None:
        """Note that a key was seen, under a signature of its own."""
        sight = self._sights.get(key)
        if sight is None:
            self._sights.put(self._prefix_of(key) or "", key, _Sight(round, round))
        else:
            sight.first, sight.last = min(sight.first, round), round  # a clock that ran ahead has no say

    def expire(self, round: int) -> None:
        """Forget who has been away for longer than it had been known before, within bounds.

        Keys that were shown once go soon and leave their places; a node of long standing may be switched off for a
        day.
        """
        shortest, longest = self._config.newcomer_rounds, self._config.longest_absence

        def keep(_: bytes, sight: _Sight) -> bool:
            return round - sight.last <= min(longest, max(shortest, sight.last - sight.first))

        self._sights.expire(keep)

    def state(self) -> list[Any]:
        """Return the sights as plain lists."""
        return [[group, key, sight.first, sight.last] for group, key, sight in self._sights.items()]

    def restore(self, state: Sequence[Any]) -> None:
        """Take over what `state` returned."""
        self._sights.replace(
            (str(group), bytes(key), _Sight(int(first), int(last))) for group, key, first, last in state
        )
