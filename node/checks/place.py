"""What belongs to the node: its home, the swarm that it lives in, and the workers that grade."""

import fcntl
import os
import stat
import time
from collections.abc import Mapping
from typing import Any

from shoal.defenses.text import safe
from shoal.node.checks.finding import Finding
from shoal.node.home import Home
from shoal.protocol.errors import EnvironmentFault, ShoalError
from shoal.protocol.manifest import Manifest

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def home(place: Home) -> Finding:
    """Check that the home is there, ours, writable, and closed to others."""
    try:
        about = place.path.stat()
    except FileNotFoundError:
        return Finding("warn", f"{place.path} does not exist yet", "make it with `shoal init`")
    if about.st_uid != os.geteuid():
        return Finding("fail", f"{place.path} belongs to another user", "run as that user, or give another --home")
    if not os.access(place.path, os.R_OK | os.W_OK | os.X_OK):
        return Finding("fail", f"{place.path} cannot be written", f"chmod 700 {place.path}")
    if about.st_mode & OTHERS:
        return Finding("warn", f"others may look into {place.path}", f"chmod 700 {place.path}")
    try:
        key = place.identity.stat()
    except FileNotFoundError:
        return Finding("warn", f"{place.path} has no identity yet", "make one with `shoal init`")
    if key.st_mode & OTHERS:
        return Finding("fail", f"others may read the private key {place.identity}", f"chmod 600 {place.identity}")
    return Finding("ok", f"{place.path}, closed to others")


def lock(place: Home, status: Mapping[str, Any] | None, silence: str) -> Finding:
    """Tell whether a node runs here. `silence` says why one that listens gave no status."""
    if status is not None:
        return Finding("ok", f"process {safe(str(status.get('pid')), 20)} runs a node here")
    if silence:
        return Finding("fail", silence, "look at its log; end it and start it again if it hangs")
    if _held(place):
        return Finding("warn", "a process lives here and does not listen", "it starts, or hangs: ask again in a minute")
    return Finding("ok", "no node runs here")


def _held(place: Home) -> bool:
    """Return whether somebody holds the home. It is tried without writing, and let go at once."""
    try:
        descriptor = os.open(place.path / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def manifest_of(source: str | None, place: Home) -> Manifest:
    """Return the verified manifest that `shoal run` would live by, without writing anything.

    Raises as `read_manifest` and `open_swarm`.
    """
    from shoal.node.sources import read_manifest
    from shoal.node.swarms import open_swarm

    if source is not None:
        return read_manifest(source)
    return Manifest.from_toml(open_swarm(None, place).document().decode())


def swarm(manifest: Manifest | ShoalError, place: Home) -> Finding:
    """Check that this home can take part in its swarm."""
    if isinstance(manifest, ShoalError):
        away = isinstance(manifest, EnvironmentFault)
        advice = "see `shoal swarm verify`" if away else "name one with --swarm, or `shoal swarm join`"
        return Finding("warn", safe(str(manifest), 300), advice)
    from shoal.node.inspection import inspect

    found = inspect(manifest, place, place.path / "data", time.time())
    bad = [f"{item.name}: {item.detail}" for item in found if not item.good]
    name = f"{safe(manifest.name, 64)}, revision {manifest.revision}"
    if bad:
        return Finding("fail", safe(f"{name}: {'; '.join(bad)}", 400), "see `shoal swarm verify`")
    return Finding("ok", f"{name}, signed by its founder, {len(manifest.tasks)} tasks known here")


def verifier() -> Finding:
    """Start a verifier worker, as the first answer that needs one would."""
    from shoal.trainer.tasks.registry import TASK_SETS
    from shoal.trainer.verify import Grader

    began = time.monotonic()
    with Grader(TASK_SETS["strings"]) as grader:
        grader.start()
    return Finding("ok", f"a worker starts in {time.monotonic() - began:.1f} s")
