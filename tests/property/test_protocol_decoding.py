"""Whatever the bytes: one object has one encoding, and what is not that encoding is refused with a ProtocolError."""

import contextlib
import struct
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.protocol import canonical
from shoal.protocol.columns import pack_floats, pack_ints
from shoal.protocol.compression import compress
from shoal.protocol.envelope import (
    ANNOUNCEMENT_SIZE,
    MAX_NUMBER,
    Announcement,
    Header,
    Kind,
    seal,
    verify_announcement,
)
from shoal.protocol.errors import Malformed, ProtocolError
from shoal.protocol.identity import Identity
from shoal.protocol.limits import MIB, Limits
from shoal.protocol.prescan import prescan
from shoal.protocol.records import GOSSIP, TRANSPORT, PeerRecord, open_record, prove, seal_record
from shoal.protocol.wire import PromptName, Rollout, SamplerSettings, decode_rollout, encode_rollout

LIMITS = Limits()
IDENTITY = Identity.from_seed(bytes(range(32)))

hashes = st.binary(min_size=32, max_size=32)
numbers = st.integers(0, MAX_NUMBER)
settings_u32 = st.integers(0, 2**32 - 1)
words = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=40)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
logps = st.floats(-(2.0**100), 0, width=32)
headers = st.builds(
    Header,
    kind=st.sampled_from(Kind),
    version=st.integers(0, 0xFFFF),
    swarm_id=hashes,
    key=st.just(IDENTITY.key),
    round=numbers,
    policy_version=numbers,
    prompt_hash=hashes,
    sequence=numbers,
    payload_length=settings_u32,
    payload_hash=hashes,
)


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    count = draw(st.integers(1, 5))
    lengths = draw(st.lists(st.integers(0, 6), min_size=count, max_size=count))
    sent = draw(st.sampled_from(["nothing", "ids", "both"]))
    columns = [draw(st.lists(logps, min_size=length, max_size=length)) for length in lengths]
    return Rollout(
        prompt=draw(
            st.builds(PromptName, scope=st.integers(0, 1), slot=settings_u32, task=words, seed=numbers, index=numbers)
        ),
        prompt_hash=draw(hashes),
        lineage=draw(hashes),
        tokenizer=draw(hashes),
        sampler=draw(st.builds(SamplerSettings, settings_u32, settings_u32, settings_u32, settings_u32)),
        round=draw(numbers),
        policy_version=draw(numbers),
        completions=tuple(draw(st.lists(texts, min_size=count, max_size=count))),
        finish=bytes(draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))),
        token_ids=() if sent == "nothing" else tuple(pack_ints(range(length)) for length in lengths),
        logps=tuple(map(pack_floats, columns)) if sent == "both" else (),
        mean_logps=pack_floats(draw(st.lists(logps, min_size=count, max_size=count))),
        rewards=pack_floats(
            draw(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=count, max_size=count))
        ),
    )


@given(rollouts())
def test_a_rollout_comes_back_as_it_was(rollout: Rollout):
    assert decode_rollout(encode_rollout(rollout), LIMITS) == rollout


@given(headers)
def test_a_header_comes_back_as_it_was(header: Header):
    assert Header.decode(header.encode()) == header


@given(headers, st.integers(0, ANNOUNCEMENT_SIZE * 8 - 1))
def test_any_flipped_bit_of_an_announcement_is_refused(header: Header, bit: int):
    data = bytearray(seal(IDENTITY, header).encode())
    verify_announcement(Announcement.decode(bytes(data)))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ProtocolError):
        verify_announcement(Announcement.decode(bytes(data)))


def test_every_flipped_bit_of_one_announcement_is_refused():
    header = Header(Kind.ROLLOUT, 1, bytes(32), IDENTITY.key, 5, 6, bytes(32), 7, 8, bytes(32))
    data = seal(IDENTITY, header).encode()
    for bit in range(ANNOUNCEMENT_SIZE * 8):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ProtocolError):
            verify_announcement(Announcement.decode(bytes(broken)))


