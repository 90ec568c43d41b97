"""A sketch of a text of at most 256 bytes, from which the share of common passages is estimated.

Bottom-k MinHash (Broder 1997): the k smallest hashes of all passages of five characters. CRC-32 is no secret, so one
who wants to evade it can; but rewriting every passage of a text is more work than sampling one.
"""

import heapq
import zlib
from array import array

SHINGLE = 5  # characters of one passage
SIZE = 64  # hashes kept: a standard error of .06 at most
LONGEST = 4096  # bytes looked at, so that a long text costs a bounded time


def sketch(text: str) -> bytes:
    """Return the sorted smallest hashes of the text's passages, 4 bytes each."""
    data = text.encode("utf-8", errors="surrogatepass")[:LONGEST]
    passages = {zlib.crc32(data[start : start + SHINGLE]) for start in range(max(1, len(data) - SHINGLE + 1))}
    return array("I", heapq.nsmallest(SIZE, passages)).tobytes()


def similarity(first: bytes, second: bytes) -> float:
    """Return the estimated Jaccard similarity, in [0, 1], of the texts behind two sketches."""
    left, right = set(memoryview(first).cast("I")), set(memoryview(second).cast("I"))
    smallest = heapq.nsmallest(SIZE, left | right)
    return sum(value in left and value in right for value in smallest) / len(smallest)
