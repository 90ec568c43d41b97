"""Peer ids and identity files, against the other implementation of the same specification: py-libp2p."""

import pytest

from shoal.protocol.identity import Identity
from shoal.protocol.libp2p import imports
from shoal.protocol.libp2p.keys import identity_file, key_of, peer_bytes, peer_id, peer_text
from shoal.protocol.libp2p.place import Place
from shoal.protocol.libp2p.settings import Libp2pSettings
from shoal.protocol.records import TRANSPORT, prove

imports.load_gossip()

from libp2p.crypto.ed25519 import create_new_key_pair  # noqa: E402
from libp2p.crypto.serialization import deserialize_private_key  # noqa: E402
from libp2p.peer.id import ID  # noqa: E402


@pytest.mark.parametrize("seed", [bytes(32), bytes(range(32)), b"\xff" * 32])
def test_peer_ids_are_those_of_libp2p(seed: bytes):
    theirs = ID.from_pubkey(create_new_key_pair(seed).public_key)
    key = Identity.from_seed(seed).key
    assert peer_id(key) == theirs.to_base58()
    assert peer_bytes(peer_id(key)) == theirs.to_bytes()
    assert peer_text(theirs.to_bytes()) == theirs.to_base58()
    assert key_of(peer_id(key)) == key


def test_the_identity_file_is_read_by_libp2p():
    """p2pd reads seed and public key, 64 bytes, in the protobuf of the specification."""
    seed = bytes(range(32))
    data = identity_file(seed)
    assert data[:4] == bytes.fromhex("08011240")
    assert data[4:] == seed + Identity.from_seed(seed).key
    assert deserialize_private_key(data[:3] + b"\x20" + seed).to_bytes() == seed  # py-libp2p keeps the seed alone


@pytest.mark.parametrize("text", ["", "no peer", "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", "1" * 40, "0OIl"])
def test_what_holds_no_ed25519_key(text: str):
    assert key_of(text) is None


def test_a_node_has_one_transport_id():
    identity = Identity.from_seed(bytes(32))
    place = Place(identity, bytes(32), Libp2pSettings(), lambda reason: None)
    assert place.transport_id == peer_id(prove(identity, TRANSPORT)[0])
    assert key_of(place.transport_id) == Identity.from_seed(identity.derive("libp2p/transport/1")).key
    assert place.topic("peers/3") == "shoal/0000000000000000/peers/3"
