"""Whom to gossip with: a few live peers on each of this node's topics, dialled with patience and never hammered."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Set

from shoal.protocol.libp2p.backoff import Backoff
from shoal.protocol.libp2p.known import KnownPeers, Peer
from shoal.protocol.libp2p.place import Place
from shoal.protocol.libp2p.tasks import Tasks

TARGET = 6  # connected peers in all, and on each topic
MOST = 48  # connected peers above which nobody is dialled, whatever a topic lacks
SURPLUS = 12  # connected peers above which those without a common topic are let go
CONSIDERED = 256  # candidates looked at closely
AT_ONCE = 4  # dials
PATIENCE = 6  # failures in a row, then one try for each later record

Topics = Callable[[bytes], Set[str]]
Dial = Callable[[Peer], Awaitable[bool]]


class Connector:
    """Dials until there are enough; `dial` reaches a peer's gossip host and tells whether its stream is open."""

    def __init__(self, place: Place, known: KnownPeers, dial: Dial) -> None:
        rhythm = place.rhythm
        self._count, self._known, self._dial = place.count, known, dial
        self._tries = Backoff(rhythm.first_retry, 5 * rhythm.last_retry, PATIENCE)
        self._tasks = Tasks()
        self._dialling: set[bytes] = set()

    def look(self, connected: Set[str], mine: Set[str], topics_of: Topics) -> None:
        """Dial whom it is time to dial; `connected` are gossip peer ids, `mine` this node's topics."""
        now = asyncio.get_running_loop().time()
        here = {peer.key for peer in map(self._known.by_gossip, connected) if peer is not None}
        taken = here | self._dialling
        free = {peer.key: peer for peer in self._known.alive() if peer.key not in taken}
        due = {key: peer for key, peer in free.items() if self._tries.due(peer.gossip_id, now)}
        having = {key: topics_of(key) for key in taken}
        offered = {key: topics_of(key) for key in due}
        chosen = choose(mine, having, offered, strangers=len(connected) - len(here))
        for key in chosen[: max(0, AT_ONCE - len(self._dialling))]:
            self._dialling.add(key)
            self._tasks.start(self._try(due[key]))

    def useless(self, connected: Set[str], mine: Set[str], topics_of: Topics) -> list[str]:
        """Connected gossip peers that share no topic with this node, as far as there are more peers than it wants."""
        peers = [peer for peer in map(self._known.by_gossip, connected) if peer is not None]
        idle = [peer.gossip_id for peer in peers if not topics_of(peer.key) & mine]
        return idle[: max(0, len(connected) - SURPLUS)]

    def relent(self, peer: Peer) -> None:
        """Grant one more try: a later record has come, perhaps with another address."""
        self._tries.relent(peer.gossip_id)

    async def close(self) -> None:
        """Dial nobody any more."""
        await self._tasks.close()

    async def _try(self, peer: Peer) -> None:
        loop = asyncio.get_running_loop()
        try:
            reached = await self._dial(peer)
        finally:
            self._dialling.discard(peer.key)
        if reached:
            self._tries.succeeded(peer.gossip_id, loop.time())
            self._known.heard(peer.key)
        else:
            self._count("gossip_dial_failed")
            self._tries.failed(peer.gossip_id, loop.time())


def choose(
    mine: Set[str], having: Mapping[bytes, Set[str]], offered: Mapping[bytes, Set[str]], strangers: int = 0
) -> list[bytes]:
    """The peers to dial, best first: those on topics of which too few peers are connected, then anybody up to TARGET.

    `having` and `offered`: topics by key, of peers that are connected and of peers that may be dialled.
    """
    served = Counter(topic for topics in having.values() for topic in topics & mine)
    lacking = {topic for topic in mine if served[topic] < TARGET}
    useful = [key for key, topics in offered.items() if topics & lacking]
    useful = random.sample(useful, min(len(useful), CONSIDERED))  # by chance: else all would dial the same ones
    chosen: list[bytes] = []
    total = len(having) + strangers
    while useful and lacking and total + len(chosen) < MOST:
        best = max(useful, key=lambda key: len(offered[key] & lacking))
        if not offered[best] & lacking:
            break
        useful.remove(best)
        chosen.append(best)
        served.update(offered[best] & mine)
        lacking = {topic for topic in lacking if served[topic] < TARGET}
    others = list(offered.keys() - set(chosen))
    wanted = max(0, TARGET - total - len(chosen))
    return chosen + random.sample(others, min(len(others), wanted))
