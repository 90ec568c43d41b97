"""Attacks on the decoder: bytes that no honest node would send, under a signature that is good.

Each is published like any rollout, so that only what opens payloads can refuse it. The pieces (frames, bombs, other
encodings) are functions of their own: the laboratory also opens them without any defence, to show what they do.
"""

# ruff: noqa: ARG002 (one interface for all attacks: not each of them uses everything that it is handed)

from collections.abc import Iterable
from random import Random

import msgspec

from shoal.defenses.attacks.base import Expected, Outgoing, header_of
from shoal.defenses.attacks.traffic import Resealing
from shoal.protocol.columns import pack_floats, pack_ints
from shoal.protocol.compression import compress, decompress
from shoal.protocol.envelope import HEADER_SIZE
from shoal.protocol.limits import DEFAULT_LIMITS, KIB, MIB
from shoal.protocol.wire import Rollout, decode_rollout, encode_rollout

GIB = 1024 * MIB
NAN, INFINITE, NEGATIVE_INFINITE = b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\x00\x00\x80\xff"  # float32
_ROLLOUT_MARK = 0x90 + len(Rollout.__struct_fields__)  # an array of so many elements
_SCOPE = 2  # where a payload keeps its first number, 0 or 1 in one byte: behind the marks of rollout and prompt
_WIDTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD3: 8}  # marks of longer forms of a number, and their bytes
_MAGIC = b"\x28\xb5\x2f\xfd"
_BLOCK = 128 * KIB  # the most that one block of a zstd frame may hold
_SMALLEST_WINDOW, _LARGEST_WINDOW = 0x00, 0xA8  # 1 KiB and 2 GiB, as the format writes them


class NonCanonical(Resealing):
    """Encodes its rollout in other ways, so that one and the same has several hashes, or says two things at once."""

    name = "non-canonical"
    expected = Expected("schema", "what was decoded is encoded again and must give the same bytes; no maps, no ext")

    def blobs(self, blob: bytes, rng: Random) -> Iterable[bytes]:
        """Other widths of numbers and arrays, then types that the wire does not have."""
        payload = decompress(blob, DEFAULT_LIMITS)
        return map(compress, (*other_encodings(payload), *other_types(payload)))


def other_encodings(payload: bytes) -> list[bytes]:
    """Return payloads that any msgpack decoder takes for the same value: a number in five widths, an array in two."""
    scope = payload[_SCOPE]
    numbers = [bytes([mark]) + scope.to_bytes(size, "big") for mark, size in _WIDTHS.items()]
    count = _ROLLOUT_MARK - 0x90
    arrays = [b"\xdc" + count.to_bytes(2, "big"), b"\xdd" + count.to_bytes(4, "big")]
    return [*(_spliced(payload, number) for number in numbers), *(array + payload[1:] for array in arrays)]


def other_types(payload: bytes) -> list[bytes]:
    """Return payloads with a value of a type that this wire does not have, in place of a number."""
    duplicate_keys = b"\x82\xa1a\x05\xa1a\x06"
    others = (b"\x80", duplicate_keys, b"\xc0", b"\xc2", b"\xca\0\0\0\0", b"\xc7\x01\x05\0", b"\xd4\x05\0", b"\xc1")
    return [_spliced(payload, other) for other in others]


class LengthLies(Resealing):
    """Declares other lengths than it sends: in the header, in an array, in a column, and in the compressed frame."""

    name = "length-lies"
    expected = Expected("schema", "a declared length is compared with what is there before anything is allocated")

    def blobs(self, blob: bytes, rng: Random) -> Iterable[bytes]:
        """Payloads and frames that hold more or less than they declare."""
        payload = decompress(blob, DEFAULT_LIMITS)
        yield from map(compress, lying_payloads(payload))
        yield from (frame(payload, declared) for declared in (0, len(payload) - 1, len(payload) + 1, 2**32 - 1))

    def messages(self, sent: Outgoing, rng: Random) -> list[Outgoing]:
        """Send them, and under other headers the honest blob."""
        header = header_of(sent)
        lengths = (0, len(sent.blob) - 1, len(sent.blob) + 1, 2**32 - 1)
        lies = [self._sealed(header, sent.blob, payload_length=length) for length in lengths]
        return [*lies, *super().messages(sent, rng)]


def lying_payloads(payload: bytes) -> list[bytes]:
    """Return payloads whose marks declare one more or one less than there is, or two thousand millions."""
    more, fewer = bytes([_ROLLOUT_MARK + 1]) + payload[1:], bytes([_ROLLOUT_MARK - 1]) + payload[1:]
    huge = [mark + b"\x7f\xff\xff\xff" for mark in (b"\xdd", b"\xdb", b"\xc6")]  # an array, a text, a byte string
    return [more, fewer, payload + b"\0", payload[:-1], *(_spliced(payload, lie) for lie in huge)]


class Bombs(Resealing):
    """Payloads that cost their reader far more than their sender: of depth, of count, of compression."""

    name = "bombs"
    expected = Expected("schema", "size, depth and count are judged before what they bound is allocated")

    def blobs(self, blob: bytes, rng: Random) -> Iterable[bytes]:
        """Compressed frames first, then what unpacks to few bytes and to many objects."""
        yield zstd_bomb(GIB)
        yield frame(b"", GIB, window=_LARGEST_WINDOW)
        yield frame(b"\x90", None, window=_SMALLEST_WINDOW)
        yield compress(depth_bomb(100_000))
        yield compress(count_bomb(MIB))
        yield compress(b"\xdd" + MIB.to_bytes(4, "big") + bytes(MIB))  # one flat array of numbers
        yield compress(b"\xdb" + MIB.to_bytes(4, "big") + b"a" * MIB)  # one text


