"""The form of what lies in the DHT: small values, each under its owner's key and signed by it.

    tag        bin 32           the owner's public key
    value      bin(data), then the owner's 64-byte signature of DOMAIN + DHT key + owner's key + expiration + bin(data)
    several    ext 0x50 of [size, latest, [[owner's key, value, expiration], …]]: what a holder of a DHT key returns

The reader is strict and allocates nothing that it has not seen: hivemind's own decodes 4 MiB of whatever a peer sends.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from shoal.protocol.identity import KEY_SIZE, SIGNATURE_SIZE, Identity, verify

MAX_DATA = 2048  # bytes of one record
MAX_OWNERS = 256  # records under one DHT key
MAX_TTL = 900.0  # seconds
SKEW = 30.0  # seconds that clocks may differ
DOMAIN = b"shoal/dht/1"
VERIFIED = 8192  # signatures remembered: the same record comes from every holder, again and again

_DICTIONARY = 0x50  # hivemind's extension type
_EXTENSIONS = {0xC7: ">B", 0xC8: ">H", 0xC9: ">I"}
_BYTES = {0xC4: ">B", 0xC5: ">H"}
_ARRAYS = {0xDC: ">H", 0xDD: ">I"}


class Item(NamedTuple):
    """One record as a holder returns it; `value` still carries its signature."""

    owner: bytes
    value: bytes
    expiration: float


def read_bytes(data: bytes) -> bytes:
    """A msgpack byte string, the whole of `data`. Raises ValueError."""
    cursor = _Cursor(data)
    found = cursor.bytes()
    cursor.end()
    return found


def read_items(data: bytes) -> list[Item]:
    """What hivemind packs for one DHT key, at most MAX_OWNERS records. Raises ValueError."""
    outer = _Cursor(data)
    if outer.extension() != _DICTIONARY:
        raise ValueError("another extension type than a dictionary's")
    if outer.array() != 3:
        raise ValueError("a dictionary has three parts")
    outer.number()
    outer.number()
    items: list[Item] = []
    for _ in range(outer.array()):
        if len(items) == MAX_OWNERS or outer.array() != 3:
            raise ValueError("too many records, or none")
        items.append(Item(outer.bytes(), outer.bytes(), outer.number()))
    outer.end()
    return items


def is_dictionary(data: bytes) -> bool:
    """Whether this is packed as an extension, as several records are."""
    return data[:1] != b"" and data[0] in _EXTENSIONS


class Seal:
    """Signs own values and judges others'; remembers what it has verified."""

    def __init__(self, identity: Identity, now: Callable[[], float] = time.time) -> None:
        self._identity, self._now = identity, now
        self._verified: OrderedDict[bytes, None] = OrderedDict()

    def sign(self, key: bytes, tag: bytes, value: bytes, expiration: float) -> bytes:
        """A packed value with its signature behind it."""
        return value + self._identity.sign(_signed(key, tag, value, expiration))

    def fault(self, key: bytes, tag: bytes, value: bytes, expiration: float) -> str:
        """Why a record is refused; empty for a good one. Cheapest reason first."""
        packed, signature = value[:-SIGNATURE_SIZE], value[-SIGNATURE_SIZE:]
        try:
            owner, data = read_bytes(tag), read_bytes(packed)
        except ValueError:
            return "dht_malformed"
        if len(owner) != KEY_SIZE or len(data) > MAX_DATA:
            return "dht_malformed"
        if not self._now() - SKEW <= expiration <= self._now() + MAX_TTL + SKEW:  # also what is no number
            return "dht_expiration"
        signed = _signed(key, tag, packed, expiration)
        digest = hashlib.sha256(signed + signature).digest()
        if digest not in self._verified:
            if not verify(owner, signature, signed):
                return "dht_bad_signature"
            self._verified[digest] = None
            while len(self._verified) > VERIFIED:
                self._verified.popitem(last=False)
        return ""


def _signed(key: bytes, tag: bytes, value: bytes, expiration: float) -> bytes:
    return DOMAIN + key + tag + struct.pack(">d", expiration) + value


class _Cursor:
    """Reads the few forms of msgpack that occur here, one after another. Raises ValueError."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def bytes(self) -> bytes:
        return self._take(self._size(_BYTES))

    def extension(self) -> int:
        """The type of an extension that fills the rest."""
        size = self._size(_EXTENSIONS)
        kind = self._take(1)[0]
        if size != len(self._data) - self._at:
            raise ValueError("an extension of another length")
        return kind

    def array(self) -> int:
        """The number of elements of an array."""
        first = self._peek()
        if 0x90 <= first <= 0x9F:
            self._at += 1
            return first & 0x0F
        return self._size(_ARRAYS)

    def number(self) -> float:
        """A double, or a small integer."""
        first = self._take(1)[0]
        if first == 0xCB:
            return float(struct.unpack(">d", self._take(8))[0])
        if first < 0x80:
            return float(first)
        raise ValueError("not a number of a form that is used here")

    def end(self) -> None:
        if self._at != len(self._data):
            raise ValueError("bytes behind the end")

    def _size(self, forms: dict[int, str]) -> int:
        form = forms.get(self._take(1)[0])
        if form is None:
            raise ValueError("another type than expected")
        return int(struct.unpack(form, self._take(struct.calcsize(form)))[0])

    def _peek(self) -> int:
        if self._at >= len(self._data):
            raise ValueError("cut short")
        return self._data[self._at]

    def _take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) != count:
            raise ValueError("cut short")
        self._at += count
        return taken
