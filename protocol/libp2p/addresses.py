"""Multiaddrs: which are dialled, which are told to others, and what they say.

A peer's addresses are its own claim. Only plain TCP and QUIC ones are dialled, alone or through a relay, and a peer
never makes this machine dial itself: loopback addresses count only on a machine that has no others.
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import NamedTuple

from multiaddr import Multiaddr

from shoal.protocol.errors import UsageError
from shoal.protocol.libp2p.keys import peer_bytes

MAX_ADDRESSES = 8  # of one node; they share the record's 2 KiB

_FORM = re.compile(
    r"/(?P<kind>ip4|ip6|dns|dns4|dns6)/(?P<host>[0-9A-Za-z.:-]{1,253})"
    r"/(?:(?P<tcp>tcp)/(?P<port>[0-9]{1,5})|udp/(?P<udp>[0-9]{1,5})/quic-v1)"
    r"(?:/p2p/(?P<relay>[1-9A-HJ-NP-Za-km-z]{40,60})/p2p-circuit)?"
)


class Address(NamedTuple):
    """What an address says; the port is of TCP or UDP."""

    text: str
    host: str
    port: int
    tcp: bool
    relay: str  # the relay's peer id; empty for a direct address

    @property
    def loopback(self) -> bool:
        """Whether it means the machine itself."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.rstrip(".").lower() == "localhost"

    @property
    def unspecified(self) -> bool:
        """Whether it names no machine at all: 0.0.0.0 or ::."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False


def parse(text: str) -> Address | None:
    """Read an address without the peer id at its end; None for a form that is not dialled."""
    match = _FORM.fullmatch(text)
    if match is None or not binary(text):
        return None
    port = int(match["port"] or match["udp"])
    return Address(text, match["host"], port, bool(match["tcp"]), match["relay"] or "") if 0 < port < 2**16 else None


def binary(text: str) -> bytes:
    """An address in binary; empty for text that is none."""
    try:
        return Multiaddr(text).to_bytes()
    except (ValueError, LookupError):
        return b""


def from_binary(raw: bytes) -> str:
    """A binary address as text; empty for bytes that are none, or none of a kind known here."""
    try:
        return str(Multiaddr(raw))
    except (ValueError, LookupError):
        return ""


def full(address: str, peer: str) -> str:
    """An address with the peer id behind it, as it is handed on to people."""
    return f"{address}/p2p/{peer}"


def split(text: str) -> tuple[str, str]:
    """The address and the peer id of a full address; raises UsageError."""
    address, separator, peer = text.rpartition("/p2p/")
    if not separator or parse(address) is None or len(peer_bytes(peer)) < 34:
        raise UsageError(
            f"{text[:200]!r} is no address of a node: write /ip4/HOST/tcp/PORT/p2p/PEER-ID (or ip6, dns4, dns6; "
            "udp/PORT/quic-v1), as the other node prints it"
        )
    return address, peer


def dialable(addresses: Iterable[str], loopback: bool) -> tuple[str, ...]:
    """Those addresses of a peer that are dialled, at most MAX_ADDRESSES; `loopback`: this machine has no other."""
    parsed = (parse(address) for address in addresses)
    good = [a.text for a in parsed if a is not None and not a.unspecified and (loopback or not a.loopback)]
    return tuple(dict.fromkeys(good))[:MAX_ADDRESSES]


def tellable(addresses: Iterable[str]) -> tuple[str, ...]:
    """Those own addresses that go into the record: direct TCP ones first, loopback only where there is no other."""
    parsed = [a for a in map(parse, addresses) if a is not None and not a.unspecified]
    away = [a for a in parsed if not a.loopback]
    ordered = sorted(away or parsed, key=lambda a: (bool(a.relay), not a.tcp))  # stable: p2pd's own order otherwise
    return tuple(dict.fromkeys(a.text for a in ordered))[:MAX_ADDRESSES]
