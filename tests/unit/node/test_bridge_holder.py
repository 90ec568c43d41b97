"""Reading a holder's answer entry by entry: what one peer stored never hides what another did."""

from typing import Any

import msgpack
import pytest
from bridge_pieces import packed, peer

from shoal.node.bridge.holder import LIVES_SECONDS, REPLY_BYTES, WALKED, Entry, read_dictionary
from shoal.node.bridge.wire import VALUE_BYTES
from shoal.protocol.errors import ProtocolError

NOW = 1000.0
ENDS = NOW + LIVES_SECONDS


def dictionary(items: Any, code: int = 0x50) -> bytes:
    return packed(msgpack.ExtType(code, packed([float("inf"), ENDS, items])))


def item(number: int, value: Any = b"v", expires: Any = ENDS) -> list[Any]:
    return [peer(number), value, expires]


def test_entries_come_as_they_were_stored() -> None:
    entries, refused = read_dictionary(dictionary([item(1), item(2, b"w", ENDS - 1)]), NOW)
    assert entries == [Entry(peer(1), b"v", ENDS), Entry(peer(2), b"w", ENDS - 1)]
    assert not refused


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ([5, b"v", ENDS], "entry_peer"),
        (["not a peer id", b"v", ENDS], "entry_peer"),
        ([None, b"v", ENDS], "entry_peer"),
        ([msgpack.ExtType(0x40, packed([1, 2])), b"v", ENDS], "entry_peer"),
        ([[[[[]]]], b"v", ENDS], "entry_peer"),
        (item(9, "text"), "entry_form"),
        (item(9, {"a": [1, {}]}), "entry_form"),
        (item(9, expires=1), "entry_form"),
        (item(9, expires=float("nan")), "entry_form"),
        (item(9, expires=float("inf")), "entry_form"),
        (item(9, b"x" * (VALUE_BYTES + 1)), "value_too_large"),
        (item(9, expires=NOW - 1), "expired"),
        (item(9, expires=ENDS + 3600), "expires_too_late"),
        ([peer(9), b"v"], "entry_form"),
        (7, "entry_form"),
        ({peer(9): b"v"}, "entry_form"),
    ],
)
def test_an_entry_of_another_form_is_counted_and_its_neighbours_stay(bad: Any, reason: str) -> None:
    entries, refused = read_dictionary(dictionary([item(1), bad, item(2)]), NOW)
    assert [entry.peer for entry in entries] == [peer(1), peer(2)]
    assert refused == {reason: 1}


def test_an_entry_that_is_no_text_is_counted() -> None:
    data = dictionary([item(1), item(3), item(2)])
    spoilt = data.replace(peer(3).encode(), b"\xff" + peer(3).encode()[1:])
    entries, refused = read_dictionary(spoilt, NOW)
    assert [entry.peer for entry in entries] == [peer(1), peer(2)]
    assert refused == {"entry_peer": 1}


def test_a_flood_of_names_is_read_up_to_a_bound() -> None:
    entries, refused = read_dictionary(dictionary([item(n) for n in range(6000)]), NOW)
    assert len(entries) == (WALKED - 2) // 4
    assert refused == {"reply_cut": 1}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        packed([1, 2, 3]),
        packed({"a": 1}),
        dictionary([], code=0x51),
        dictionary([item(1)]) + b"\x00",
        dictionary([item(1)])[:-1],
        packed(msgpack.ExtType(0x50, b"")),
        packed(msgpack.ExtType(0x50, packed([1, 2]))),
        packed(msgpack.ExtType(0x50, packed([1, 2, 3]))),
        packed(msgpack.ExtType(0x50, packed([1, 2, [item(1)]])[:-4])),
        packed(msgpack.ExtType(0x50, b"\x93\x01\x02\xdd\xff\xff\xff\xff")),
        packed(msgpack.ExtType(0x50, b"\x93\x01\x02\x91\xdb\xff\xff\xff\xff")),
        b"\xc9\xff\xff\xff\xff\x50",
        b"\x00" * (REPLY_BYTES + 1),
    ],
)
def test_an_answer_that_is_no_dictionary_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_dictionary(data, NOW)
