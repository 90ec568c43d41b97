"""Signed peer records: how a node tells others where it is and what it can do."""

from __future__ import annotations

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
from shoal.protocol.errors import Malformed, TooLarge, UnknownVersion
from shoal.protocol.identity import Identity
from shoal.protocol.limits import DEFAULT_LIMITS, Limits
from shoal.protocol.wire import Hash, Number

MAX_TTL = 24 * 3600  # seconds: a longer-lived record would make ghost peers
_Word = Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{1,256}\Z")]


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

    Order: size, header, version, signature, payload hash, schema, repeated fields, expiry.
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
    return record
