import tracemalloc

import msgspec
import pytest
import zstandard

from shoal.protocol.compression import compress, decompress
from shoal.protocol.errors import Malformed, ProtocolError, TooLarge
from shoal.protocol.limits import MIB, Limits

LIMITS = Limits(blob_bytes=64 * 1024, expanded_bytes=MIB)
RLE, RAW = 1, 0


def frame(size: int, blocks: list[tuple[int, int, bytes]], *, window: int | None = None) -> bytes:
    """A zstd frame by hand (RFC 8878): single segment, or with a window descriptor byte; 8-byte content size."""
    descriptor = 0xC0 if window is not None else 0xE0
    head = b"\x28\xb5\x2f\xfd" + bytes([descriptor]) + (bytes([window]) if window is not None else b"")
    body = b""
    for number, (kind, length, content) in enumerate(blocks):
        last = number == len(blocks) - 1
        body += (length << 3 | kind << 1 | last).to_bytes(3, "little") + content
    return head + size.to_bytes(8, "little") + body


def bomb(size: int, declared: int) -> bytes:
    """`size` zeros in run-length blocks of 128 KiB: four bytes each."""
    return frame(declared, [(RLE, 128 * 1024, b"\0")] * (size // (128 * 1024)))


def test_round_trip_and_hand_made_frame():
    assert decompress(compress(b"payload"), LIMITS) == b"payload"
    assert decompress(frame(3, [(RAW, 3, b"abc")]), LIMITS) == b"abc"
    assert decompress(bomb(MIB, MIB), LIMITS) == bytes(MIB)


def test_a_bomb_costs_no_memory():
    """32 KiB that hold 1 GiB: refused by what it declares, and when it lies, by the buffer of the declared size."""
    honest, liar = bomb(1024 * MIB, 1024 * MIB), bomb(1024 * MIB, 1000)
    assert len(honest) < 33 * 1024
    assert len(liar) < 33 * 1024
    tracemalloc.start()
    with pytest.raises(TooLarge, match="expanded_too_large"):
        decompress(honest, LIMITS)
    with pytest.raises(Malformed, match="bad_zstd"):
        decompress(liar, LIMITS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MIB


@pytest.mark.parametrize("declared", [2, 4])
def test_more_or_less_than_declared_is_malformed(declared: int):
    with pytest.raises(Malformed, match="bad_zstd"):
        decompress(frame(declared, [(RAW, 3, b"abc")]), LIMITS)


def test_the_declared_size_is_required():
    streamed = zstandard.ZstdCompressor(write_content_size=False).compress(b"payload")
    with pytest.raises(Malformed, match="no_content_size"):
        decompress(streamed, LIMITS)


def test_the_window_is_capped():
    two_gib = (31 - 10) << 3
    with pytest.raises(TooLarge, match="window_too_large"):
        decompress(frame(3, [(RAW, 3, b"abc")], window=two_gib), LIMITS)
    assert decompress(frame(3, [(RAW, 3, b"abc")], window=0), LIMITS) == b"abc"


@pytest.mark.parametrize("tail", [b"\0", compress(b"second"), b"\x50\x2a\x4d\x18\x00\x00\x00\x00"])
def test_one_frame_and_nothing_after_it(tail: bytes):
    with pytest.raises(Malformed, match="bad_zstd"):
        decompress(compress(b"payload") + tail, LIMITS)


@pytest.mark.parametrize(
    "blob", [b"", b"\x28\xb5\x2f\xfd", b"plain", b"\x50\x2a\x4d\x18\x00\x00\x00\x00", compress(b"payload" * 9)[:-1]]
)
def test_what_is_no_frame_is_malformed(blob: bytes):
    with pytest.raises(Malformed):
        decompress(blob, LIMITS)


def test_a_dictionary_is_refused():
    samples = [f"the quick brown fox number {n} jumps".encode() for n in range(200)]
    dictionary = zstandard.train_dictionary(1024, samples)
    blob = zstandard.ZstdCompressor(dict_data=dictionary).compress(samples[0])
    with pytest.raises(Malformed, match="zstd_dictionary"):
        decompress(blob, LIMITS)


def test_the_blob_is_capped_before_it_is_looked_at():
    with pytest.raises(TooLarge, match="blob_too_large"):
        decompress(bytes(LIMITS.blob_bytes + 1), LIMITS)
    tiny = msgspec.structs.replace(LIMITS, expanded_bytes=6)
    with pytest.raises(ProtocolError):
        decompress(compress(b"payload"), tiny)
