"""The bridge's lookups on the other swarm's DHT: holders are asked one by one, and each answer is read by itself.

hivemind's own `get` merges what it finds: one stored value that is plain, or unreadable, stands there in the way of all
others under its key.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgpack

from shoal.defenses.verdict import Counters
from shoal.node.bridge.holder import LIVES_SECONDS, Entry, read_dictionary
from shoal.node.bridge.rpc import Caller
from shoal.protocol.errors import EnvironmentFault, ProtocolError
from shoal.protocol.identity import Identity
from shoal.protocol.libp2p.imports import hivemind
from shoal.protocol.libp2p.keys import peer_id, peer_text
from shoal.protocol.limits import MIB

WALK_SECONDS = 20.0  # for all holders of one key
ASKED = 16  # nodes asked for one key; it lies with the five nearest
AT_ONCE = 4
REPLICAS = 5
READ_BYTES = 16 * MIB  # of all answers for one key
NODE_ID_BYTES = 20
PEER_ID_BYTES = 64
_PLAIN, _DICTIONARY = 1, 2  # hivemind's ResultType: FOUND_REGULAR, FOUND_DICTIONARY


class Answer(NamedTuple):
    """What one node answered: its peer id, and how far from the key it stands."""

    peer: str
    distance: int
    result: Any


class ForeignDht:
    """Reads and writes rounds; whatever fails on the way is a count, and the next call tries again."""

    def __init__(self, seed: bytes, bootstraps: tuple[str, ...], counters: Counters) -> None:
        """`seed` are 32 bytes derived for the bridge alone. Raises UsageError for what is no address of a peer."""
        self.peer_id = peer_id(Identity.from_seed(seed).key)
        self.counters = counters
        self.now: Callable[[], float] = time.time  # hivemind's clock
        self.caller = Caller(seed, bootstraps, self._count)

    async def read(self, round: int) -> list[Entry]:
        """Return the entries of a round, of each peer the one that lasts longest; an empty list when none is found."""
        newest: dict[str, Entry] = {}
        for answer in await self._walk(key_of_round(round)):
            # Up to 4 MiB are walked over: not in the loop that serves the network.
            for entry in await asyncio.to_thread(self._entries, answer):
                if entry.peer not in newest or newest[entry.peer].expires < entry.expires:
                    newest[entry.peer] = entry
        return list(newest.values())

    async def write(self, round: int, value: bytes) -> int:
        """Store own sets under a round with the nearest holders that take them, and return how many did."""
        key = key_of_round(round)
        answers = sorted(await self._walk(key), key=lambda answer: answer.distance)
        if not answers:
            return 0
        messages = hivemind().dht_messages
        request = messages.StoreRequest(
            keys=[key],
            subkeys=[msgpack.packb(self.peer_id)],
            values=[msgpack.packb(value, use_bin_type=True)],
            expiration_time=[self.now() + LIVES_SECONDS],
            in_cache=[False],
            peer=messages.NodeInfo(),
        )
        taken = 0
        for answer in answers:
            if taken < REPLICAS:
                reply = await self.caller.call(answer.peer, "rpc_store", request, messages.StoreResponse())
                stored = reply is not None and any(reply.store_ok)
                self._count("stored" if stored else "store_refused")
                taken += stored
        return taken

    async def close(self) -> None:
        """End the network daemon of the bridge."""
        await self.caller.close()

    def _entries(self, answer: Answer) -> list[Entry]:
        if answer.result.type == _PLAIN:
            self._count("plain_value")  # stored beforehand, it keeps this holder from taking any other
        if answer.result.type != _DICTIONARY:
            return []
        try:
            entries, refused = read_dictionary(answer.result.value, self.now())
        except ProtocolError as error:
            self._count(f"holder_{error.reason}")
            return []
        for reason, count in refused.items():
            self.counters.add("bridge", reason, count)
        return entries

    async def _walk(self, key: bytes) -> list[Answer]:
        """Ask the bootstraps, then ever nearer nodes, for a key; what has come when time is up counts."""
        answers: list[Answer] = []
        try:
            await self.caller.ready()
            async with asyncio.timeout(WALK_SECONDS):
                await self._ask_around(key, answers)
        except TimeoutError:
            self._count("walk_timeout")
        except EnvironmentFault:
            self._count("daemon_failed")
        return answers

    async def _ask_around(self, key: bytes, answers: list[Answer]) -> None:
        messages = hivemind().dht_messages
        request = messages.FindRequest(keys=[key], peer=messages.NodeInfo())  # without an id we enter no routing table
        waiting = dict.fromkeys(self.caller.bootstraps, -1)
        asked: set[str] = {self.peer_id}
        size = 0
        while waiting and len(asked) <= ASKED and size <= READ_BYTES:
            batch = sorted(waiting, key=waiting.__getitem__)[:AT_ONCE]
            asked.update(batch)
            replies = await asyncio.gather(
                *(self.caller.call(peer, "rpc_find", request, messages.FindResponse()) for peer in batch)
            )
            for peer, reply in zip(batch, replies, strict=True):
                if reply is None or len(reply.results) != 1:
                    continue
                answers.append(Answer(peer, _distance(reply.peer.node_id, key), reply.results[0]))
                size += len(answers[-1].result.value)
                waiting |= _nearest(reply.results[0], key)
            waiting = {peer: distance for peer, distance in waiting.items() if peer not in asked}

    def _count(self, reason: str) -> None:
        self.counters.add("bridge", reason)


def key_of_round(round: int) -> bytes:
    """Return the 20 bytes under which the DHT keeps a round: SHA-1 of its number as packed text."""
    packed: bytes = msgpack.packb(str(round))
    return hashlib.sha1(packed, usedforsecurity=False).digest()


def _nearest(result: Any, key: bytes) -> dict[str, int]:
    """Return the nodes that an answer names, with their distances; what is no id is left out."""
    pairs = zip(result.nearest_node_ids, result.nearest_peer_ids, strict=False)
    usable = [(node, peer) for node, peer in pairs if len(node) == NODE_ID_BYTES and 0 < len(peer) <= PEER_ID_BYTES]
    return {peer_text(peer): _distance(node, key) for node, peer in usable[: 2 * NODE_ID_BYTES]}


def _distance(node: bytes, key: bytes) -> int:
    return int.from_bytes(node, "big") ^ int.from_bytes(key, "big")
