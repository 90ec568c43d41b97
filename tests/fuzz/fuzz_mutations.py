"""How a valid message is broken: at the level of bytes, of fields and of containers.

Every choice comes from one `Random`. Everything maps bytes to bytes, so that the same changes serve hypothesis, the
seeded driver and atheris.
"""

import base64
import struct
import tomllib
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import msgpack
import tomli_w
import zstandard

PREFIX = b"shoal-invite-1-"
LONGEST = 1 << 17  # bytes of a case; bombs come from few bytes
NUMBERS = (
    0,
    1,
    5,
    31,
    127,
    128,
    255,
    256,
    65_535,
    65_536,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
TEXTS = ("", "a", "\0", "\x1b[2J", "\u202e", "\u200b", "\ud7ff", "<|im_end|>", "9^9^9^9", "x" * 70_000)
# What the readers of texts look for, and what they may stumble over.
PIECES = (
    *("1+1=3", "2+2=4", "=", "==", "\\frac{1}{0}", "10^400", "1e999", "(mod 0)", "1/0=", "9" * 5000, "base 99"),
    *("import os", "from . import a", "__import__('os')", "exec(", "```", "lambda:", "(" * 300, "[" * 300, "\n" * 40),
    *(
        "\u00b2",
        "\u2248",
        "\uff9e" * 40,
        "\u0301" * 40,
        "\U0001f642",
        "\ud7ff",
        "\u0660",
        "\u2488",
        "twenty ",
        "%",
        ".",
    ),
    *('{"verdict": "honest"}', "HONEST", "</s>", "[INST]", "42", "-", "\\boxed{", "1,000", "10:30", "$"),
)
MARKS = bytes((0x80, 0x8F, 0x90, 0x91, 0x9F, 0xA0, 0xBF, *range(0xC0, 0xE0), 0xFF))
SCALARS: tuple[Any, ...] = (
    None,
    True,
    -1,
    -(2**63),
    0.0,
    float("nan"),
    b"",
    bytes(32),
    bytes(4),
    b"\x00\x00\xc0\x7f",
    [],
    [[]],
    {},
    {"a": 5},
    msgpack.ExtType(5, b"\0"),
    *NUMBERS,
    *TEXTS,
)
Change = Callable[[bytes, Random], bytes]


def mutate(data: bytes, rng: Random, others: Sequence[bytes] = (b"",)) -> bytes:
    """Return `data` after one to four changes, at most LONGEST bytes; `others` are messages to splice with."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        changed = spliced(data, rng.choice(others), rng) if rng.random() < 0.1 else rng.choice(CHANGES)(data, rng)
        data = changed[:LONGEST]
    return data


def spliced(data: bytes, other: bytes, rng: Random) -> bytes:
    """Put the end of another message behind the beginning of this one."""
    return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


def flipped(data: bytes, rng: Random) -> bytes:
    """Flip one bit."""
    if not data:
        return data
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def overwritten(data: bytes, rng: Random) -> bytes:
    """Write a number at its extremes over one, two, four or eight bytes, in either order."""
    form = rng.choice((">B", ">H", "<H", ">I", "<I", ">Q", "<Q"))
    size = struct.calcsize(form)
    number = struct.pack(form, rng.choice(NUMBERS) % 2 ** (8 * size))
    place = rng.randint(0, max(0, len(data) - size))
    return data[:place] + number + data[place + size :]


def marked(data: bytes, rng: Random) -> bytes:
    """Put a mark of msgpack in the place of a byte, or before it."""
    place = rng.randint(0, len(data))
    return data[:place] + bytes([rng.choice(MARKS)]) + data[place + rng.randint(0, 1) :]


def cut(data: bytes, rng: Random) -> bytes:
    """Take a piece out, or cut the end off."""
    place = rng.randint(0, len(data))
    return data[:place] + (data[place + rng.randint(1, 16) :] if rng.random() < 0.5 else b"")


def inserted(data: bytes, rng: Random) -> bytes:
    """Insert a few bytes of noise."""
    place = rng.randint(0, len(data))
    return data[:place] + bytes(rng.randrange(256) for _ in range(rng.randint(1, 8))) + data[place:]


def worded(data: bytes, rng: Random) -> bytes:
    """Put a piece of text somewhere, once or many times."""
    place = rng.randint(0, len(data))
    piece = rng.choice(PIECES) * rng.choice((1, 1, 1, 2, 50))
    return data[:place] + piece.encode("utf-8", "surrogatepass") + data[place:]


def repeated(data: bytes, rng: Random) -> bytes:
    """Repeat a piece up to a thousand times."""
    if not data:
        return data
    place = rng.randrange(len(data))
    piece = data[place : place + rng.randint(1, 16)]
    return data[:place] + piece * rng.choice((2, 3, 17, 1000)) + data[place:]


def restructured(data: bytes, rng: Random) -> bytes:
    """Change the tree of a value: types, counts, order, nesting. Of msgpack, of a manifest or of a token."""
    if data.startswith(PREFIX):
        whole = data[len(PREFIX) :][: (len(data) - len(PREFIX)) // 4 * 4]
        try:
            inside = base64.urlsafe_b64decode(whole)
        except ValueError:
            return flipped(data, rng)
        return PREFIX + base64.urlsafe_b64encode(restructured(inside, rng)).rstrip(b"=")
    try:
        return _packed(_changed(msgpack.unpackb(data, strict_map_key=False), rng), rng)
    except Exception:  # noqa: BLE001 - whatever this decoder says of broken bytes: it is not the one that is tested
        return _retabled(data, rng)


def _retabled(data: bytes, rng: Random) -> bytes:
    """The same for TOML; bytes where it is neither."""
    try:
        return tomli_w.dumps(_changed(tomllib.loads(data.decode()), rng)).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):  # also a change that TOML cannot hold
        return flipped(data, rng)


def recompressed(data: bytes, rng: Random) -> bytes:
    """Change what is inside of a zstd frame and close it again, with or without its size and checksum."""
    try:  # as a stream: in one go the library allocates whatever a frame declares
        content = zstandard.ZstdDecompressor(max_window_size=1 << 20).stream_reader(data).read(LONGEST)
    except (zstandard.ZstdError, MemoryError):
        return flipped(data, rng)
    inside = rng.choice((restructured, restructured, flipped, marked, cut, repeated))(content, rng)[:LONGEST]
    closed = zstandard.ZstdCompressor(write_content_size=rng.random() < 0.9, write_checksum=rng.random() < 0.1)
    return closed.compress(inside)


def _changed(tree: Any, rng: Random) -> Any:
    """Walk down a random way and change what is there."""
    if isinstance(tree, list) and tree and rng.random() < 0.8:
        place = rng.randrange(len(tree))
        return [*tree[:place], _changed(tree[place], rng), *tree[place + 1 :]]
    if isinstance(tree, dict) and tree and rng.random() < 0.8:
        key = rng.choice(sorted(tree, key=repr))
        return {**tree, key: _changed(tree[key], rng)}
    return _replaced(tree, rng)


def _replaced(value: Any, rng: Random) -> Any:
    if isinstance(value, list) and value and rng.random() < 0.7:
        place = rng.randrange(len(value))
        return rng.choice(
            (
                value[:place] + value[place + 1 :],
                value[:place] + [value[place]] * rng.choice((2, 3, 70)) + value[place:],
                value[::-1],
                [value],
                [*value, rng.choice(SCALARS)],
            )
        )
    if isinstance(value, bytes) and value and rng.random() < 0.5:
        return rng.choice((flipped, overwritten, cut, inserted))(value, rng)
    if isinstance(value, str) and rng.random() < 0.5:
        return value + rng.choice(TEXTS if rng.random() < 0.5 else PIECES)
    if isinstance(value, int) and rng.random() < 0.5:
        return max(-(2**63), min(value + rng.choice((-1, 1, 255)), 2**64 - 1))
    return rng.choice(SCALARS)


def _packed(tree: Any, rng: Random) -> bytes:
    """Pack a tree, now and then with lengths and numbers in longer forms than they need."""
    if rng.random() < 0.8:
        return msgpack.packb(tree, use_bin_type=rng.random() < 0.95, unicode_errors="surrogatepass")
    return b"".join(_long_forms(tree, rng))


def _long_forms(tree: Any, rng: Random) -> Iterator[bytes]:
    """Pack piece by piece, each of the first pieces in a form that is drawn."""
    longer = rng.random() < 0.2
    if isinstance(tree, list | dict):
        items = tree if isinstance(tree, list) else [part for pair in tree.items() for part in pair]
        marks = (0x90, 0xDC, 0xDD) if isinstance(tree, list) else (0x80, 0xDE, 0xDF)
        yield _head(len(tree), marks, 15, longer, rng)
        for item in items:
            yield from _long_forms(item, rng)
    elif longer and isinstance(tree, bytes):
        yield _head(len(tree), (0xC4, 0xC5, 0xC6), -1, longer, rng) + tree
    elif longer and isinstance(tree, int) and not isinstance(tree, bool) and 0 <= tree < 2**32:
        yield rng.choice((b"\xce" + struct.pack(">I", tree), b"\xcf" + struct.pack(">Q", tree)))
    else:
        yield msgpack.packb(tree, unicode_errors="surrogatepass")


def _head(size: int, marks: Sequence[int], fixed: int, longer: bool, rng: Random) -> bytes:
    """A mark with its size, in the form of two bytes, of four, or in the mark itself."""
    if size <= fixed and not longer:
        return bytes([marks[0] + size])
    wide = size > 65_535 or (longer and rng.random() < 0.5)
    return bytes([marks[2 if wide else 1]]) + struct.pack(">I" if wide else ">H", size)


CHANGES: tuple[Change, ...] = (
    *(flipped, overwritten, marked, cut, inserted, repeated, worded),
    *(restructured, restructured, restructured, recompressed, recompressed),
)
