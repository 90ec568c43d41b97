"""The rules that a manifest's fields keep beyond their schema. Each raises UsageError and names the field."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shoal.protocol.errors import InvalidKey, UsageError
from shoal.protocol.identity import check_key
from shoal.protocol.manifest_parts import Admission, SwarmLimits, TaskEntry

_HASH_HEX = re.compile(r"[0-9a-f]{64}")


def check_public_key(text: str, field: str) -> None:
    """A usable public key in hex."""
    if not _HASH_HEX.fullmatch(text):
        raise UsageError(f"manifest: {field} holds {text[:80]!r}, not a public key of 64 small hex characters")
    try:
        check_key(bytes.fromhex(text))
    except InvalidKey as error:
        raise UsageError(f"manifest: {field} holds an unusable public key: {error.reason}") from error


def check_lineages(lineages: Sequence[str]) -> None:
    """Hashes in hex."""
    if not all(_HASH_HEX.fullmatch(lineage) for lineage in lineages):
        raise UsageError("manifest: lineages are 64 small hex characters each")


def check_operators(admission: Admission) -> None:
    """Names that cannot be taken for a key, and no key behind two operators."""
    owners: dict[str, str] = {}
    for name, keys in admission.operators.items():
        if not name or _HASH_HEX.fullmatch(name):
            raise UsageError("manifest: an operator needs a name, and one that does not look like a key")
        for key in keys:
            check_public_key(key, f"operator {name!r}")
            if owners.setdefault(key, name) != name:
                raise UsageError(f"manifest: key {key[:8]} belongs to two operators, {owners[key]!r} and {name!r}")


def check_tasks(tasks: Sequence[TaskEntry]) -> None:
    """Something to draw, and each task once."""
    names = [task.name for task in tasks]
    if not any(task.weight for task in tasks):
        raise UsageError("manifest: at least one task needs a positive weight")
    if len(set(names)) != len(names):
        raise UsageError("manifest: a task is named twice")


def check_limits(limits: SwarmLimits) -> None:
    """Ranges that run upwards, and slots to draw from."""
    for field in ("completions", "temperature", "top_p"):
        low, high = getattr(limits, field)
        if low > high:
            raise UsageError(f"manifest: limits.{field} runs from the lowest to the highest value")
    if limits.shared_slots + limits.own_slots == 0:
        raise UsageError("manifest: without shared or own slots there is no prompt to draw")
