"""The decoders of the bridge on arbitrary and on nearly right bytes: a result or a ProtocolError, and nothing else."""

import contextlib
import hashlib
import tracemalloc
from typing import Any

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.node.bridge.holder import LIVES_SECONDS, SKEW_SECONDS, Entry, read_dictionary
from shoal.node.bridge.wire import LIMITS, MOST_SETS, QUESTION_BYTES, ForeignSet, decode_value, unwrap
from shoal.protocol.errors import ProtocolError

PEER = "12D3KooWBvUPDdVVyeDpXbe8d2TVQx5zV6kQk3kY5FNXUoK6K9dV"
NOW = 1000.0

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=8)),
)
scalars_as_keys = st.one_of(st.text(max_size=8), st.integers(0, 9), st.none())
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(scalars_as_keys, inner, max_size=4)
)


def packed(value: Any) -> bytes:
    return msgpack.packb(value, use_bin_type=True)


def mostly(right: Any) -> st.SearchStrategy[Any]:
    """The right thing in most cases."""
    return st.one_of(st.just(right), st.just(right), st.just(right), anything)


@st.composite
def values(draw: st.DrawFn) -> bytes:
    """A value in which anything may be wrong."""
    question = draw(st.text(min_size=1, max_size=8))
    name = hashlib.md5(question.encode(), usedforsecurity=False).hexdigest()
    states = {
        "question": draw(mostly(question)),
        "test": draw(mostly("t")),
        "metadata": draw(mostly({"dataset": "mbpp"})),
    }
    for left_out in draw(st.lists(st.sampled_from(sorted(states)), max_size=1)):
        del states[left_out]
    world = {
        "__type__": draw(mostly("WorldState")),
        "environment_states": draw(mostly(states)),
        "opponent_states": draw(anything),
        "personal_states": draw(anything),
    }
    payload = {
        "__type__": draw(mostly("Payload")),
        "world_state": draw(mostly(world)),
        "actions": draw(st.one_of(st.lists(st.text(max_size=8), max_size=70), mostly(["a"]))),
        "metadata": draw(anything),
    }
    data = packed({draw(mostly_name(name)): draw(mostly([payload]))})
    for place in draw(st.lists(st.integers(0, len(data) - 1), max_size=2)):
        data = data[:place] + draw(st.binary(max_size=2)) + data[place + 1 :]
    return data


def mostly_name(name: str) -> st.SearchStrategy[Any]:
    return st.one_of(st.just(name), st.just(name), st.just(name), scalars_as_keys)


def decoded(data: bytes) -> list[ForeignSet] | None:
    try:
        return decode_value(data)
    except ProtocolError as error:
        reason = error.reason
    assert reason.replace("_", "").isalnum(), "it names a counter"
    assert reason.islower()
    return None


@settings(max_examples=120)
@given(values())
def test_a_nearly_right_value_is_a_result_or_a_reason(data: bytes) -> None:
    sets = decoded(data)
    for foreign in sets or []:
        name = hashlib.md5(foreign.question.encode(), usedforsecurity=False).hexdigest()
        assert name.encode() in data
        assert 0 < len(foreign.completions) <= LIMITS.completions
        assert len(foreign.question.encode()) <= QUESTION_BYTES
    assert len(sets or []) <= MOST_SETS


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_reason(data: bytes) -> None:
    decoded(data)
    with contextlib.suppress(ProtocolError):
        assert isinstance(unwrap(data), bytes)


@settings(max_examples=200)
@given(anything)
def test_arbitrary_msgpack_is_a_reason(value: Any) -> None:
    decoded(packed(value))


@settings(max_examples=150)
@given(st.lists(anything, max_size=6), st.binary(max_size=6), st.integers(0, 10**6))
def test_a_good_entry_is_found_among_any_others(others: list[Any], noise: bytes, cut: int) -> None:
    good = [PEER, b"value", NOW + LIVES_SECONDS]
    items = [*others[:3], good, *others[3:]]
    data = packed(msgpack.ExtType(0x50, packed([None, 1.0, items])))
    entries, _ = read_dictionary(data, NOW)
    assert Entry(PEER, b"value", NOW + LIVES_SECONDS) in entries
    assert all(NOW < entry.expires <= NOW + LIVES_SECONDS + SKEW_SECONDS for entry in entries)
    place = cut % len(data)
    for spoilt in (data[:place], data[:place] + noise + data[place + 1 :], noise):
        with contextlib.suppress(ProtocolError):
            read_dictionary(spoilt, NOW)


def test_what_a_value_declares_is_refused_before_it_is_allocated() -> None:
    declared = [
        b"\x81\xa1a\xdd\x7f\xff\xff\xff",  # a list of 2^31 elements
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xa1a\xc6\x7f\xff\xff\xff",
        b"\x91" * 500_000,
        b"\x80" * 500_000,
        b"\xdd\x00\x07\xa1\x20" + b"\x80" * 500_000,
    ]
    decoded(declared[0])
    tracemalloc.start()
    for data in declared:
        assert decoded(data) is None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20
