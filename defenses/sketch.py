"""A sketch of a text of at most 256 bytes, from which the share of common passages is estimated.

Bottom-k MinHash (Broder 1997): the k smallest hashes of all passages of five characters. CRC-32 is no secret, so one
who wants to evade it can; but rewriting every passage of a text is more work than sampling one.
"""

import zlib
from array import array
from collections.abc import Iterable

SHINGLE = 5  # characters of one passage
SIZE = 64  # hashes kept: a standard error of .06 at most
LONGEST = 4096  # bytes looked at, so that a long text costs a bounded time


def sketch(text: str) -> bytes:
    """Return the sorted smallest hashes of the text's passages, 4 bytes each."""
    data = text.encode("utf-8", errors="surrogatepass")[:LONGEST]
    passages = {zlib.crc32(data[start : start + SHINGLE]) for start in range(max(1, len(data) - SHINGLE + 1))}
    return array("I", sorted(passages)[:SIZE]).tobytes()


def hashes(drawn: bytes) -> Iterable[int]:
    """Return the numbers of a sketch."""
    return memoryview(drawn).cast("I")


def similarity(first: bytes, second: bytes) -> float:
    """Return the estimated Jaccard similarity, in [0, 1], of the texts behind two sketches."""
    distinct = common = 0
    before = -1
    for value in sorted([*hashes(first), *hashes(second)]):  # two sorted runs: no more than a merge
        if value == before:
            common += 1
        elif distinct == SIZE:
            break
        else:
            distinct, before = distinct + 1, value
    return common / distinct


def alike(first: set[int], second: bytes, threshold: float) -> bool:
    """Whether two sketches, the first one as a set, are at least so similar; nearly all pairs are told by a count."""
    common = len(first.intersection(hashes(second)))
    union = len(first) + len(second) // 4 - common
    if common < threshold * min(SIZE, union):
        return False
    return similarity(array("I", sorted(first)).tobytes(), second) >= threshold
