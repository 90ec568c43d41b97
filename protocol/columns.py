"""Raw little-endian columns: msgpack floats have two encodings and an object for each number, columns have neither."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from shoal.protocol.errors import Malformed

_FLOAT = np.dtype("<f4")
_UINT = np.dtype("<u4")
ITEM_SIZE = 4


def pack_floats(values: Iterable[float]) -> bytes:
    """Numbers as one little-endian float32 column."""
    return np.asarray(list(values), dtype=np.float64).astype(_FLOAT).tobytes()


def floats(column: bytes) -> tuple[float, ...]:
    """The numbers of a float32 column. Raises Malformed when its length is no multiple of 4."""
    return tuple(np.frombuffer(_whole(column), dtype=_FLOAT).tolist())


def pack_ints(values: Iterable[int]) -> bytes:
    """Integers in 0..2^32-1 as one little-endian uint32 column. Raises OverflowError for others."""
    numbers: Sequence[int] = list(values)
    return np.asarray(numbers, dtype=_UINT).tobytes()


def ints(column: bytes) -> tuple[int, ...]:
    """The integers of a uint32 column. Raises Malformed when its length is no multiple of 4."""
    return tuple(np.frombuffer(_whole(column), dtype=_UINT).tolist())


def all_finite(column: bytes) -> bool:
    """Whether a float32 column holds neither NaN nor infinity."""
    return bool(np.isfinite(np.frombuffer(_whole(column), dtype=_FLOAT)).all())


def none_positive(column: bytes) -> bool:
    """Whether every number of a float32 column is at most 0; false when one is NaN."""
    return bool((np.frombuffer(_whole(column), dtype=_FLOAT) <= 0).all())


def _whole(column: bytes) -> bytes:
    if len(column) % ITEM_SIZE:
        raise Malformed("column_length", f"{len(column)} bytes are no whole number of {ITEM_SIZE}-byte items")
    return column
