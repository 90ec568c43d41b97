"""The bridge's own place on the other swarm's DHT: a client that listens on nothing and keeps nothing for others.

It asks holders one by one and reads each answer by itself (`holder`), instead of hivemind's `get`, which lets one
stored value, plain or unreadable, stand in the way of all others under its key.
"""

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from shoal.defenses.verdict import Counters
from shoal.node.bridge.holder import LIVES_SECONDS, Entry, read_dictionary
from shoal.protocol.errors import EnvironmentFault, ProtocolError
from shoal.protocol.identity import Identity
from shoal.protocol.libp2p.imports import Hivemind, hivemind
from shoal.protocol.libp2p.keys import identity_file, peer_bytes, peer_id
from shoal.protocol.limits import MIB

START_SECONDS = 60.0
ASK_SECONDS = 5.0  # for one holder: an oversized reply never comes
WALK_SECONDS = 20.0  # for all holders of one key
ASKED = 16  # nodes asked for one key; it lies with the five nearest
AT_ONCE = 4
REPLICAS = 5
READ_BYTES = 16 * MIB  # of all answers for one key
SILENT_WALKS = 6  # walks in a row without any answer, after which the daemon is started anew
NODE_ID_BYTES = 20


class Answer(NamedTuple):
    """What one node answered: its peer id and how far from the key it stands."""

    peer: bytes
    distance: int
    result: Any