def zstd_bomb(size: int) -> bytes:
    """Return a frame that declares and holds `size` zero bytes, at four bytes of its own for each 128 KiB."""
    full, rest = divmod(size, _BLOCK)
    sizes = [*[_BLOCK] * full, *([rest] if rest else [])]
    blocks = [_block(length, 1, last=place == len(sizes) - 1) + b"\0" for place, length in enumerate(sizes)]
    return _frame_head(size, None) + b"".join(blocks)


def frame(content: bytes, declared: int | None, window: int | None = None) -> bytes:
    """Return one zstd frame of up to 128 KiB as it is, which declares any size (None: none) and any window."""
    return _frame_head(declared, window) + _block(len(content), 0, last=True) + content


def _frame_head(declared: int | None, window: int | None) -> bytes:
    """Without a window the content size stands for it; RFC 8878, section 3.1.1."""
    sizes, whole = (0x80, declared.to_bytes(4, "little")) if declared is not None else (0x00, b"")
    if window is None:
        return _MAGIC + bytes([sizes | 0x20]) + whole
    return _MAGIC + bytes([sizes, window]) + whole


def _block(size: int, kind: int, last: bool) -> bytes:
    """The head of a block: kind 0 holds its bytes, kind 1 one byte to be repeated."""
    return (size << 3 | kind << 1 | last).to_bytes(3, "little")


def depth_bomb(levels: int) -> bytes:
    """Return arrays within arrays, a byte for each level."""
    return b"\x91" * levels + b"\0"


def count_bomb(count: int) -> bytes:
    """Return an array of empty arrays: a byte each on the wire, some sixty in memory."""
    return b"\xdd" + count.to_bytes(4, "big") + b"\x90" * count


class Pickle(Resealing):
    """Sends programs for Python's unpickler wherever bytes are taken: announcement, blob, payload, column, text."""

    name = "pickle"
    expected = Expected("schema", "no unpickler exists anywhere: bytes become integers, texts and columns, or nothing")

    def __init__(self, command: str = "true") -> None:
        super().__init__()
        self.command = command

    def blobs(self, blob: bytes, rng: Random) -> Iterable[bytes]:
        """The program as the blob, as its payload, as a value inside of it and as columns."""
        program = pickled_command(self.command)
        payload = decompress(blob, DEFAULT_LIMITS)
        inside = _spliced(payload, b"\xc5" + len(program).to_bytes(2, "big") + program)
        rollout = decode_rollout(blob)
        columns = msgspec.structs.replace(rollout, rewards=program, mean_logps=program)
        return (program, compress(program), compress(inside), encode_rollout(columns))

    def messages(self, sent: Outgoing, rng: Random) -> list[Outgoing]:
        """Send them, and the program alone as an announcement of the right length."""
        program = pickled_command(self.command)
        return [Outgoing(program.ljust(HEADER_SIZE + 64, b"."), b""), *super().messages(sent, rng)]


def pickled_command(command: str) -> bytes:
    """Return a pickle (protocol 0) that hands a command to the shell when it is read."""
    return b"cos\nsystem\n(V" + command.encode("ascii") + b"\ntR."


class NotFinite(Resealing):
    """Claims rewards and log-probs that are no numbers, in each of the float columns."""

    name = "not-finite"
    expected = Expected("schema", "float columns are finite, or there is no rollout")

    def blobs(self, blob: bytes, rng: Random) -> Iterable[bytes]:
        """NaN and both infinities as the last number of each column."""
        rollout = decode_rollout(blob)
        count = len(rollout.completions)
        zeros = pack_floats([0.0])
        ids, logps = (pack_ints([0]),) * count, (zeros,) * (count - 1)
        for number in (NAN, INFINITE, NEGATIVE_INFINITE):
            yield encode_rollout(msgspec.structs.replace(rollout, rewards=rollout.rewards[:-4] + number))
            yield encode_rollout(msgspec.structs.replace(rollout, mean_logps=rollout.mean_logps[:-4] + number))
            yield encode_rollout(msgspec.structs.replace(rollout, token_ids=ids, logps=(*logps, number)))


class IdsDiffer(Resealing):
    """Sends token ids that are not those of its texts, and ids beyond any vocabulary."""

    name = "ids-differ"
    expected = Expected(
        "text", "ids of the own tokenizer must decode to the text; in any case only the text is trained on"
    )

    def blobs(self, blob: bytes, rng: Random) -> Iterable[bytes]:
        """The ids of nothing, the same id over and over, and the largest number."""
        rollout = decode_rollout(blob)
        count = len(rollout.completions)
        for ids in ((), (7, 7, 7, 7), (2**32 - 1,)):
            yield encode_rollout(msgspec.structs.replace(rollout, token_ids=(pack_ints(ids),) * count, logps=()))


class ForgedTests(Resealing):
    """Adds an answer and tests of its own making to the payload, by which its completions would be right."""

    name = "forged-tests"
    expected = Expected("schema", "a rollout has no field for answers or tests: they come from the local registry")

    def blobs(self, blob: bytes, rng: Random) -> Iterable[bytes]:
        """As one more field of the rollout, and as one more of its prompt's name."""
        payload = decompress(blob, DEFAULT_LIMITS)
        tests = b"\xabassert True"
        more = bytes([_ROLLOUT_MARK + 1]) + payload[1:] + tests
        named = payload[:1] + bytes([payload[1] + 1]) + tests + payload[_SCOPE:]
        return map(compress, (more, named))


def _spliced(payload: bytes, value: bytes) -> bytes:
    """Return the payload with another value in place of its first number."""
    return payload[:_SCOPE] + value + payload[_SCOPE + 1 :]
