"""What a founder makes: a new manifest, and the revisions that follow it. Nothing here is signed or written yet."""

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import tomli_w

from shoal.protocol.errors import UsageError
from shoal.protocol.identity import Identity
from shoal.protocol.libp2p.keys import peer_id
from shoal.protocol.manifest import Admission, Manifest, SwarmLimits, TaskEntry
from shoal.protocol.records import TRANSPORT

FIXED = ("name", "founder", "genesis", "round_seconds", "tasks", "revision", "effective_round", "signature")
_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class NewSwarm:
    """What a new swarm is to be."""

    tasks: str = "strings"
    """A named set, or task names separated by commas, e.g. rg/chain_sum,rg/gcd."""
    task_config: Path | None = None
    """TOML file with one table of settings for each task name."""
    round_seconds: int = 60
    """Length of a round; it never changes."""
    admission: Literal["open", "invite", "allow-list"] = "open"
    """Who may take part: anyone, whoever shows an invite, or the keys of the named operators only."""
    operator: tuple[str, ...] = ()
    """NAME=KEY of an operator's node, KEY in 64 hex characters (`shoal keys show`); may be repeated."""
    bootstrap: tuple[str, ...] = ()
    """Address of a node that newcomers find first, e.g. /ip4/203.0.113.5/tcp/47700; may be repeated. Without
    /p2p/PEER-ID it is this home's own node (`shoal keys show` prints another one's id)."""
    lineage: tuple[str, ...] = ("default",)
    """Base models that may take part: default (the shipped one), any, a model's folder, or a lineage in hex."""
    max_age_rounds: int = 4
    """Oldest rollout of a peer that may be trained on, in rounds; 0 is synchronous."""
    max_lag: int = 8
    """Most updates that a node may have made since a rollout's round began."""
    genesis: str = "now"
    """When round 0 begins: now, or a date and time like 2026-03-01T12:00 (UTC unless it says otherwise)."""
    set: tuple[str, ...] = ()
    """FIELD=VALUE of the manifest, the value as in TOML, e.g. limits.shared_slots=16; may be repeated."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What the next revision changes: settings FIELD=VALUE, operators NAME=KEY and bootstraps to add, revocations."""

    settings: Sequence[str] = ()
    operators: Sequence[str] = ()
    bootstraps: Sequence[str] = ()
    revoked: Sequence[str] = ()


def new_manifest(name: str, options: NewSwarm, founder: bytes, tasks: list[TaskEntry], now: float) -> Manifest:
    """Return an unsigned manifest. Lineages are hex by now; where not everybody may come, the founder's key may.

    Raises UsageError for what no manifest may say.
    """
    operators = _with_operators({}, options.operator)
    if options.admission != "open" and founder.hex() not in {key for keys in operators.values() for key in keys}:
        operators.setdefault("founder", []).append(founder.hex())
    manifest = Manifest(
        name=name,
        founder=founder.hex(),
        genesis=genesis_of(options.genesis, now),
        round_seconds=options.round_seconds,
        tasks=tasks,
        lineages=[] if "any" in options.lineage else list(options.lineage),
        limits=SwarmLimits(max_age_rounds=options.max_age_rounds, max_lag=options.max_lag),
        admission=Admission(mode=options.admission, operators=operators),
        bootstraps=list(dict.fromkeys(options.bootstrap)),
    )
    # TOML and back: what a dataclass took unchecked is checked against the schema, and --set meets the written names
    return _set(manifest, options.set)


def next_revision(earlier: Manifest, changes: Changes, effective_round: int) -> Manifest:
    """Return the unsigned next revision; raises UsageError for what may not be changed or said."""
    changed = _set(earlier, changes.settings)
    admission = msgspec.structs.replace(
        changed.admission, operators=_with_operators(changed.admission.operators, changes.operators)
    )
    return msgspec.structs.replace(
        changed,
        admission=admission,
        bootstraps=list(dict.fromkeys((*changed.bootstraps, *changes.bootstraps))),
        revoked=list(dict.fromkeys((*changed.revoked, *changes.revoked))),
        revision=earlier.revision + 1,
        effective_round=effective_round,
        signature="",
    )


def genesis_of(text: str, now: float) -> int:
    """Return seconds since 1970 of "now" or an ISO date and time, which is UTC unless it names a zone."""
    if text == "now":
        return int(now)
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--genesis {text!r}: write now, or a date and time like 2026-03-01T12:00") from error
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())


def effective_of(text: str, current_round: int) -> int:
    """Return the round of "N" or "+N", which counts from the current one."""
    if not re.fullmatch(r"\+?\d{1,10}", text, re.ASCII):
        raise UsageError(f"--effective-round {text!r}: write a round, or +N for N rounds from now")
    return max(0, current_round) + int(text) if text.startswith("+") else int(text)


def is_key(text: str) -> bool:
    """Return whether a text has the form of a public key or lineage in hex."""
    return _HEX.fullmatch(text) is not None


def _set(manifest: Manifest, settings: Iterable[str]) -> Manifest:
    """Set fields by their dotted names in the TOML form."""
    fields: dict[str, Any] = tomllib.loads(manifest.to_toml())
    for setting in settings:
        path, _, text = setting.partition("=")
        names = path.strip().split(".")
        if not text.strip() or names[0] in FIXED:
            why = "it never changes or follows by itself" if names[0] in FIXED else "write FIELD=VALUE"
            raise UsageError(
                f"--set {setting!r}: {why}; what may be set is limits.…, lineages, bootstraps, admission.…"
            )
        table = fields
        for name in names[:-1]:
            table = table.get(name)
            if not isinstance(table, dict):
                raise UsageError(f"--set {setting!r}: the manifest has no table {name!r}")
        table[names[-1]] = _value(text.strip())
    return Manifest.from_toml(tomli_w.dumps(fields))


def _value(text: str) -> Any:
    """Read a value as TOML; what is none is text, so that words need no quotes."""
    try:
        read = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return read["value"] if set(read) == {"value"} else text


def _with_operators(operators: dict[str, list[str]], added: Iterable[str]) -> dict[str, list[str]]:
    result = {name: list(keys) for name, keys in operators.items()}
    for text in added:
        name, _, key = text.rpartition("=")
        if not name or not is_key(key):
            raise UsageError(f"operator {text!r}: write NAME=KEY, KEY in 64 small hex characters (`shoal keys show`)")
        keys = result.setdefault(name, [])
        if key not in keys:
            keys.append(key)
    return result


def with_own_peer(addresses: Sequence[str], identity: Identity) -> tuple[str, ...]:
    """Return multiaddrs that all name a peer: those that name none are where the node of this identity is reached."""
    own = peer_id(Identity.from_seed(identity.derive(TRANSPORT)).key)
    return tuple(address if "/p2p/" in address else f"{address.rstrip('/')}/p2p/{own}" for address in addresses)
