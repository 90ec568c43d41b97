import math

import pytest

from shoal.protocol.columns import all_finite, floats, ints, none_positive, pack_floats, pack_ints
from shoal.protocol.errors import Malformed


def test_columns_are_little_endian():
    assert pack_floats([1.0, -2.0]) == bytes.fromhex("0000803f000000c0")
    assert pack_ints([1, 2**32 - 1]) == bytes.fromhex("01000000ffffffff")
    assert floats(bytes.fromhex("0000803f000000c0")) == (1.0, -2.0)
    assert ints(bytes.fromhex("01000000ffffffff")) == (1, 2**32 - 1)
    assert pack_floats([]) == b""
    assert floats(b"") == ints(b"") == ()


@pytest.mark.parametrize("value", [-1, 2**32])
def test_integers_that_do_not_fit_are_never_wrapped(value: int):
    with pytest.raises(OverflowError):
        pack_ints([value])


def test_half_an_item_is_malformed():
    for read in (floats, ints, all_finite, none_positive):
        with pytest.raises(Malformed, match="column_length"):
            read(bytes(5))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_finiteness(value: float):
    assert all_finite(pack_floats([0.0, -1.0]))
    assert not all_finite(pack_floats([0.0, value]))


def test_none_positive():
    assert none_positive(pack_floats([0.0, -0.0, -3.0]))
    assert not none_positive(pack_floats([1e-30]))
    assert not none_positive(pack_floats([math.nan]))
