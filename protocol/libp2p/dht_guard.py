"""hivemind's DHT node with bounds on what peers can make it do; importing this loads hivemind.

Each override answers something that the library lets any peer do: decode megabytes before judging them, fill memory
with keys, records or routing entries, ask for replies that are too long to be sent (the asker then waits for ever), or
raise in a task that nobody awaits. The subclass's name is part of its RPC names, so another swarm's nodes are no
members of this DHT even when they are connected.
"""

# hivemind ships no types, and super() of an untyped class is unknown:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

from shoal.protocol.libp2p import imports
from shoal.protocol.libp2p.budget import Budgets
from shoal.protocol.libp2p.dht_records import MAX_OWNERS, Seal, is_dictionary, read_bytes, read_items
from shoal.protocol.libp2p.p2pd import MAX_MESSAGE

MAX_KEYS = 256  # DHT keys that one node stores
MAX_STORED = 8192  # records under them
MAX_ROUTES = 2048  # nodes in the routing table, with those that wait to replace others
MAX_ASKED = 64  # keys, or records, in one request
RATE, BURST = 100.0, 2000.0  # what one peer may cost: a second, at once; one is a key to be looked up
ID_SIZE = 20

_hivemind = imports.hivemind()
_Protocol: Any = _hivemind.DHTProtocol
_Storage: Any = _hivemind.DHTLocalStorage
_Dictionary: Any = _hivemind.DictionaryDHTValue
_Validator: Any = _hivemind.RecordValidatorBase
Count = Callable[[str], None]


class Owned(_Dictionary):
    """The records under one DHT key: at most MAX_OWNERS, and a newcomer never displaces one that is kept fresh."""

    def store(self, key: Any, value: Any, expiration_time: float) -> bool:
        """Keep a record unless a later one of the same owner is there, or the room is taken."""
        found = self.data.get(key)
        if found is None and len(self) >= MAX_OWNERS:
            return False
        if found is not None and found.expiration_time >= expiration_time:
            return False  # the base class would keep a trace of each attempt
        return bool(super().store(key, value, expiration_time))


_hivemind.Serializer._ext_types[Owned] = 0x50  # packed as the class that it extends


class Stored(_Storage):
    """What one node keeps for the DHT, within bounds on keys and records."""

    def __init__(self, count: Count) -> None:
        super().__init__()
        self._count = count

    def store(self, key: Any, value: Any, expiration_time: float, subkey: Any = None) -> bool:
        """Keep a record; a value without an owner has no place here."""
        if subkey is None:
            return False
        return self.store_subkey(key, subkey, value, expiration_time)

    def store_subkey(self, key: Any, subkey: Any, value: bytes, expiration_time: float) -> bool:
        """Keep one record under its owner's key; what there is no room for is counted."""
        found = self.get(key)
        kept = found.value if found is not None else Owned()
        full = sum(len(each.value.data) for each in self.data.values()) >= MAX_STORED
        if (found is None and len(self) >= MAX_KEYS) or (full and subkey not in kept.data):
            self._count("dht_full")
            return False
        if not kept.store(subkey, value, expiration_time):
            return False
        if found is None or expiration_time > found.expiration_time:
            super(_Storage, self).store(key, kept, expiration_time)  # until the latest of them expires
        return True


class OwnedRecords(_Validator):
    """Signs what this node stores, and refuses whatever its owner did not sign."""

    def __init__(self, seal: Seal, count: Count) -> None:
        self._seal, self._count = seal, count

    def validate(self, record: Any) -> bool:
        """Whether a record may be stored, or believed."""
        fault = self._seal.fault(record.key, record.subkey, record.value, record.expiration_time)
        if fault:
            self._count(fault)
        return not fault

    def sign_value(self, record: Any) -> bytes:
        """The value with this node's signature."""
        return self._seal.sign(record.key, record.subkey, record.value, record.expiration_time)

    def strip_value(self, record: Any) -> bytes:
        """The value without its signature."""
        return bytes(record.value[:-64])


class Strict(_hivemind.Serializer):
    """Packs as hivemind does and reads only the two forms that occur."""

    @staticmethod
    def loads(buf: bytes) -> Any:
        """Bytes, or the records under one key. Raises ValueError."""
        if not is_dictionary(buf):
            return read_bytes(buf)
        found = Owned()
        with found.freeze():
            for item in read_items(buf):
                found.store(item.owner, item.value, item.expiration)
        return found


