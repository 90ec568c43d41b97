"""The main memory that this process may still take: what the kernel has, within the limits of its control groups."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple


class _Version(NamedTuple):
    """Names of the files of a version of control groups."""

    folder: str
    limit: str
    used: str
    idle: str


_V1 = _Version("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Version("", "memory.max", "memory.current", "inactive_file")


def available(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> tuple[float, str]:
    """Return the bytes of memory that this process may still take, and what bounds them.

    Raises OSError where the kernel does not say.
    """
    have, place = float(_meminfo(proc / "meminfo").get("MemAvailable", 0)), "available"
    for limit, used in _cgroup_limits(proc, cgroups):
        if limit - used < have:
            have, place = max(0.0, limit - used), "left in this control group"
    return have, place


def _meminfo(path: Path) -> Mapping[str, int]:
    pairs = (line.split() for line in path.read_text(encoding="ascii").splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in pairs if len(words) >= 2}


def _cgroup_limits(proc: Path, cgroups: Path) -> Iterator[tuple[float, float]]:
    """Yield (limit, used) of this process's control group and of all above it, of both versions."""
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        version = _V1 if controllers else _V2
        root = cgroups / version.folder
        own = root / path.lstrip("/")
        for folder in (own, *own.parents):
            limit = _number(folder / version.limit)
            if limit is not None:
                yield limit, (_number(folder / version.used) or 0.0) - _idle_cache(folder, version.idle)
            if folder == root:
                break


def _idle_cache(folder: Path, name: str) -> float:
    """Return the file cache that the kernel gives back first: it is counted as used, but does not stand in the way."""
    try:
        words = (line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
        return float(dict(words).get(name, 0))
    except (OSError, ValueError):
        return 0.0


def _number(path: Path) -> float | None:
    """Return the number in a file; None where there is none, or it says "max"."""
    try:
        return float(int(path.read_text(encoding="ascii")))
    except (OSError, ValueError):
        return None
