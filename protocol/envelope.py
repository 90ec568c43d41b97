"""The signed header: one fixed layout, one signature, for everything that a node signs.

    offset size field                        offset size field
         0   16 domain tag with the kind         98   32 prompt hash
        16    2 protocol version                130    8 sequence
        18   32 swarm id                        138    4 payload length
        50   32 key                             142   32 payload hash (SHA-256)
        82    8 round                           174      end of the header
        90    8 policy version                  174   64 signature; together the announcement

Integers are big-endian. The tag stands first in what is signed, so a signature of one kind never serves another.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum

from shoal.protocol.errors import BadSignature, Malformed
from shoal.protocol.identity import SIGNATURE_SIZE, Identity, check_key, verify

PROTOCOL_VERSION = 1
HASH_SIZE = 32
NO_HASH = bytes(HASH_SIZE)
MAX_NUMBER = 2**63 - 1  # what SQLite and every language's signed integer can hold

_LAYOUT = struct.Struct(">16sH32s32sQQ32sQI32s")
HEADER_SIZE = _LAYOUT.size
ANNOUNCEMENT_SIZE = HEADER_SIZE + SIGNATURE_SIZE


class Kind(IntEnum):
    """What a header speaks for."""

    ROLLOUT = 1
    RECORD = 2
    MANIFEST = 3
    INVITE = 4
    MEMBER = 5


_TAGS = {
    Kind.ROLLOUT: b"shoal:rollout\0\0\0",
    Kind.RECORD: b"shoal:record\0\0\0\0",
    Kind.MANIFEST: b"shoal:manifest\0\0",
    Kind.INVITE: b"shoal:invite\0\0\0\0",
    Kind.MEMBER: b"shoal:member\0\0\0\0",
}
_KINDS = {tag: kind for kind, tag in _TAGS.items()}


@dataclass(frozen=True, slots=True)
class Header:
    """What is signed. Hashes and keys have 32 bytes; numbers lie in 0..2^63-1, the payload length in 0..2^32-1."""

    kind: Kind
    version: int
    swarm_id: bytes
    key: bytes
    round: int
    policy_version: int
    prompt_hash: bytes
    sequence: int
    payload_length: int
    payload_hash: bytes

    def __post_init__(self) -> None:
        """Raise Malformed for a field that the layout cannot hold: struct would cut or pad it silently."""
        for value in (self.swarm_id, self.key, self.prompt_hash, self.payload_hash):
            if len(value) != HASH_SIZE:
                raise Malformed("header_field_size", f"{len(value)} bytes where {HASH_SIZE} are needed")
        for number in (self.round, self.policy_version, self.sequence):
            if not 0 <= number <= MAX_NUMBER:
                raise Malformed("header_number", f"{number} is not in 0..2^63-1")
        if not (0 <= self.version <= 0xFFFF and 0 <= self.payload_length <= 0xFFFFFFFF):
            raise Malformed("header_number", "version or payload length out of range")

    def encode(self) -> bytes:
        """The HEADER_SIZE bytes that are signed."""
        return _LAYOUT.pack(
            _TAGS[self.kind],
            self.version,
            self.swarm_id,
            self.key,
            self.round,
            self.policy_version,
            self.prompt_hash,
            self.sequence,
            self.payload_length,
            self.payload_hash,
        )

    @staticmethod
    def decode(data: bytes) -> Header:
        """Parse a header; raises Malformed. An unknown version is left to the caller, who counts and ignores it."""
        if len(data) != HEADER_SIZE:
            raise Malformed("header_size", f"{len(data)} bytes, not {HEADER_SIZE}")
        tag, *fields = _LAYOUT.unpack(data)
        kind = _KINDS.get(tag)
        if kind is None:
            raise Malformed("unknown_kind")
        return Header(kind, *fields)


@dataclass(frozen=True, slots=True)
class Announcement:
    """A header and its signature: the small signed pointer that is gossiped."""

    header: Header
    signature: bytes

    def encode(self) -> bytes:
        """The ANNOUNCEMENT_SIZE bytes that travel."""
        return self.header.encode() + self.signature

    @staticmethod
    def decode(data: bytes) -> Announcement:
        """Parse an announcement without judging its signature; raises Malformed."""
        if len(data) != ANNOUNCEMENT_SIZE:
            raise Malformed("announcement_size", f"{len(data)} bytes, not {ANNOUNCEMENT_SIZE}")
        return Announcement(Header.decode(data[:HEADER_SIZE]), data[HEADER_SIZE:])


def seal(identity: Identity, header: Header) -> Announcement:
    """Sign a header. Raises ValueError when the header names another key than the identity's."""
    if header.key != identity.key:
        raise ValueError("a header is sealed only by the identity that it names")
    return Announcement(header, identity.sign(header.encode()))


def verify_announcement(announcement: Announcement) -> None:
    """Raise InvalidKey or BadSignature unless the announcement was signed by the key that it names."""
    check_key(announcement.header.key)
    if not verify(announcement.header.key, announcement.signature, announcement.header.encode()):
        raise BadSignature("bad_signature")


def payload_hash(payload: bytes) -> bytes:
    """SHA-256 of the exact bytes that travel: for a rollout, the compressed blob. Also the blob's address."""
    return hashlib.sha256(payload).digest()


def check_payload(header: Header, payload: bytes) -> None:
    """Raise Malformed unless the payload has the length and the hash that its header names."""
    if len(payload) != header.payload_length:
        raise Malformed("payload_length", f"{len(payload)} bytes, {header.payload_length} announced")
    if payload_hash(payload) != header.payload_hash:
        raise Malformed("payload_hash")