class Guarded(_Protocol):
    """The RPCs of a DHT node, each within its peer's budget and in the one form that nodes send."""

    serializer = Strict
    count: Count

    async def add_p2p_handlers(self, p2p: Any, wrapper: Any = None, **options: Any) -> None:
        """Put the bounds in place, then take RPCs."""
        self._budgets = Budgets(RATE, BURST)
        self.storage, self.cache = Stored(self.count), Stored(self.count)
        await super().add_p2p_handlers(p2p, wrapper, **options)

    async def rpc_ping(self, request: Any, context: Any) -> Any:
        """Answer a sign of life."""
        if not self._fair(request, context, 1):
            return self._messages.PingResponse()
        return await super().rpc_ping(request, context)

    async def rpc_store(self, request: Any, context: Any) -> Any:
        """Store records for a peer."""
        sizes = {len(part) for part in (request.keys, request.subkeys, request.values)}
        sizes |= {len(request.expiration_time), len(request.in_cache)}
        asked = len(request.keys)
        if len(sizes) != 1 or any(request.in_cache) or not self._fair(request, context, 1 + asked, request.keys):
            return self._messages.StoreResponse(store_ok=[False] * min(asked, MAX_ASKED))
        try:
            return await super().rpc_store(request, context)
        except (ValueError, AssertionError):
            self.count("dht_malformed")
            return self._messages.StoreResponse(store_ok=[False] * asked)

    async def rpc_find(self, request: Any, context: Any) -> Any:
        """Find records for a peer; what would make the reply too long to be sent is left out."""
        if not self._fair(request, context, 1 + len(request.keys), request.keys):
            return self._messages.FindResponse()
        reply = await super().rpc_find(request, context)
        for result in reply.results:
            if reply.ByteSize() <= MAX_MESSAGE * 3 // 4:
                break
            result.type = self._messages.NOT_FOUND
            result.ClearField("value")
            self.count("dht_reply_cut")
        return reply

    async def call_ping(self, peer: Any, validate: bool = False, strict: bool = True) -> Any:
        """Ask for a sign of life; None when there is none, or a senseless one."""
        try:
            return await super().call_ping(peer, validate, strict)
        except (AssertionError, ValueError):
            self.count("dht_malformed")
            return None

    async def update_routing_table(self, node_id: Any, peer_id: Any, responded: bool = True) -> None:
        """Note a node: one id for each peer, and no more of them than MAX_ROUTES."""
        table = self.routing_table
        known = table.get(peer_id=peer_id)
        if responded and node_id is None and known is None:
            return
        if responded and known is None and len(table.peer_id_to_uid) >= MAX_ROUTES:
            self.count("dht_routes_full")
            return
        if responded and known is not None and node_id is not None and known != node_id and known in table:
            del table[known]  # it came back under a new id
        await super().update_routing_table(node_id, peer_id, responded)

    @property
    def _messages(self) -> Any:
        return _hivemind.dht_messages

    def _fair(self, request: Any, context: Any, cost: float, keys: Any = ()) -> bool:
        sender = request.peer.node_id
        if len(sender) not in (0, ID_SIZE) or len(keys) > MAX_ASKED or any(len(key) != ID_SIZE for key in keys):
            self.count("dht_malformed")
            return False
        if not self._budgets.spend(str(context.remote_id), cost):
            self.count("dht_flood")
            return False
        return True


for _name in ("rpc_ping", "rpc_store", "rpc_find"):  # the library reads the messages' types from the annotations
    getattr(Guarded, _name).__annotations__ = get_type_hints(getattr(_Protocol, _name))


class Chosen(_Protocol):
    """Stands where the library's node looks for its protocol, and takes the one that the P2P object carries.

    A plain P2P object of the same process carries none: its DHT gets the library's own protocol.
    """

    @classmethod
    async def create(cls, p2p: Any, *arguments: Any, **options: Any) -> Any:
        """The protocol of one DHT."""
        return await getattr(p2p, "dht_protocol", _Protocol).create(p2p, *arguments, **options)


_hivemind.node_module.DHTProtocol = Chosen


def protocol_of(name: str, count: Count) -> Any:
    """The protocol class of one DHT; its name keeps DHTs apart."""
    own = {"_rpc_handlers": None, "_stub_type": None, "count": staticmethod(count)}
    return type(name, (Guarded,), own)
