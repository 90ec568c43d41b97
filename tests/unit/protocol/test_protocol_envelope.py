import dataclasses
import struct
from collections.abc import Callable
from typing import Any

import pytest

from shoal.protocol.envelope import (
    ANNOUNCEMENT_SIZE,
    HEADER_SIZE,
    PROTOCOL_VERSION,
    Announcement,
    Header,
    Kind,
    check_payload,
    payload_hash,
    seal,
    verify_announcement,
)
from shoal.protocol.errors import BadSignature, InvalidKey, Malformed
from shoal.protocol.identity import Identity


@pytest.fixture
def header(founder: Identity) -> Header:
    return Header(
        kind=Kind.ROLLOUT,
        version=PROTOCOL_VERSION,
        swarm_id=bytes([1]) * 32,
        key=founder.key,
        round=5,
        policy_version=6,
        prompt_hash=bytes([2]) * 32,
        sequence=7,
        payload_length=8,
        payload_hash=bytes([3]) * 32,
    )


@pytest.fixture
def change(header: Header) -> Callable[..., Header]:
    return lambda **fields: dataclasses.replace(header, **fields)


def test_the_layout_is_the_documented_one(header: Header, founder: Identity):
    by_hand = (
        b"shoal:rollout\0\0\0\x00\x01"
        + bytes([1]) * 32
        + founder.key
        + struct.pack(">Q", 5)
        + struct.pack(">Q", 6)
        + bytes([2]) * 32
        + struct.pack(">Q", 7)
        + b"\x00\x00\x00\x08"
        + bytes([3]) * 32
    )
    assert header.encode() == by_hand
    assert len(by_hand) == HEADER_SIZE == 174
    assert ANNOUNCEMENT_SIZE == 238
    assert Header.decode(by_hand) == header


def test_every_field_is_under_the_signature(header: Header, founder: Identity, change: Callable[..., Header]):
    sealed = seal(founder, header)
    verify_announcement(sealed)
    other: dict[str, Any] = {
        "kind": Kind.RECORD,
        "version": 2,
        "swarm_id": bytes(32),
        "round": 0,
        "policy_version": 0,
        "prompt_hash": bytes(32),
        "sequence": 0,
        "payload_length": 0,
        "payload_hash": bytes(32),
        "key": Identity.from_seed(bytes([9]) * 32).key,
    }
    assert set(other) == {field.name for field in dataclasses.fields(Header)}
    for name, value in other.items():
        with pytest.raises(BadSignature):
            verify_announcement(Announcement(change(**{name: value}), sealed.signature))


@pytest.mark.parametrize("signed", list(Kind))
@pytest.mark.parametrize("claimed", list(Kind))
def test_a_signature_of_one_kind_serves_no_other(
    signed: Kind, claimed: Kind, founder: Identity, change: Callable[..., Header]
):
    moved = Announcement(change(kind=claimed), seal(founder, change(kind=signed)).signature)
    if signed is claimed:
        verify_announcement(moved)
    else:
        with pytest.raises(BadSignature):
            verify_announcement(moved)


def test_only_the_named_identity_seals(header: Header):
    with pytest.raises(ValueError, match="sealed only"):
        seal(Identity.from_seed(bytes([9]) * 32), header)


def test_an_unusable_key_is_named_before_its_signature_is_tried(change: Callable[..., Header]):
    with pytest.raises(InvalidKey):
        verify_announcement(Announcement(change(key=bytes(32)), bytes(64)))


@pytest.mark.parametrize("size", [0, ANNOUNCEMENT_SIZE - 1, ANNOUNCEMENT_SIZE + 1])
def test_other_sizes_are_malformed(size: int):
    with pytest.raises(Malformed, match="announcement_size"):
        Announcement.decode(bytes(size))
    with pytest.raises(Malformed, match="header_size"):
        Header.decode(bytes(size))


def test_an_unknown_kind_is_malformed_and_an_unknown_version_is_left_to_the_caller(header: Header):
    data = header.encode()
    with pytest.raises(Malformed, match="unknown_kind"):
        Header.decode(b"shoal:sausage\0\0\0" + data[16:])
    assert Header.decode(data[:16] + b"\xff\xff" + data[18:]).version == 0xFFFF


@pytest.mark.parametrize("offset", [82, 90, 130])
def test_numbers_beyond_63_bits_are_malformed(header: Header, offset: int):
    data = header.encode()
    with pytest.raises(Malformed, match="header_number"):
        Header.decode(data[:offset] + b"\x80" + bytes(7) + data[offset + 8 :])


@pytest.mark.parametrize(
    "fields",
    [
        {"swarm_id": bytes(31)},
        {"payload_hash": bytes(33)},
        {"round": -1},
        {"sequence": 2**63},
        {"version": 2**16},
        {"payload_length": 2**32},
    ],
    ids=str,
)
def test_what_the_layout_cannot_hold_is_never_cut(fields: dict[str, Any], change: Callable[..., Header]):
    with pytest.raises(Malformed):
        change(**fields)


def test_the_payload_must_be_the_announced_one(change: Callable[..., Header]):
    header = change(payload_length=4, payload_hash=payload_hash(b"blob"))
    check_payload(header, b"blob")
    with pytest.raises(Malformed, match="payload_hash"):
        check_payload(header, b"glob")
    with pytest.raises(Malformed, match="payload_length"):
        check_payload(header, b"blobs")