class ForeignDht:
    """Reads and writes rounds; whatever fails on the way is a count, and the next call tries again."""

    def __init__(self, seed: bytes, bootstraps: tuple[str, ...], folder: Path, counters: Counters) -> None:
        """`seed` are 32 bytes derived for this purpose alone; its key file is written into `folder`."""
        self.peer_id = peer_id(Identity.from_seed(seed).key)
        self.counters = counters
        self.now: Callable[[], float] = time.time  # hivemind's clock
        self._seed, self._bootstraps, self._folder = seed, bootstraps, folder
        self._p2p: Any = None
        self._silent = 0

    async def read(self, round: int) -> list[Entry]:
        """Return the entries of a round, of each peer the one that lasts longest; an empty list when none is found."""
        newest: dict[str, Entry] = {}
        for answer in await self._walk(_key_id(round)):
            if answer.result.type == _FOUND_PLAIN:
                self.counters.add("bridge", "plain_value")  # pre-stored to keep dictionaries out: other holders remain
            if answer.result.type != _FOUND_DICTIONARY:
                continue
            try:
                entries, refused = read_dictionary(answer.result.value, self.now())
            except ProtocolError as error:
                self.counters.add("bridge", f"holder_{error.reason}")
                continue
            for reason, count in refused.items():
                self.counters.add("bridge", reason, count)
            for entry in entries:
                if entry.peer not in newest or newest[entry.peer].expires < entry.expires:
                    newest[entry.peer] = entry
        return list(newest.values())

    async def write(self, round: int, value: bytes) -> int:
        """Store own sets under a round with the nearest holders that take them, and return how many did."""
        key_id = _key_id(round)
        request = _messages().StoreRequest(
            keys=[key_id],
            subkeys=[msgpack.packb(self.peer_id)],
            values=[msgpack.packb(value, use_bin_type=True)],
            expiration_time=[self.now() + LIVES_SECONDS],
            in_cache=[False],
            peer=_messages().NodeInfo(),
        )
        taken = 0
        for answer in sorted(await self._walk(key_id), key=lambda answer: answer.distance):
            if taken == REPLICAS:
                break
            reply = await self._call(answer.peer, "rpc_store", request, "StoreResponse")
            stored = reply is not None and any(reply.store_ok)
            self.counters.add("bridge", "stored" if stored else "store_refused")
            taken += stored
        return taken

    async def close(self) -> None:
        """End the daemon process."""
        p2p, self._p2p = self._p2p, None
        if p2p is not None:
            with contextlib.suppress(OSError):
                await p2p.shutdown()

    async def _walk(self, key_id: bytes) -> list[Answer]:
        """Ask the bootstraps, then ever nearer nodes, for a key."""
        answers: list[Answer] = []
        try:
            async with asyncio.timeout(WALK_SECONDS):
                await self._open()
                await self._ask_around(key_id, answers)
        except TimeoutError:
            self.counters.add("bridge", "walk_timeout")
        except EnvironmentFault:
            self.counters.add("bridge", "daemon_failed")
        self._silent = 0 if answers else self._silent + 1
        if self._silent >= SILENT_WALKS:
            self._silent = 0
            self.counters.add("bridge", "daemon_restart")
            await self.close()
        return answers

    async def _ask_around(self, key_id: bytes, answers: list[Answer]) -> None:
        request = _messages().FindRequest(keys=[key_id], peer=_messages().NodeInfo())
        own = peer_bytes(self.peer_id)
        waiting = {peer_bytes(address.rpartition("/")[2]): -1 for address in self._bootstraps}
        asked: set[bytes] = set()
        size = 0
        while waiting and len(asked) < ASKED and size <= READ_BYTES:
            batch = sorted(waiting, key=waiting.__getitem__)[:AT_ONCE]
            asked.update(batch)
            replies = await asyncio.gather(*(self._call(peer, "rpc_find", request, "FindResponse") for peer in batch))
            for peer, reply in zip(batch, replies, strict=True):
                if reply is None or len(reply.results) != 1:
                    continue
                [result] = reply.results
                size += len(result.value)
                answers.append(Answer(peer, _distance(reply.peer.node_id, key_id), result))
                for node, other in zip(result.nearest_node_ids, result.nearest_peer_ids, strict=False):
                    if len(node) == NODE_ID_BYTES and 0 < len(other) <= 64 and other != own:
                        waiting.setdefault(other, _distance(node, key_id))
            waiting = {peer: distance for peer, distance in waiting.items() if peer not in asked}

    async def _call(self, peer: bytes, method: str, request: Any, reply: str) -> Any:
        """Call one node; None, and a count, when nothing usable comes back."""
        hive = hivemind()
        try:
            async with asyncio.timeout(ASK_SECONDS):
                return await self._p2p.call_protobuf_handler(
                    hive.PeerID(peer), f"DHTProtocol.{method}", request, getattr(_messages(), reply)
                )
        except (*_faults(hive), OSError, EOFError, ValueError):  # TimeoutError is an OSError
            self.counters.add("bridge", "no_answer")
            return None

    async def _open(self) -> None:
        """Start the daemon process, if it does not run. Raises EnvironmentFault."""
        if self._p2p is not None:
            return
        hive = await asyncio.to_thread(hivemind)  # the first import takes seconds
        path = self._folder / "bridge.key"
        try:
            _write_private(path, identity_file(self._seed))
            self._p2p = await hive.P2P.create(
                initial_peers=list(self._bootstraps),
                identity_path=str(path),
                check_if_identity_free=False,  # reads RSA keys only
                no_listen=True,
                host_maddrs=None,
                dht_mode="client",
                nat_port_map=False,
                startup_timeout=START_SECONDS,
            )
        except (*_faults(hive), OSError, EOFError, ValueError) as error:
            raise EnvironmentFault(f"the bridge's network daemon does not start: {error}") from error


_FOUND_PLAIN, _FOUND_DICTIONARY = 1, 2  # hivemind's ResultType


def _messages() -> Any:
    """hivemind's protobuf messages; `hivemind()` must have been called before."""
    return import_module("hivemind.proto.dht_pb2")


def _faults(hive: Hivemind) -> tuple[type[BaseException], ...]:
    decode_error: type[BaseException] = import_module("google.protobuf.message").DecodeError
    return (hive.DaemonError, hive.HandlerError, decode_error)


def _key_id(round: int) -> bytes:
    packed: bytes = msgpack.packb(str(round))
    return hashlib.sha1(packed, usedforsecurity=False).digest()


def _distance(node: bytes, key_id: bytes) -> int:
    return int.from_bytes(node, "big") ^ int.from_bytes(key_id, "big")


def _write_private(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
