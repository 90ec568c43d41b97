"""Names of libp2p for Ed25519 keys: peer ids, and the file format in which a private key is read.

Both follow the libp2p specification of peer ids: an Ed25519 public key is short enough to be its own id.
"""

from __future__ import annotations

import base58

from shoal.protocol.identity import KEY_SIZE, Identity

_PUBLIC = bytes.fromhex("002408011220")  # identity multihash of 36 bytes: a PublicKey of type Ed25519 with 32 bytes
_PRIVATE = bytes.fromhex("08011240")  # a PrivateKey of type Ed25519 with 64 bytes


def identity_file(seed: bytes) -> bytes:
    """The private key of a 32-byte seed as p2pd reads it: seed, then public key, in libp2p's protobuf."""
    return _PRIVATE + seed + Identity.from_seed(seed).key


def peer_id(key: bytes) -> str:
    """The peer id of a 32-byte public key, as text: 12D3KooW…"""
    return base58.b58encode(_PUBLIC + key).decode("ascii")


def key_of(peer: str) -> bytes | None:
    """The 32-byte public key that a peer id holds; None for another kind of id, or for none at all."""
    raw = peer_bytes(peer)
    return raw[len(_PUBLIC) :] if len(raw) == len(_PUBLIC) + KEY_SIZE and raw.startswith(_PUBLIC) else None


def peer_bytes(peer: str) -> bytes:
    """A peer id in binary; empty for text that is none."""
    try:
        return base58.b58decode(peer)
    except ValueError:
        return b""


def peer_text(raw: bytes) -> str:
    """A binary peer id of any kind as text."""
    return base58.b58encode(raw).decode("ascii")
