"""How a manifest and what was found about it are shown: as plain data, and as text with everything foreign escaped."""

import tomllib
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from shoal.defenses.text import safe
from shoal.node.sources import link_of
from shoal.node.swarms import round_now
from shoal.protocol.manifest import Manifest

if TYPE_CHECKING:  # it imports all tasks, which takes seconds
    from shoal.node.inspection import Finding


def facts(manifest: Manifest) -> dict[str, Any]:
    """Return a manifest as plain data: its fields, and what follows from them."""
    link = link_of(manifest)
    return {
        "id": manifest.swarm_id.hex(),
        "link": None if link is None else str(link),
        "round": round_now(manifest),
        **tomllib.loads(manifest.to_toml()),  # sampler ranges as people write them
    }


def page(manifest: Manifest) -> str:
    """Return a manifest as lines of text."""
    limits, admission = manifest.limits, manifest.admission
    weights = sum(task.weight for task in manifest.tasks)
    rows = [
        ("name", safe(manifest.name)),
        ("id", manifest.swarm_id.hex()),
        ("founder", manifest.founder),
        ("revision", f"{manifest.revision}, in force from round {manifest.effective_round}"),
        ("time", f"round {round_now(manifest)} of {manifest.round_seconds} s, since {_instant(manifest.genesis)}"),
        *(
            ("task", f"{safe(task.name)} {task.weight / weights:.0%}{_data(task.data_sha256)}")
            for task in manifest.tasks
        ),
        ("lineage", ", ".join(manifest.lineages) or "any"),
        ("staleness", f"age up to {limits.max_age_rounds} rounds, lag up to {limits.max_lag} updates"),
        ("prompts", f"{limits.shared_slots} shared and {limits.own_slots} own a round"),
        ("shards", f"{limits.shards_per_node} of {2**limits.shard_bits} a node"),
        ("admission", admission.mode),
        *(("operator", f"{safe(name)}: {', '.join(keys)}") for name, keys in admission.operators.items()),
        *(("revoked", key) for key in manifest.revoked),
        *(("bootstrap", safe(address, 255)) for address in manifest.bootstraps),
        ("link", str(link_of(manifest) or "none: it names no bootstrap")),
    ]
    return "\n".join(f"{name:<10} {text}" for name, text in rows)


def findings_page(findings: "Iterable[Finding]") -> str:
    """Return what was found as lines of text, a mark before each."""
    return "\n".join(f"{'ok' if f.good else '!!'}  {safe(f.name):<24} {safe(f.detail, 400)}" for f in findings)


def _instant(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):  # a manifest may name any number
        return f"{seconds} seconds after 1970"


def _data(digest: str) -> str:
    return f", data set {digest}" if digest else ""
