"""Canonical msgpack: arrays in schema order, one encoding for each object, checked against the received bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]
import msgspec

from shoal.protocol.errors import Malformed
from shoal.protocol.limits import Limits
from shoal.protocol.prescan import prescan

_Schema = TypeVar("_Schema", bound=msgspec.Struct)


class _Packer(Protocol):
    """What is used of the untyped msgpack.Packer."""

    def pack(self, value: object, /) -> bytes: ...
    def pack_array_header(self, size: int, /) -> bytes: ...


_new_packer = cast("Callable[[], _Packer]", msgpack.Packer)  # pyright: ignore[reportUnknownMemberType]
_unpack = cast("Callable[..., object]", msgpack.unpackb)  # pyright: ignore[reportUnknownMemberType]


def encode(value: msgspec.Struct) -> bytes:
    """The canonical bytes of a schema object. Raises Malformed for text that is not UTF-8 (a lone surrogate)."""
    return b"".join(_pieces(value))


def decode(data: bytes, schema: type[_Schema], limits: Limits) -> _Schema:
    """Decode one schema object. Raises Malformed or TooLarge.

    Order: pre-scan, decode, schema, and last the re-encoding of the schema object, which must give the same bytes:
    `5` has three encodings in msgpack, and two byte strings for one object would be two payload hashes.
    """
    prescan(data, limits)
    try:
        decoded = _unpack(data, raw=False, max_map_len=0, max_ext_len=0, max_str_len=limits.completion_bytes)
    except ValueError as error:  # also text that is not strict UTF-8
        raise Malformed("not_msgpack", type(error).__name__) from error
    try:
        value = msgspec.convert(decoded, schema, builtin_types=(bytes,))  # else text would pass as base64
    except msgspec.ValidationError as error:
        raise Malformed("schema", str(error)) from error
    if not _same(value, data):
        raise Malformed("not_canonical")
    return value


def _pieces(value: object, packer: _Packer | None = None) -> Iterator[bytes]:
    """The encoding in pieces, so that a comparison never holds a second copy of the payload."""
    packer = packer or _new_packer()  # one for the whole walk: it owns a buffer of 256 KiB
    if isinstance(value, msgspec.Struct):
        value = tuple(cast(object, getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        yield packer.pack_array_header(len(items))
        for item in items:
            yield from _pieces(item, packer)
        return
    try:
        yield packer.pack(value)
    except UnicodeEncodeError as error:
        raise Malformed("text_not_utf8", str(error)) from error


def _same(value: msgspec.Struct, data: bytes) -> bool:
    position = 0
    for piece in _pieces(value):
        if not data.startswith(piece, position):
            return False
        position += len(piece)
    return position == len(data)
