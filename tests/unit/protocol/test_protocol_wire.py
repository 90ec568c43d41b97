import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import msgspec
import pytest

from shoal.protocol import canonical
from shoal.protocol.compression import compress
from shoal.protocol.envelope import Header, Kind
from shoal.protocol.errors import Malformed, ProtocolError, TooLarge
from shoal.protocol.limits import MIB, Limits
from shoal.protocol.wire import (
    Rollout,
    check_rollout,
    decode_rollout,
    encode_rollout,
    matches_header,
    pack_floats,
    pack_ints,
)

LIMITS = Limits()
Change = Callable[..., Rollout]


def plain(rollout: Rollout) -> list[Any]:
    """The payload as lists that a test can break before it is packed."""
    return msgpack.unpackb(canonical.encode(rollout))


def blob_of(value: object) -> bytes:
    return compress(msgpack.packb(value))


def test_round_trip(rollout: Rollout):
    assert decode_rollout(encode_rollout(rollout), LIMITS) == rollout


def test_a_rollout_without_tokens(changed: Change):
    short = changed(token_ids=(), logps=())
    assert decode_rollout(encode_rollout(short), LIMITS) == short
    ids_only = changed(logps=())
    assert decode_rollout(encode_rollout(ids_only), LIMITS) == ids_only


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"completions": (), "finish": b"", "mean_logps": b"", "rewards": b""}, "no_completions"),
        ({"completions": ("a",)}, "finish_column"),
        ({"completions": ("a", "b", "c")}, "finish_column"),
        ({"finish": b"\x00"}, "finish_column"),
        ({"finish": b"\x00\x02"}, "finish_column"),
        ({"finish": b"\x00\x02\x00"}, "finish_column"),
        ({"rewards": pack_floats([1.0])}, "column_length"),
        ({"rewards": pack_floats([1.0, 2.0, 3.0])}, "column_length"),
        ({"rewards": pack_floats([1.0, math.nan])}, "not_finite"),
        ({"rewards": pack_floats([math.inf, 0.0])}, "not_finite"),
        ({"mean_logps": pack_floats([-1.0])}, "column_length"),
        ({"mean_logps": pack_floats([-1.0, -math.inf])}, "not_finite"),
        ({"mean_logps": pack_floats([-1.0, 1e-9])}, "positive_logp"),
        ({"token_ids": (pack_ints([1, 2, 3]),)}, "column_count"),
        ({"token_ids": (pack_ints([1, 2, 3]), b"abc"), "logps": ()}, "column_length"),
        ({"token_ids": (pack_ints([1, 2, 3]), b"")}, "column_length"),
        ({"token_ids": ()}, "column_count"),
        ({"token_ids": (pack_ints([1]),), "logps": (pack_floats([-1.0]),)}, "column_count"),
        ({"logps": (pack_floats([-1.0, -1.0, -1.0]),)}, "column_count"),
        ({"logps": (pack_floats([-1.0]), pack_floats([-1.0]))}, "column_length"),
        ({"logps": (pack_floats([-1.0, -1.0, math.nan]), pack_floats([-1.0]))}, "not_finite"),
        ({"logps": (pack_floats([-1.0, -1.0, 0.5]), pack_floats([-1.0]))}, "positive_logp"),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_columns_that_do_not_fit(fields: dict[str, Any], reason: str, changed: Change):
    with pytest.raises(ProtocolError) as caught:
        decode_rollout(encode_rollout(changed(**fields)), LIMITS)
    assert caught.value.reason == reason


def test_the_number_of_completions_is_capped(changed: Change):
    def of(count: int) -> Rollout:
        column = pack_floats([0.0] * count)
        return changed(
            completions=("a",) * count, finish=bytes(count), token_ids=(), logps=(), mean_logps=column, rewards=column
        )

    assert len(decode_rollout(encode_rollout(of(64)), LIMITS).completions) == 64
    with pytest.raises(TooLarge, match="too_many_completions"):
        decode_rollout(encode_rollout(of(65)), LIMITS)


def test_a_text_is_capped_in_bytes_not_in_characters(changed: Change):
    longest = changed(completions=("é" * (32 * 1024), "b"))
    assert decode_rollout(encode_rollout(longest), LIMITS) == longest
    over = changed(completions=("é" * (32 * 1024) + "x", "b"))
    for judge in (lambda: check_rollout(over, LIMITS), lambda: decode_rollout(encode_rollout(over), LIMITS)):
        with pytest.raises(TooLarge, match="text_too_long"):
            judge()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ((0, 0), 2),
        ((0, 0), -1),
        ((0, 1), -1),
        ((0, 2), ""),
        ((0, 2), "line\nbreak"),
        ((0, 2), "trailing\n"),
        ((0, 2), "x" * 129),
        ((0, 2), b"bytes"),
        ((0, 3), 2**63),
        ((1,), bytes(31)),
        ((2,), bytes(33)),
        ((3,), "A" * 44),
        ((4, 0), -1),
        ((4, 1), 2**32),
        ((5,), -1),
        ((6,), 2**64 - 1),
        ((7,), "one text"),
        ((7, 0), b"bytes"),
        ((8,), "AAE="),
        ((9, 0), 5),
        ((12,), [1, 0]),
    ],
    ids=str,
)
def test_fields_outside_the_schema(place: tuple[int, ...], value: object, rollout: Rollout):
    """Text for a byte field is what a lax reader takes for base64."""
    fields = plain(rollout)
    inner = fields
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    with pytest.raises(Malformed, match="schema"):
        decode_rollout(blob_of(fields), LIMITS)


