"""What a holder answers for a key of the DHT: a dictionary from peer ids to stored values, read entry by entry.

Anyone may store anything under any key there, so one entry must not spoil the others: each is delimited by a walk, and
only one of the expected form is decoded. hivemind's own reader decodes all of them at once, and an entry that is no
msgpack leaves it waiting for ever.
"""

import math
import re
from collections import Counter
from typing import Any, NamedTuple

import msgpack

from shoal.node.bridge.wire import VALUE_BYTES
from shoal.protocol.errors import Malformed, TooLarge
from shoal.protocol.limits import MIB
from shoal.protocol.prescan import FOREIGN_WIRE

LIVES_SECONDS = 600.0  # how long that client lets a value live
SKEW_SECONDS = 60.0
WALKED = 16_384  # elements of one answer that are walked over: four an entry
REPLY_BYTES = 4 * MIB  # what one unary reply of hivemind can carry
_DICTIONARY = 0x50  # hivemind's extension type of a dictionary
_ENTRY = 0x93  # an array of three: peer id, stored value, expiration
_PEER_ID = re.compile(r"[1-9A-HJ-NP-Za-km-z]{40,64}")  # base58
_EXT = {0xC7: 1, 0xC8: 2, 0xC9: 4}  # bytes of size; the type's byte follows
_FIXED_EXT = {0xD4 + step: 2**step for step in range(5)}


class Entry(NamedTuple):
    """One peer's stored value, still packed, and the unix time at which it ends."""

    peer: str
    value: bytes
    expires: float


def read_dictionary(data: bytes, now: float) -> tuple[list[Entry], Counter[str]]:
    """Return the entries of the expected form in an answer, and how many others there were, by reason.

    Raises ProtocolError when the answer as a whole is no dictionary.
    """
    if len(data) > REPLY_BYTES:
        raise TooLarge("reply_too_large", f"{len(data)} bytes")
    start, end = _dictionary(data)
    walk = _Walk(data[start:end])
    walk.array(3)
    walk.element()  # the most entries that the holder keeps: no use to us
    walk.element()
    entries: list[Entry] = []
    refused: Counter[str] = Counter()
    for _ in range(walk.array()):
        try:
            span = walk.element()
        except TooLarge:
            refused["reply_cut"] += 1
            break
        outcome = _entry(walk.data[span], now)
        if isinstance(outcome, Entry):
            entries.append(outcome)
        else:
            refused[outcome] += 1
    return entries, refused


def _dictionary(data: bytes) -> tuple[int, int]:
    """Return where the content of the dictionary begins and ends."""
    size_bytes = _EXT.get(data[0]) if data else None
    if size_bytes is None or len(data) < size_bytes + 2 or data[1 + size_bytes] != _DICTIONARY:
        raise Malformed("no_dictionary")
    start = size_bytes + 2
    end = start + int.from_bytes(data[1 : 1 + size_bytes], "big")
    if end != len(data):
        raise Malformed("no_dictionary")
    return start, end


def _entry(data: bytes, now: float) -> Entry | str:
    """Return one entry, or why it is none."""
    if data[:1] != bytes([_ENTRY]):
        return "entry_form"
    walk = _Walk(data)
    walk.array(3)
    name, value, expires = (data[walk.element()] for _ in range(3))
    peer, inner, time = _scalar(name, str), _scalar(value, bytes), _scalar(expires, float)
    if peer is None or not _PEER_ID.fullmatch(peer):
        return "entry_peer"
    if inner is None or time is None or not math.isfinite(time):
        return "entry_form"
    if len(inner) > VALUE_BYTES:
        return "value_too_large"
    if time <= now:
        return "expired"
    return Entry(peer, inner, time) if time <= now + LIVES_SECONDS + SKEW_SECONDS else "expires_too_late"


def _scalar(data: bytes, kind: type[Any]) -> Any:
    """Return a single text, byte string or float; None for anything else. A container is not even decoded."""
    mark = FOREIGN_WIRE.get(data[0])
    if mark is None or mark.elements:
        return None
    try:
        value = msgpack.unpackb(data, raw=False)
    except (ValueError, msgpack.UnpackException):
        return None
    return value if type(value) is kind else None


class _Walk:
    """Steps over msgpack elements of any type without decoding them; all together are bounded."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._at = 0
        self._left = WALKED

    def array(self, size: int | None = None) -> int:
        """Step into an array and return how many elements it declares; Malformed for another size or type."""
        elements, count = self._mark()
        if elements != 1 or size not in (None, count):
            raise Malformed("no_dictionary")
        return count

    def element(self) -> slice:
        """Step over one element with all that is in it, and return where it stands."""
        start, still_to_come = self._at, 1
        while still_to_come:
            still_to_come -= 1
            self._left -= 1
            if self._left < 0:
                raise TooLarge("reply_cut")
            elements, size = self._mark()
            if elements:
                still_to_come += elements * size
            else:
                self._step(size)
        return slice(start, self._at)

    def _mark(self) -> tuple[int, int]:
        """Return how many elements each one declared stands for (none: no container), and the size declared."""
        first = self._number(1)
        if first in _FIXED_EXT:
            return 0, _FIXED_EXT[first] + 1
        if first in _EXT:
            return 0, self._number(_EXT[first]) + 1
        mark = FOREIGN_WIRE.get(first)
        if mark is None:
            raise Malformed("no_dictionary")
        return mark.elements, mark.fixed or self._number(mark.size_bytes)

    def _number(self, size: int) -> int:
        start = self._at
        self._step(size)
        return int.from_bytes(self.data[start : self._at], "big")

    def _step(self, size: int) -> None:
        self._at += size
        if self._at > len(self.data):
            raise Malformed("truncated")
