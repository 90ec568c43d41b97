"""How hivemind and py-libp2p live in one process: the one place where either is imported first.

Both register protobuf files that declare `crypto.pb.KeyType`, in different shapes, in the one default pool of
descriptors; whichever comes second fails with "duplicate symbol". So py-libp2p gets a pool of its own: while it and
every submodule in use are imported, `google.protobuf.descriptor_pool.Default` returns that to the importing thread.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple, cast

_GOSSIP = "shoal.protocol.libp2p.gossip_session"  # imports all of py-libp2p that is used
_lock = threading.Lock()  # the gossip thread imports while the event loop does


class Hivemind(NamedTuple):
    """What is used of hivemind; it ships no types."""

    P2P: Any
    PeerID: Any
    DHTNode: Any
    DHTProtocol: Any
    DHTLocalStorage: Any
    DictionaryDHTValue: Any
    RecordValidatorBase: Any
    Serializer: Any
    Multiaddr: Any
    DaemonError: Any
    dht_messages: Any
    node_module: Any


def load_gossip() -> None:
    """Import py-libp2p and the modules of this package that need it; a second call does nothing."""
    with _lock, _private_pool():
        importlib.import_module(_GOSSIP)


def trio() -> ModuleType:
    """The trio module, for who would not load it before a transport starts."""
    return importlib.import_module("trio")


def hivemind() -> Hivemind:
    """The names used of hivemind; the first call imports it, and torch with it, in a few seconds."""
    with _lock:
        p2p, node, protocol = (_module(f"hivemind.{name}") for name in ("p2p", "dht.node", "dht.protocol"))
        storage, validation = _module("hivemind.dht.storage"), _module("hivemind.dht.validation")
        utils, utils_multiaddr = _module("hivemind.utils"), _module("hivemind.utils.multiaddr")
        messages = _module("hivemind.proto.dht_pb2")
    return Hivemind(
        P2P=p2p.P2P,
        PeerID=p2p.PeerID,
        DHTNode=node.DHTNode,
        DHTProtocol=protocol.DHTProtocol,
        DHTLocalStorage=storage.DHTLocalStorage,
        DictionaryDHTValue=storage.DictionaryDHTValue,
        RecordValidatorBase=validation.RecordValidatorBase,
        Serializer=utils.MSGPackSerializer,
        Multiaddr=utils_multiaddr.Multiaddr,
        DaemonError=p2p.P2PDaemonError,
        dht_messages=messages,
        node_module=node,
    )


def p2pd_messages() -> Any:
    """The messages that p2pd understands, as hivemind ships them."""
    with _lock:
        return _module("hivemind.proto.p2pd_pb2")


def _module(name: str) -> Any:
    return importlib.import_module(name)


@contextmanager
def _private_pool() -> Generator[None]:
    """Give this thread, and no other, a protobuf pool of its own."""
    importlib.import_module(
        "google.protobuf.symbol_database"
    )  # keeps the default pool that it finds when it is imported
    pools = cast(Any, importlib.import_module("google.protobuf.descriptor_pool"))
    default, private, owner = pools.Default, pools.DescriptorPool(), threading.get_ident()
    pools.Default = lambda: private if threading.get_ident() == owner else default()
    try:
        yield
    finally:
        pools.Default = default
