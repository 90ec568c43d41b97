"""The rules that a manifest's fields keep beyond their schema. Each raises UsageError and names the field."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shoal.protocol.errors import InvalidKey, UsageError
from shoal.protocol.identity import check_key
from shoal.protocol.manifest_parts import Admission, SwarmLimits, TaskEntry

UNSIGNED_OPERATOR = "bridge"  # stands for all peers of another client together: see docs/bridge.md
MAX_OPERATOR = 64  # characters
MAX_BOOTSTRAPS = 64
_HASH_HEX = re.compile(r"[0-9a-f]{64}")
_ADDRESS = re.compile(r"/[!-~]{1,255}")  # a multiaddr, which the transport reads


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


def usable_operator(name: str) -> bool:
    """Whether an operator may be called so: printable, not too long, not to be taken for a key or the unsigned lane."""
    taken = name == UNSIGNED_OPERATOR or _HASH_HEX.fullmatch(name) is not None
    return 0 < len(name) <= MAX_OPERATOR and name.isprintable() and not taken


def check_bootstraps(addresses: Sequence[str]) -> None:
    """Multiaddrs, and not too many."""
    if len(addresses) > MAX_BOOTSTRAPS:
        raise UsageError(f"manifest: more than {MAX_BOOTSTRAPS} bootstraps")
    for address in addresses:
        if not _ADDRESS.fullmatch(address):
            raise UsageError(
                f"manifest: bootstraps holds {address[:80]!r}, not a multiaddr like /ip4/10.0.0.1/tcp/47700"
            )


def check_operators(admission: Admission) -> None:
    """Names that cannot be taken for a key, and no key behind two operators."""
    owners: dict[str, str] = {}
    for name, keys in admission.operators.items():
        if not usable_operator(name):
            raise UsageError(
                f"manifest: an operator needs a name of 1 to {MAX_OPERATOR} printable characters, and one that does "
                f"not look like a key and is not {UNSIGNED_OPERATOR!r}"
            )
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
    if limits.shards_per_node > 2**limits.shard_bits:
        raise UsageError(
            f"manifest: limits.shards_per_node {limits.shards_per_node} is more than the {2**limits.shard_bits} shards "
            f"of limits.shard_bits {limits.shard_bits}"
        )
