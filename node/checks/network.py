"""The network: our ports, the bootstraps, and what the running node knows of how it is reached."""

import errno
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from shoal.defenses.text import safe
from shoal.node.checks.finding import Finding, together
from shoal.node.view import find

CONNECT_SECONDS = 3.0
RESOLVE_SECONDS = 3.0
MOST_TRIED = 32  # a manifest may name any number
HOSTS = {"ip4": socket.AF_INET, "dns4": socket.AF_INET, "ip6": socket.AF_INET6, "dns6": socket.AF_INET6, "dns": 0}


class Place(NamedTuple):
    """Where a multiaddr leads: family (0: either), host, TCP port (0: none, e.g. QUIC only)."""

    family: int
    host: str
    port: int


def place_of(address: str) -> Place:
    """Return host and TCP port of a multiaddr with a peer id. Raises ValueError that says what is wrong with it."""
    try:
        parts = {protocol.name: value for protocol, value in Multiaddr(address).items()}
    except MultiaddrError as error:
        raise ValueError(f"{safe(address)}: not a multiaddr") from error
    family = next((name for name in HOSTS if name in parts), None)
    if family is None or "p2p" not in parts:
        raise ValueError(f"{safe(address)}: write /dns4/HOST/tcp/PORT/p2p/PEER or /ip4/ADDRESS/tcp/PORT/p2p/PEER")
    return Place(HOSTS[family], str(parts[family]), int(parts.get("tcp") or 0))


def ports(host: str, port: int, held_by: int | None) -> Finding:
    """Check that the node's port (TCP and UDP) can be listened on, or that our own node (`held_by`, a pid) does so."""
    if port == 0:
        return Finding(
            "warn", "the system chooses a port at each start", "set --port, or nobody can find the node again"
        )
    taken = [
        name for name, kind in (("TCP", socket.SOCK_STREAM), ("UDP", socket.SOCK_DGRAM)) if _taken(host, port, kind)
    ]
    if not taken:
        return Finding("ok", f"port {port} is free (TCP and UDP)")
    if held_by is not None:
        return Finding("ok", f"port {port} is held by the running node (process {held_by})")
    return Finding("fail", f"port {port} is taken ({' and '.join(taken)})", "end what uses it, or give another --port")


def health_port(host: str, port: int, held_by: int | None) -> Finding:
    """The same for the port of health and metrics, TCP alone."""
    if port == 0:
        return Finding("ok", "health and metrics are on the control socket only")
    if not _taken(host, port, socket.SOCK_STREAM):
        return Finding("ok", f"port {port} is free")
    if held_by is not None:
        return Finding("ok", f"port {port} is held by the running node (process {held_by})")
    return Finding("fail", f"port {port} is taken", "give another --health-port, or 0 for none")


def _taken(host: str, port: int, kind: int) -> bool:
    """Return whether the port cannot be bound. Raises OSError for an address that is not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, kind) as probe:
        if kind == socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a closed one may linger
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise OSError(error.errno, f"cannot listen on {host} port {port}: {error.strerror}") from error
            return True
    return False


def reachability(status: Mapping[str, Any] | None, port: int) -> Finding:
    """Tell how the running node is reached from outside, and what to forward when it is not."""
    if status is None:
        return Finding("ok", "known when a node runs: start it, then ask again")
    verdict = str(find(status, "network.reachability.verdict") or "unknown")
    advice = safe(str(find(status, "network.reachability.advice") or ""), 300)
    seen = ", ".join(safe(str(address), 120) for address in find(status, "network.reachability.seen_as") or [])
    seen = f", seen as {seen}" if seen else ""
    forward = f"forward port {port} (TCP and UDP) of the router or firewall to this machine"
    if verdict == "public":
        return Finding("ok", f"reachable from outside{seen}")
    if verdict == "relayed":
        return Finding("ok", f"reached through a relay{seen}: slower, and works", advice or forward)
    if verdict == "private":
        return Finding("warn", f"not reachable from outside{seen}", advice or f"{forward}, or allow --relays")
    return Finding("warn", "not known yet: no peer has told", advice or "wait until a bootstrap answers")


def bootstraps(addresses: Sequence[str]) -> Finding:
    """Connect to every bootstrap over TCP. A dead one is no failure: a node trains alone and keeps trying."""
    if not addresses:
        return Finding("warn", "no bootstrap is known", "name one with --bootstrap, or ask the swarm's founder")
    tried = addresses[:MOST_TRIED]
    looks = [partial(_answers, address) for address in tried]
    outcomes = together(looks, RESOLVE_SECONDS + CONNECT_SECONDS, "no answer in time", "the check itself failed")
    said = "; ".join(
        f"{safe(address, 120)}: {outcome or 'answers'}" for address, outcome in zip(tried, outcomes, strict=True)
    )
    alive = outcomes.count("")
    if alive == len(tried):
        return Finding("ok", said)
    if alive:
        return Finding("warn", said, "one that answers is enough")
    return Finding("warn", said, "none answers: a node trains alone and keeps trying; is the network blocked here?")


def _answers(address: str) -> str:
    """Return nothing when a TCP connection comes about, else why it does not."""
    try:
        place = place_of(address)
    except ValueError as error:
        return f"wrong ({error})"
    if not place.port:
        return "not tried: it has no TCP port"
    try:
        found = socket.getaddrinfo(place.host, place.port, place.family, socket.SOCK_STREAM)
    except OSError as error:
        return f"cannot be resolved ({error.strerror})"
    reason = "no address"
    for family, kind, protocol, _, target in found:
        with socket.socket(family, kind, protocol) as connection:
            connection.settimeout(CONNECT_SECONDS)
            try:
                connection.connect(target)
            except TimeoutError:
                reason = f"no answer in {CONNECT_SECONDS:.0f} s"
            except OSError as error:
                reason = error.strerror or str(error)
            else:
                return ""
    return reason