def widen(data: bytes, draw: st.DrawFn) -> bytes:
    """The same msgpack value with one value's header in a longer form."""
    places: list[tuple[int, int, bytes]] = []

    def walk(value: Any, position: int) -> int:
        packed = msgpack.packb(value)
        if isinstance(value, list):
            head = len(msgpack.Packer().pack_array_header(len(value)))
            places.append((position, head, b"\xdd" + struct.pack(">I", len(value))))
            position += head
            for item in value:
                position = walk(item, position)
            return position
        if isinstance(value, int):
            if value < 2**32:
                places.append((position, len(packed), b"\xcf" + struct.pack(">Q", value)))
        else:
            size = len(value.encode() if isinstance(value, str) else value)
            mark = b"\xdb" if isinstance(value, str) else b"\xc6"
            places.append((position, len(packed) - size, mark + struct.pack(">I", size)))
        return position + len(packed)

    assert walk(msgpack.unpackb(data), 0) == len(data)
    position, size, longer = draw(st.sampled_from(places))
    return data[:position] + longer + data[position + size :]


@given(rollouts(), st.data())
def test_another_encoding_of_the_same_rollout_is_refused(rollout: Rollout, data: st.DataObject):
    payload = canonical.encode(rollout)
    other = widen(payload, data.draw)  # type: ignore[arg-type]
    assert msgpack.unpackb(other) == msgpack.unpackb(payload)
    with pytest.raises(Malformed) as caught:
        decode_rollout(compress(other), LIMITS)
    assert caught.value.reason == "not_canonical"


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_protocol_errors(data: bytes):
    for opened in (
        lambda: decode_rollout(data, LIMITS),
        lambda: decode_rollout(compress(data), LIMITS),
        lambda: verify_announcement(Announcement.decode((data * 238)[:238])),
        lambda: open_record(data, 0.0),
    ):
        with pytest.raises(ProtocolError):
            opened()


@given(rollouts(), st.data())
def test_a_broken_payload_is_refused_or_is_another_canonical_one(rollout: Rollout, data: st.DataObject):
    """Cut, inserted, overwritten bytes: whatever still opens encodes to exactly what came."""
    payload = bytearray(canonical.encode(rollout))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(payload) - 1))
        cut = data.draw(st.integers(0, 3))
        payload[place : place + cut] = data.draw(st.binary(max_size=3))
        if not payload:
            return
    try:
        opened = decode_rollout(compress(bytes(payload)), LIMITS)
    except ProtocolError:
        return
    assert canonical.encode(opened) == payload


values = st.recursive(
    st.integers(-(2**63), 2**64 - 1) | st.text(st.characters(exclude_categories=["Cs"])) | st.binary(),
    lambda inner: st.lists(inner, max_size=6),
    max_leaves=30,
)
others = st.none() | st.booleans() | st.floats() | st.dictionaries(st.text(max_size=2), st.integers(0, 9), max_size=2)


@given(values)
def test_the_prescan_agrees_with_the_decoder_on_what_is_whole(value: Any):
    def depth(inner: Any) -> int:
        return 1 + max(map(depth, inner), default=0) if isinstance(inner, list) else 0

    data = msgpack.packb(value)
    if depth(value) > LIMITS.depth:
        with pytest.raises(ProtocolError):
            prescan(data, LIMITS)
    else:
        prescan(data, LIMITS)


@given(st.lists(values, max_size=3), others, st.integers(0, 3))
def test_the_prescan_refuses_every_other_type_anywhere(before: list[Any], other: Any, place: int):
    items = [*before[:place], other, *before[place:]]
    with pytest.raises(ProtocolError):
        prescan(msgpack.packb(items), LIMITS)


@settings(max_examples=50)
@given(
    st.lists(st.sampled_from([b"\x90", b"\x91", b"\x9f", b"\xdc\xff\xff", b"\xdd\x7f\xff\xff\xff", b"\x00", b"\xa0"])),
    st.integers(1, 3000),
)
def test_declared_sizes_cost_no_memory(pattern: list[bytes], times: int):
    data = b"".join(pattern) * times
    tracemalloc.start()
    with contextlib.suppress(ProtocolError):
        prescan(data, LIMITS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MIB // 4


@given(
    st.builds(
        PeerRecord,
        hashes,
        st.just(IDENTITY.key),
        numbers,
        st.integers(1, 86_400),
        hashes,
        hashes,
        numbers,
        st.lists(words, max_size=4).map(tuple),
        st.lists(words, max_size=4).map(tuple),
        *map(st.just, (*prove(IDENTITY, TRANSPORT), *prove(IDENTITY, GOSSIP))),
        numbers,
        st.binary(max_size=512),
    )
)
def test_a_record_comes_back_as_it_was(record: PeerRecord):
    assert open_record(seal_record(IDENTITY, record), 0.0) == record
