"""What `shoal swarm verify` looks at: whether this machine and this home can take part in a swarm."""

from dataclasses import dataclass
from pathlib import Path

from shoal.node.datasets import local_spec, missing
from shoal.node.shelf import Shelf
from shoal.node.swarms import SwarmHome, standing
from shoal.protocol.envelope import PROTOCOL_VERSION
from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.protocol.identity import short
from shoal.protocol.manifest import Manifest
from shoal.protocol.staleness import round_at
from shoal.trainer.tasks.registry import make_task

FAR_AHEAD_SECONDS = 366 * 86_400.0  # a genesis so far in the future speaks of a clock that is wrong, here or there


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: its name, whether it stands in the way, and what was seen."""

    name: str
    good: bool
    detail: str


def inspect(manifest: Manifest, home: SwarmHome, data: Path, now: float) -> list[Finding]:
    """Return what there is to know before joining; `data` is the folder of data sets. The signature is good already."""
    return [
        Finding("signature", True, f"of founder {short(bytes.fromhex(manifest.founder))}"),
        _version(manifest),
        _clock(manifest, now),
        _revision(manifest, home),
        *_tasks(manifest, data),
        _admission(manifest, home),
    ]


def _version(manifest: Manifest) -> Finding:
    spoken = ", ".join(map(str, manifest.protocol_versions))
    return Finding("protocol", PROTOCOL_VERSION in manifest.protocol_versions, f"version {spoken}")


def _clock(manifest: Manifest, now: float) -> Finding:
    ahead = manifest.genesis - now
    if ahead > FAR_AHEAD_SECONDS:
        return Finding("clock", False, f"begins {ahead / 86_400:.0f} days from now: is this machine's clock right?")
    if ahead > 0:
        return Finding("clock", True, f"begins in {ahead / 3600:.1f} hours")
    return Finding("clock", True, f"round {round_at(now, manifest.genesis, manifest.round_seconds)}")


def _revision(manifest: Manifest, home: SwarmHome) -> Finding:
    here = f"revision {manifest.revision}, in force from round {manifest.effective_round}"
    newest = Shelf(home.swarms).newest(manifest.swarm_id)
    if newest is None:
        return Finding("revision", True, here)
    if newest.revision > manifest.revision:
        return Finding("revision", True, f"{here}; this home knows revision {newest.revision} already")
    if newest.revision == manifest.revision and newest.canonical() != manifest.canonical():
        return Finding("revision", False, f"{here}; this home knows another manifest under that number")
    return Finding("revision", True, here)


def _tasks(manifest: Manifest, data: Path) -> list[Finding]:
    found: list[Finding] = []
    for task in manifest.tasks:
        try:
            if missing([task], data):
                detail = f"its data set is missing here (sha256 {task.data_sha256})"
                found.append(Finding(f"task {task.name}", False, detail))
                continue
            spec = local_spec(task, data)
            make_task(spec.name, spec.config, spec.data_sha256)
            found.append(Finding(f"task {task.name}", True, f"weight {task.weight}"))
        except (UsageError, EnvironmentFault) as error:
            found.append(Finding(f"task {task.name}", False, str(error)))
    return found


def _admission(manifest: Manifest, home: SwarmHome) -> Finding:
    if not home.identity.exists():
        return Finding("admission", True, f"{manifest.admission.mode}; this home has no identity yet (`shoal init`)")
    return Finding("admission", *standing(manifest, home))