def test_missing_and_additional_fields(rollout: Rollout):
    fields = plain(rollout)
    for broken in (fields[:-1], [*fields, 0], [[*fields[0], 0], *fields[1:]], [fields], []):
        with pytest.raises(Malformed, match="schema"):
            decode_rollout(blob_of(broken), LIMITS)


@pytest.mark.parametrize(
    "encoded", [b"\xcc\x09", b"\xcd\x00\x09", b"\xce\x00\x00\x00\x09", b"\xcf" + bytes(7) + b"\x09", b"\xd0\x09"]
)
def test_every_other_encoding_of_a_number_is_refused(encoded: bytes, rollout: Rollout):
    payload = canonical.encode(rollout)
    before = b"".join(msgpack.packb(field) for field in plain(rollout)[:5])
    place = 1 + len(before)
    assert payload[place : place + 1] == b"\x09"
    with pytest.raises(Malformed, match="not_canonical"):
        decode_rollout(compress(payload[:place] + encoded + payload[place + 1 :]), LIMITS)


def test_longer_headers_of_arrays_texts_and_bytes_are_refused(rollout: Rollout):
    payload = canonical.encode(rollout)
    assert payload[0] == 0x9D
    text = payload.index(b"\xa5olleh")
    column = payload.index(b"\xc4\x0c")
    for other in (
        b"\xdc\x00\x0d" + payload[1:],
        payload[:text] + b"\xd9\x05" + payload[text + 1 :],
        payload[:column] + b"\xc5\x00\x0c" + payload[column + 2 :],
    ):
        assert msgpack.unpackb(other) == msgpack.unpackb(payload)
        with pytest.raises(Malformed, match="not_canonical"):
            decode_rollout(compress(other), LIMITS)


@pytest.mark.parametrize(
    "text", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"], ids=bytes.hex
)
def test_text_is_strict_utf_8(text: bytes, rollout: Rollout):
    payload = canonical.encode(rollout)
    broken = payload.replace(b"\xa5olleh", bytes([0xA0 + len(text)]) + text)
    with pytest.raises(Malformed, match="not_msgpack"):
        decode_rollout(compress(broken), LIMITS)


def test_a_lone_surrogate_is_never_sent(changed: Change):
    with pytest.raises(Malformed, match="text_not_utf8"):
        encode_rollout(changed(completions=("\ud800", "b")))


@pytest.mark.parametrize(
    "payload",
    [
        b"\xdd\x00\xff\xff\xff" + b"\x80" * 0xFFFFFF,
        b"\xdd\x00\xff\xff\xff" + b"\x90" * 0xFFFFFF,
        b"\xdd\x00\xff\xff\xff" + b"\x00" * 0xFFFFFF,
        b"\x91" * (15 * MIB),
        b"\xdc\xff\xff" * MIB,
    ],
    ids=["maps", "arrays", "numbers", "deep", "nested counts"],
)
def test_container_bombs_cost_no_more_than_the_payload(payload: bytes):
    blob = compress(payload)
    tracemalloc.start()
    with pytest.raises(ProtocolError):
        decode_rollout(blob, LIMITS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 17 * MIB


def test_the_largest_rollout_stays_below_64_mib(changed: Change):
    """Bytes for 64 full texts and all columns up to the cap on the expanded payload; texts of wide characters."""
    text = "魚" * (64 * 1024 // 3 - 1) + "𝄞"
    ids = pack_ints(range(22_000))
    full = changed(
        completions=(text,) * 64,
        finish=bytes(64),
        token_ids=(ids,) * 64,
        logps=(pack_floats([-1.0] * 22_000),) * 64,
        mean_logps=pack_floats([-1.0] * 64),
        rewards=pack_floats([0.5] * 64),
    )
    blob = encode_rollout(full)
    assert 14 * MIB < len(canonical.encode(full)) <= LIMITS.expanded_bytes
    tracemalloc.start()
    assert decode_rollout(blob, LIMITS) == full
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * MIB


def test_the_payload_repeats_the_header(rollout: Rollout, changed: Change):
    header = Header(
        kind=Kind.ROLLOUT,
        version=1,
        swarm_id=bytes(32),
        key=bytes(32),
        round=rollout.round,
        policy_version=rollout.policy_version,
        prompt_hash=rollout.prompt_hash,
        sequence=1,
        payload_length=1,
        payload_hash=bytes(32),
    )
    matches_header(rollout, header)
    for fields in ({"round": 10}, {"policy_version": 0}, {"prompt_hash": bytes(32)}):
        with pytest.raises(Malformed, match="header_mismatch"):
            matches_header(changed(**fields), header)


def test_records_of_the_schema_are_frozen(rollout: Rollout):
    with pytest.raises(AttributeError):
        rollout.round = 3  # type: ignore[misc]
    assert msgspec.structs.asdict(rollout)["round"] == 9
