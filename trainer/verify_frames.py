"""Length-prefixed msgpack on pipes, between the trainer, its verifier workers and their children."""

import os
import struct
from typing import Any

import msgpack

LARGEST_FRAME = 2**20  # a completion's text and its name; anything larger is a bug of ours
_LENGTH = struct.Struct("<I")


def write_frame(descriptor: int, value: Any) -> None:
    """Write one value of plain data; raises BrokenPipeError when nobody reads any more."""
    body: bytes = msgpack.packb(value, use_bin_type=True) or b""  # the stubs allow None
    if len(body) > LARGEST_FRAME:
        raise ValueError(f"a frame of {len(body)} bytes exceeds {LARGEST_FRAME}")
    view = memoryview(_LENGTH.pack(len(body)) + body)
    while view:
        view = view[os.write(descriptor, view) :]


def read_frame(descriptor: int) -> Any:
    """Read one value; raises EOFError when the writer is gone, also in the middle of a frame, or writes what is none.

    After bytes that are no frame nobody can tell where the next one begins: the writer is as good as gone.
    """
    (length,) = _LENGTH.unpack(_exactly(descriptor, _LENGTH.size))
    if length > LARGEST_FRAME:
        raise EOFError(f"a frame claims {length} bytes")
    body = _exactly(descriptor, length)
    try:
        return msgpack.unpackb(body, raw=False)
    except (ValueError, RecursionError, msgpack.UnpackException) as fault:  # ValueError: also text that is not UTF-8
        raise EOFError(f"{length} bytes that are no value") from fault


def _exactly(descriptor: int, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        chunk = os.read(descriptor, count - len(parts))
        if not chunk:
            raise EOFError("the other end closed")
        parts += chunk
    return bytes(parts)
