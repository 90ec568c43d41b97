"""Signed peer records: how a node tells others where it is and what it can do.

A node has two more keys on the network, one for each libp2p stack, both derived from its seed. The record binds them to
the root key both ways: the root key signs the record that names them, and each of them signs the root key. So nobody
can pass off another's address as his own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

import msgspec

from shoal.protocol import canonical
from shoal.protocol.envelope import (
    ANNOUNCEMENT_SIZE,
    NO_HASH,
    PROTOCOL_VERSION,
    Announcement,
    Header,
    Kind,
    check_payload,
    payload_hash,
    seal,
    verify_announcement,
)
from shoal.protocol.errors import BadSignature, Malformed, TooLarge, UnknownVersion
from shoal.protocol.identity import SIGNATURE_SIZE, Identity, verify
from shoal.protocol.limits import DEFAULT_LIMITS, Limits
from shoal.protocol.wire import Hash, Number

MAX_TTL = 24 * 3600  # seconds: a longer-lived record would make ghost peers
TRANSPORT = "libp2p/transport/1"  # what the key of hivemind's daemon is derived for
GOSSIP = "libp2p/gossip/1"  # and that of the gossip host
MAX_INVITE = 512  # bytes
BINDING = b"shoal/bind/1"  # what a derived key signs, before the root key

_Word = Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{1,256}\Z")]
_Proof = Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_SIZE, max_length=SIGNATURE_SIZE)]


class PeerRecord(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What a node says of itself; `expires` is in seconds since 1970."""

    swarm_id: Hash
    key: Hash
    sequence: Number
    expires: Number
    lineage: Hash
    tokenizer: Hash
    policy_version: Number
    capabilities: tuple[_Word, ...]
    addresses: tuple[_Word, ...]
    transport_key: Hash
    transport_proof: _Proof
    gossip_key: Hash
    gossip_proof: _Proof
    revision: Number  # of the manifest that the node lives by
    invite: Annotated[bytes, msgspec.Meta(max_length=MAX_INVITE)]  # the chain that admits it; empty: none


def prove(identity: Identity, purpose: str) -> tuple[bytes, bytes]:
    """The public key that is derived for a purpose, and its 64-byte signature of the root key."""
    derived = Identity.from_seed(identity.derive(purpose))
    return derived.key, derived.sign(BINDING + identity.key)


@lru_cache(maxsize=16_384)  # a record comes again every two minutes, the proof in it never changes
def bound(derived: bytes, proof: bytes, root: bytes) -> bool:
    """Whether the derived key has signed the root key."""
    return verify(derived, proof, BINDING + root)


def seal_record(identity: Identity, record: PeerRecord, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """The signed record: announcement, then payload. Raises TooLarge over the cap, ValueError for another's key."""
    payload = canonical.encode(record)
    header = Header(
        kind=Kind.RECORD,
        version=PROTOCOL_VERSION,
        swarm_id=record.swarm_id,
        key=record.key,
        round=0,
        policy_version=record.policy_version,
        prompt_hash=NO_HASH,
        sequence=record.sequence,
        payload_length=len(payload),
        payload_hash=payload_hash(payload),
    )
    data = seal(identity, header).encode() + payload
    if len(data) > limits.record_bytes:
        raise TooLarge("record_too_large", f"{len(data)} bytes")
    return data


def open_record(data: bytes, now: float, limits: Limits = DEFAULT_LIMITS) -> PeerRecord:
    """Open and verify a record at time `now` (seconds since 1970). Raises a ProtocolError; the swarm is the caller's.

    Order: size, header, version, signature, payload hash, schema, repeated fields, expiry, the two derived keys.
    """
    if len(data) > limits.record_bytes:
        raise TooLarge("record_too_large", f"{len(data)} bytes")
    announcement = Announcement.decode(data[:ANNOUNCEMENT_SIZE])
    header, payload = announcement.header, data[ANNOUNCEMENT_SIZE:]
    if header.kind is not Kind.RECORD:
        raise Malformed("not_a_record")
    if header.version != PROTOCOL_VERSION:
        raise UnknownVersion("unknown_version", f"{header.version}")
    verify_announcement(announcement)
    check_payload(header, payload)
    record = canonical.decode(payload, PeerRecord, limits)
    repeated = (record.swarm_id, record.key, record.sequence, record.policy_version, 0, NO_HASH)
    if repeated != (
        header.swarm_id,
        header.key,
        header.sequence,
        header.policy_version,
        header.round,
        header.prompt_hash,
    ):
        raise Malformed("header_mismatch")
    if record.expires <= now:
        raise Malformed("record_expired")
    if record.expires > now + MAX_TTL:
        raise Malformed("record_expires_too_late")
    for derived, proof in ((record.transport_key, record.transport_proof), (record.gossip_key, record.gossip_proof)):
        if not bound(derived, proof, record.key):
            raise BadSignature("unbound_key")
    return record
