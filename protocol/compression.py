"""zstd frames with caps: 32 KiB can declare 1 GiB, so the declaration is judged before a byte is allocated."""

from __future__ import annotations

import zstandard

from shoal.protocol.errors import Malformed, TooLarge
from shoal.protocol.limits import Limits

_MAGIC = b"\x28\xb5\x2f\xfd"
_LEVEL = 3
_SMALLEST_WINDOW = 1024  # of the format; the library refuses a lower cap


def compress(payload: bytes) -> bytes:
    """One zstd frame that declares its content size, without checksum (the payload hash covers it) or dictionary."""
    return zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True, write_checksum=False).compress(payload)


def decompress(blob: bytes, limits: Limits) -> bytes:
    """The content of exactly one frame. Raises TooLarge or Malformed.

    The declared size is required and capped first. Decompression then streams into a buffer of just that size: a frame
    that holds more than it declares fails instead of growing, which is a tighter cap than any on the stream.
    """
    if len(blob) > limits.blob_bytes:
        raise TooLarge("blob_too_large", f"{len(blob)} bytes")
    if not blob.startswith(_MAGIC):  # a skippable frame has other magic numbers
        raise Malformed("not_zstd")
    try:
        frame = zstandard.get_frame_parameters(blob)
    except zstandard.ZstdError as error:
        raise Malformed("not_zstd", str(error)) from error
    if frame.content_size == zstandard.CONTENTSIZE_UNKNOWN:
        raise Malformed("no_content_size")
    if frame.content_size > limits.expanded_bytes:
        raise TooLarge("expanded_too_large", f"{frame.content_size} bytes declared")
    if frame.window_size > limits.expanded_bytes:
        raise TooLarge("window_too_large", f"{frame.window_size} bytes")
    if frame.dict_id:
        raise Malformed("zstd_dictionary")
    window = max(limits.expanded_bytes, _SMALLEST_WINDOW)
    try:
        return zstandard.ZstdDecompressor(max_window_size=window).decompress(blob, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Malformed("bad_zstd", str(error)) from error
