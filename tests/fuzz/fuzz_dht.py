"""What a peer asks of the own DHT: a sign of life, records to be stored, records to be found; nothing is ever raised.

The node is hivemind's with the bounds of dht_guard, without a network: whoever it would call does not answer.
"""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest import mock

import fuzz_seeds as seeds
import msgpack
from fuzz_streams import LOOP
from fuzz_targets import REASON, Broken, Target
from google.protobuf.message import DecodeError

from shoal.protocol.libp2p import imports
from shoal.protocol.libp2p.budget import Budgets
from shoal.protocol.libp2p.dht_guard import BURST, MAX_ASKED, RATE, OwnedRecords, Stored, protocol_of
from shoal.protocol.libp2p.dht_records import Seal
from shoal.protocol.libp2p.p2pd import MAX_MESSAGE

_HIVEMIND = imports.hivemind()
_MESSAGES = _HIVEMIND.dht_messages
_STORAGE = __import__("hivemind.utils.timed_storage", fromlist=["get_dht_time"])
_ROUTING = __import__("hivemind.dht.routing", fromlist=["DHTID", "RoutingTable"])
REQUESTS = (
    (_MESSAGES.PingRequest, "rpc_ping"),
    (_MESSAGES.StoreRequest, "rpc_store"),
    (_MESSAGES.FindRequest, "rpc_find"),
)
OWN_ID = _ROUTING.DHTID(1 << 100)
REMOTE = SimpleNamespace(remote_id=_HIVEMIND.PeerID(seeds.TRANSPORT_ID), local_id=None)
TOPIC = bytes(20)


def _protocol(count: Any) -> Any:
    """A node's own protocol object, as `create` of the library makes it, without handlers."""
    node = protocol_of("Shoal-fuzzed", count)(_initialized_with_create=True)
    node.p2p = None
    node.node_id, node.bucket_size, node.num_replicas, node.wait_timeout = OWN_ID, 20, 5, 1.0
    node.routing_table = _ROUTING.RoutingTable(OWN_ID, 20, 5)
    node.rpc_semaphore, node.client_mode, node.authorizer = asyncio.Semaphore(8), False, None
    node.record_validator = OwnedRecords(Seal(seeds.FOUNDER, lambda: seeds.NOW), count)
    node.node_info = _MESSAGES.NodeInfo(node_id=OWN_ID.to_bytes())
    node.storage, node.cache = Stored(count), Stored(count)
    node._budgets = Budgets(RATE, BURST)
    return node


def asked(data: bytes) -> None:
    """Two requests with the same bytes, of the kind that the first byte names; then what was stored is asked for."""
    kind, method = REQUESTS[data[0] % 3] if data else REQUESTS[0]
    request = kind()
    request.ParseFromString(data[1:])  # the library refuses what is no message
    counted: list[str] = []

    async def work() -> None:
        node = _protocol(counted.append)
        for call, message in ((method, request), (method, request), ("rpc_find", _FIND)):
            reply = await getattr(node, call)(message, REMOTE)
            await _settled()
            if reply.ByteSize() > MAX_MESSAGE:
                raise Broken("a reply that is too long to be sent")
        if len(node.storage) > MAX_ASKED or len(node.routing_table.peer_id_to_uid) > 1:
            raise Broken("one peer has made more room for itself than one request may")

    with mock.patch.object(_STORAGE, "get_dht_time", return_value=seeds.NOW):
        LOOP.run_until_complete(work())
    if not all(REASON.fullmatch(name) for name in counted):
        raise Broken(f"no counters: {set(counted)}")


async def _settled() -> None:
    """Wait for what the library has started beside the answer, and raise what it raises."""
    while others := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
        await asyncio.gather(*others)


def _store() -> bytes:
    tag, value = msgpack.packb(seeds.NODE.key), msgpack.packb(seeds.RECORDS[0])
    signed = Seal(seeds.NODE, lambda: seeds.NOW).sign(TOPIC, tag, value, seeds.NOW + 100.0)
    request = _MESSAGES.StoreRequest(
        keys=[TOPIC], subkeys=[tag], values=[signed], expiration_time=[seeds.NOW + 100.0], in_cache=[False]
    )
    return request.SerializeToString()


_FIND = _MESSAGES.FindRequest(keys=[TOPIC])
_NODE = _MESSAGES.NodeInfo(node_id=bytes([7]) * 20)
ASKED = [
    b"\0" + _MESSAGES.PingRequest(peer=_NODE, validate=True).SerializeToString(),
    b"\1" + _store(),
    b"\2" + _MESSAGES.FindRequest(keys=[TOPIC, bytes([1]) * 20], peer=_NODE).SerializeToString(),
]
DHT = Target("dht-request", ASKED, asked, (DecodeError,))
