"""Whether peers can connect to this node: they are asked to try, and to say under which address they see it.

    /shoal/reach/1    ask: port (2)    answer: 0 not tried, 1 reached, 2 not reached (1); length (1); address as text

The asked node connects to the asker's own address only, as it sees it, closes at once, and does so rarely: nobody can
aim it at a third party.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from shoal.protocol.errors import FetchFailed
from shoal.protocol.libp2p.addresses import parse
from shoal.protocol.libp2p.budget import Budgets
from shoal.protocol.libp2p.control import Remote, Stream, closed_by_peer
from shoal.protocol.libp2p.settings import Reachability, Verdict

REACH = "/shoal/reach/1"
ASKED = 3  # peers in one check
DIAL_SECONDS = 5.0
ANSWER_SECONDS = 12.0
EACH_PER_SECOND, EACH_BURST = 1 / 60, 2.0  # tries for one peer
ALL_PER_SECOND, ALL_BURST = 1 / 3, 10.0  # and for all together
NOT_TRIED, REACHED, NOT_REACHED = 0, 1, 2
MAX_SEEN = 8


class ReachServer:
    """Tries to connect to whoever asks for it."""

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count
        self._each, self._all = Budgets(EACH_PER_SECOND, EACH_BURST), Budgets(ALL_PER_SECOND, ALL_BURST)

    async def serve(self, remote: Remote, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one stream of REACH."""
        async with asyncio.timeout(ANSWER_SECONDS):
            port = int.from_bytes(await reader.readexactly(2), "big")
            seen = parse(remote.address)
            outcome = NOT_TRIED
            if seen is None or seen.relay or not _numeric(seen.host) or not port:
                self._count("reach_not_tried")
            elif not self._each.spend(remote.peer_id) or not self._all.spend(""):
                self._count("reach_too_often")
            else:
                outcome = await _dial(seen.host, port)
                self._count("reach_tried")
            text = (seen.host if seen is not None and not seen.relay else "").encode("ascii")
            writer.write(bytes([outcome, len(text)]) + text)
        await closed_by_peer(reader, ANSWER_SECONDS)


class Reach:
    """What peers found when they tried; `open_stream(peer id, protocol)` raises FetchFailed or OSError."""

    def __init__(self, open_stream: Callable[[str, str], Awaitable[Stream]]) -> None:
        self._open_stream = open_stream
        self._outcomes: OrderedDict[str, int] = OrderedDict()  # of the latest answers, by peer
        self._seen: OrderedDict[str, None] = OrderedDict()

    async def check(self, peers: Sequence[str], port: int) -> None:
        """Ask up to ASKED of these peers."""
        await asyncio.gather(*(self._ask(peer, port) for peer in peers[:ASKED]))

    def verdict(self, addresses: Sequence[str], port: int) -> Reachability:
        """What follows from the majority of the answers, and from the own addresses."""
        relayed = any(address is not None and address.relay for address in map(parse, addresses))
        outcomes = list(self._outcomes.values())
        verdict: Verdict = "unknown"
        if outcomes.count(REACHED) > outcomes.count(NOT_REACHED):
            verdict = "public"
        elif relayed:
            verdict = "relayed"
        elif outcomes:
            verdict = "private"
        return Reachability(verdict, tuple(self._seen), _advice(verdict, port))

    async def _ask(self, peer: str, port: int) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                reader, writer = await self._open_stream(peer, REACH)
                try:
                    writer.write(port.to_bytes(2, "big"))
                    outcome, size = await reader.readexactly(2)
                    host = (await reader.readexactly(size)).decode("ascii", "replace")
                finally:
                    writer.close()
        except (FetchFailed, OSError, EOFError):
            return
        if outcome in (REACHED, NOT_REACHED):
            self._outcomes[peer] = outcome
            self._outcomes.move_to_end(peer)
        if _numeric(host):
            kind = "ip6" if ":" in host else "ip4"
            self._seen[f"/{kind}/{host}/tcp/{port}"] = None
        for kept, most in ((self._outcomes, 2 * ASKED), (self._seen, MAX_SEEN)):
            while len(kept) > most:
                kept.popitem(last=False)


def _advice(verdict: Verdict, port: int) -> str:
    """What the person at the machine can do."""
    if verdict == "public":
        return f"Peers connect to this node directly, on port {port}."
    if verdict == "relayed":
        return (
            "Peers reach this node through a relay only, which is slower and lasts as long as the relay. For direct "
            f"connections forward port {port}, TCP and UDP, from the router to this machine."
        )
    if verdict == "private":
        return (
            f"Peers cannot connect to this node. Open port {port}, TCP and UDP, in the firewall and forward it from "
            "the router to this machine, or name the address that others can use with --announce. Until then it takes "
            "part through the connections that it makes itself."
        )
    return "No peer has tried yet to connect to this node."


async def _dial(host: str, port: int) -> int:
    try:
        async with asyncio.timeout(DIAL_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return NOT_REACHED
    writer.close()
    return REACHED


def _numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
