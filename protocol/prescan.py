"""Walk over raw msgpack bytes before any decoding, so that what they declare is bounded before it is allocated.

1 MB of empty maps costs a decoder 69 MB (measured). The walk allocates nothing but a stack of at most `depth` numbers.
Only integers, UTF-8 strings, byte strings and arrays exist on this wire; everything else is refused here. The bridge to
another swarm's client walks over its values by the same rules, with the types of that wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from shoal.protocol.errors import Malformed, TooLarge
from shoal.protocol.limits import Limits


class _Type(Enum):
    NUMBER = "number"
    TEXT = "text"
    BYTES = "bytes"
    ARRAY = "array"
    MAP = "map"


_ELEMENTS = {_Type.ARRAY: 1, _Type.MAP: 2}


class Mark(NamedTuple):
    """What a first byte says: its type, a size held in the byte itself, and how many bytes of size follow."""

    type: _Type
    fixed: int
    size_bytes: int

    @property
    def elements(self) -> int:
        """Elements for each one that a size declares: none in what is no container, a key and a value in a map."""
        return _ELEMENTS.get(self.type, 0)


def _marks() -> dict[int, Mark]:
    marks = {byte: Mark(_Type.NUMBER, 0, 0) for byte in (*range(0x80), *range(0xE0, 0x100))}
    marks |= {0x90 + count: Mark(_Type.ARRAY, count, 0) for count in range(16)}
    marks |= {0xA0 + size: Mark(_Type.TEXT, size, 0) for size in range(32)}
    for step in range(4):  # unsigned and signed integers of 1, 2, 4 and 8 bytes
        marks[0xCC + step] = marks[0xD0 + step] = Mark(_Type.NUMBER, 2**step, 0)
    for step in range(3):  # sizes of 1, 2 and 4 bytes
        marks[0xC4 + step] = Mark(_Type.BYTES, 0, 2**step)
        marks[0xD9 + step] = Mark(_Type.TEXT, 0, 2**step)
    marks[0xDC], marks[0xDD] = Mark(_Type.ARRAY, 0, 2), Mark(_Type.ARRAY, 0, 4)
    return marks


def _foreign_marks() -> dict[int, Mark]:
    marks = {0x80 + count: Mark(_Type.MAP, count, 0) for count in range(16)}
    marks |= {0xDE: Mark(_Type.MAP, 0, 2), 0xDF: Mark(_Type.MAP, 0, 4)}
    marks |= {byte: Mark(_Type.NUMBER, 0, 0) for byte in (0xC0, 0xC2, 0xC3)}  # nil, false, true
    return marks | {0xCA: Mark(_Type.NUMBER, 4, 0), 0xCB: Mark(_Type.NUMBER, 8, 0)}  # floats


OWN_WIRE: Mapping[int, Mark] = _marks()
FOREIGN_WIRE: Mapping[int, Mark] = {**OWN_WIRE, **_foreign_marks()}
"""All of msgpack but its extension types."""

_REFUSED = {0xC0: "nil", 0xC1: "never_used", 0xC2: "boolean", 0xC3: "boolean", 0xCA: "float", 0xCB: "float"}


def _refusal(first: int) -> Malformed:
    if 0x80 <= first <= 0x8F or first in (0xDE, 0xDF):
        return Malformed("map_on_wire")
    return Malformed(f"{_REFUSED.get(first, 'ext')}_on_wire")


def prescan(data: bytes, limits: Limits, wire: Mapping[int, Mark] = OWN_WIRE) -> None:
    """Raise Malformed or TooLarge unless `data` is one whole msgpack value within the caps; O(limits.values) time."""
    position = containers = values = texts = 0
    open_arrays = [1]  # elements still to come, of the outermost value first
    while open_arrays:
        if open_arrays[-1] == 0:
            open_arrays.pop()
            continue
        open_arrays[-1] -= 1
        mark, size, position = _read_mark(data, position, wire)
        if mark.elements:
            size *= mark.elements
            containers, values = containers + 1, values + size
            if containers > limits.containers or values > limits.values:
                raise TooLarge("too_many_values", f"{containers} containers, {values} values")
            open_arrays.append(size)
            if len(open_arrays) - 1 > limits.depth:
                raise TooLarge("too_deep")
            continue
        if mark.type is _Type.TEXT:
            texts += size
            _check_text(size, texts, limits)
        position += size
        if position > len(data):
            raise Malformed("truncated")
    if position != len(data):
        raise Malformed("trailing_bytes", f"{len(data) - position} bytes after the payload")


def _read_mark(data: bytes, position: int, wire: Mapping[int, Mark]) -> tuple[Mark, int, int]:
    """The mark at a position, the size that it declares (elements or bytes) and where its content begins."""
    if position >= len(data):
        raise Malformed("truncated")
    mark = wire.get(data[position])
    if mark is None:
        raise _refusal(data[position])
    start = position + 1
    end = start + mark.size_bytes
    if end > len(data):
        raise Malformed("truncated")
    return mark, mark.fixed or int.from_bytes(data[start:end], "big"), end


def _check_text(size: int, total: int, limits: Limits) -> None:
    """A Python string can take four bytes for each byte of text, so text is capped apart from the payload."""
    if size > limits.completion_bytes:
        raise TooLarge("text_too_long", f"{size} bytes")
    if total > (limits.completions + 1) * limits.completion_bytes:
        raise TooLarge("too_much_text", f"{total} bytes")
