"""The caps that hold for every peer, whatever a manifest says."""

from __future__ import annotations

import msgspec

KIB = 1024
MIB = 1024 * KIB


class Limits(msgspec.Struct, frozen=True):
    """Caps on what is opened; each is checked before the memory that it bounds is allocated."""

    announcement_bytes: int = 2 * KIB
    record_bytes: int = 2 * KIB
    blob_bytes: int = 8 * MIB  # compressed
    expanded_bytes: int = 16 * MIB
    containers: int = 4096
    values: int = 8192  # elements declared by all arrays together: one flat array is a bomb too
    depth: int = 8
    completions: int = 64
    completion_bytes: int = 64 * KIB  # UTF-8 bytes of one text


DEFAULT_LIMITS = Limits()
