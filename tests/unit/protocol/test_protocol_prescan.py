import tracemalloc

import msgpack
import pytest

from shoal.protocol.errors import Malformed, ProtocolError, TooLarge
from shoal.protocol.limits import MIB, Limits
from shoal.protocol.prescan import prescan

LIMITS = Limits()


@pytest.mark.parametrize(
    "value",
    [0, -1, 127, 128, -33, 2**16, -(2**31), 2**64 - 1, -(2**63), "", "é" * 40, "x" * 300, b"", b"x" * 70_000, []],
    ids=lambda value: repr(value)[:12],
)
def test_every_allowed_type_and_size(value: object):
    prescan(msgpack.packb(value), LIMITS)
    prescan(msgpack.packb([[value], value]), LIMITS)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (msgpack.packb({}), "map_on_wire"),
        (b"\xde\x00\x00", "map_on_wire"),
        (b"\xdf\x00\x00\x00\x00", "map_on_wire"),
        (msgpack.packb([1.5]), "float_on_wire"),
        (msgpack.packb([1.5], use_single_float=True), "float_on_wire"),
        (msgpack.packb(None), "nil_on_wire"),
        (msgpack.packb(True), "boolean_on_wire"),
        (msgpack.packb(False), "boolean_on_wire"),
        (b"\xc1", "never_used_on_wire"),
        (msgpack.packb(msgpack.ExtType(5, b"12345")), "ext_on_wire"),
        (msgpack.packb(msgpack.ExtType(5, b"1234")), "ext_on_wire"),
        (msgpack.packb(msgpack.Timestamp(1)), "ext_on_wire"),
    ],
)
def test_other_types_are_refused(data: bytes, reason: str):
    with pytest.raises(Malformed) as caught:
        prescan(data, LIMITS)
    assert caught.value.reason == reason


def test_depth():
    prescan(b"\x91" * 7 + b"\x90", LIMITS)
    with pytest.raises(TooLarge, match="too_deep"):
        prescan(b"\x91" * 8 + b"\x90", LIMITS)
    with pytest.raises(TooLarge, match="too_deep"):
        prescan(b"\x91" * MIB, LIMITS)


def test_containers():
    limits = Limits(containers=10)
    prescan(b"\x99" + b"\x90" * 9, limits)
    with pytest.raises(TooLarge, match="too_many_values"):
        prescan(b"\x9a" + b"\x90" * 10, limits)


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdd\x00\x10\x00\x00" + b"\x00" * MIB,
        b"\xdd\x00\x10\x00\x00" + b"\x90" * MIB,
        b"\xdc\xff\xff" * 1000,
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 100_000,
    ],
    ids=lambda data: data[:6].hex(),
)
def test_bombs_cost_no_memory(data: bytes):
    tracemalloc.start()
    with pytest.raises(ProtocolError):
        prescan(data, LIMITS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_text_is_capped_one_by_one_and_together():
    limits = Limits(completions=2, completion_bytes=10)
    prescan(msgpack.packb(["x" * 10] * 3), limits)
    with pytest.raises(TooLarge, match="text_too_long"):
        prescan(msgpack.packb("x" * 11), limits)
    with pytest.raises(TooLarge, match="too_much_text"):
        prescan(msgpack.packb(["x" * 10] * 4), limits)


def test_exactly_one_whole_value():
    whole = msgpack.packb([1, "two", b"three", [4], 2**40])
    prescan(whole, LIMITS)
    for size in range(len(whole)):
        with pytest.raises(Malformed, match="truncated"):
            prescan(whole[:size], LIMITS)
    with pytest.raises(Malformed, match="trailing_bytes"):
        prescan(whole + b"\x00", LIMITS)
