"""The strict reader and the signatures of the DHT; what hivemind packs is made here with msgpack itself."""

import contextlib
import struct

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocol.identity import Identity
from shoal.protocol.libp2p.dht_records import MAX_DATA, MAX_OWNERS, MAX_TTL, SKEW, Item, Seal, read_bytes, read_items

NOW = 1_000_000.0
KEY = bytes(20)
IDENTITY = Identity.from_seed(bytes([1]) * 32)
TAG = msgpack.packb(IDENTITY.key)


@pytest.fixture
def seal() -> Seal:
    return Seal(IDENTITY, lambda: NOW)


def dictionary(items: list[list[object]], kind: int = 0x50) -> bytes:
    return msgpack.packb(msgpack.ExtType(kind, msgpack.packb([float("inf"), NOW, items])))


def test_several_records_as_hivemind_packs_them():
    items = [[bytes([n]) * 32, b"value" * 100 * n, NOW + n] for n in range(40)]
    assert read_items(dictionary(items)) == [Item(*item) for item in items]
    assert read_items(dictionary([])) == []


def test_one_value():
    for size in (0, 255, 256, 2048):
        assert read_bytes(msgpack.packb(b"x" * size)) == b"x" * size


@pytest.mark.parametrize(
    "data",
    [
        b"",
        msgpack.packb([]),
        dictionary([], kind=0x51),
        dictionary([[b"k", b"v"]]),
        dictionary([["text", b"v", NOW]]),
        dictionary([[b"k", [b"v"], NOW]]),
        dictionary([[b"k", b"v", "soon"]]),
        dictionary([[b"k", b"v", NOW]] * (MAX_OWNERS + 1)),
        dictionary([[b"k", b"v", NOW]])[:-1],
        dictionary([[b"k", b"v", NOW]]) + b"\0",
        msgpack.packb(msgpack.ExtType(0x50, b"\x93\x00\x00\xdd\xff\xff\xff\xff" + b"\x90" * 1000)),
        msgpack.packb(msgpack.ExtType(0x50, b"")),
    ],
)
def test_other_forms_are_refused(data: bytes):
    with pytest.raises(ValueError, match=r"."):
        read_items(data)


@given(st.binary(max_size=400))
def test_nothing_else_is_raised(data: bytes):
    for read in (read_items, read_bytes):
        with contextlib.suppress(ValueError):
            read(data)


def test_a_signed_value_is_good(seal: Seal):
    value = seal.sign(KEY, TAG, msgpack.packb(b"record"), NOW + 300)
    assert value[:-64] == msgpack.packb(b"record")
    assert seal.fault(KEY, TAG, value, NOW + 300) == ""
    assert Seal(Identity.generate(), lambda: NOW).fault(KEY, TAG, value, NOW + 300) == ""


def test_whatever_is_changed_breaks_the_signature(seal: Seal):
    value = seal.sign(KEY, TAG, msgpack.packb(b"record"), NOW + 300)
    stranger = msgpack.packb(Identity.generate().key)
    assert seal.fault(bytes([1]) + KEY[1:], TAG, value, NOW + 300) == "dht_bad_signature"
    assert seal.fault(KEY, stranger, value, NOW + 300) == "dht_bad_signature"
    assert seal.fault(KEY, TAG, value, NOW + 301) == "dht_bad_signature"
    assert seal.fault(KEY, TAG, msgpack.packb(b"Record") + value[-64:], NOW + 300) == "dht_bad_signature"


def test_the_whole_is_small_and_does_not_last(seal: Seal):
    def fault(data: object, expiration: float) -> str:
        return seal.fault(KEY, TAG, seal.sign(KEY, TAG, msgpack.packb(data), expiration), expiration)

    assert fault(b"x" * MAX_DATA, NOW + MAX_TTL) == ""
    assert fault(b"x" * (MAX_DATA + 1), NOW + 300) == "dht_malformed"
    assert fault("text", NOW + 300) == "dht_malformed"
    assert fault(b"x", NOW + MAX_TTL + SKEW + 1) == "dht_expiration"
    assert fault(b"x", NOW - SKEW - 1) == "dht_expiration"
    assert fault(b"x", float("nan")) == "dht_expiration"
    assert fault(b"x", float("inf")) == "dht_expiration"


def test_only_keys_own_values(seal: Seal):
    for tag in (b"", msgpack.packb(None), msgpack.packb(b"short"), msgpack.packb("text"), TAG + b"\0"):
        assert seal.fault(KEY, tag, seal.sign(KEY, tag, msgpack.packb(b"x"), NOW), NOW) == "dht_malformed"
    assert seal.fault(KEY, TAG, b"", NOW) == "dht_malformed"


def test_a_signature_is_verified_once(seal: Seal, monkeypatch: pytest.MonkeyPatch):
    verified: list[bytes] = []

    def verify(key: bytes, signature: bytes, message: bytes) -> bool:
        verified.append(key)
        return True

    monkeypatch.setattr("shoal.protocol.libp2p.dht_records.verify", verify)
    value = seal.sign(KEY, TAG, msgpack.packb(b"record"), NOW)
    assert [seal.fault(KEY, TAG, value, NOW) for _ in range(5)] == [""] * 5
    assert len(verified) == 1
    other = value[:-1] + struct.pack("B", value[-1] ^ 1)
    assert seal.fault(KEY, TAG, other, NOW) == ""
    assert len(verified) == 2  # another signature of the same value is another question
