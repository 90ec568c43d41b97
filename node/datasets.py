"""Data sets of a swarm's tasks: the manifest pins them by hash, and a node finds them in its home under that hash.

A path that a manifest names is never opened: it would let its founder choose which of our files are read.
"""

import hashlib
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.defenses.text import safe
from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.protocol.manifest import Manifest, TaskEntry
from shoal.trainer.tasks.jsonl import LARGEST_FILE
from shoal.trainer.tasks.registry import TaskSpec

FAMILY = "jsonl/"


def data_folder(home: Path) -> Path:
    """Return where a home keeps its data sets."""
    return home / "data"


def local_specs(manifest: Manifest, folder: Path) -> list[TaskSpec]:
    """Return the tasks of a swarm with their data sets as they lie in `folder`; raises UsageError for missing ones."""
    absent = missing(manifest.tasks, folder)
    if absent:
        names = ", ".join(f"{task.name} (sha256 {task.data_sha256})" for task in absent)
        raise UsageError(
            f"this home lacks data sets of {safe(manifest.name)}: {names}; take them in with "
            "`shoal swarm join SOURCE --data FILE`"
        )
    return [local_spec(task, folder) for task in manifest.tasks]


def missing(tasks: Iterable[TaskEntry], folder: Path) -> list[TaskEntry]:
    """Return the tasks whose data sets are not in `folder`; raises UsageError for one that is not pinned by a hash."""
    absent: list[TaskEntry] = []
    for task in tasks:
        if task.name.startswith(FAMILY) and not task.data_sha256:
            raise UsageError(f"task {task.name}: the manifest does not pin its data set by data_sha256")
        if task.data_sha256 and not _place(task.data_sha256, folder).is_file():
            absent.append(task)
    return absent


def take_in(file: Path, folder: Path) -> str:
    """Copy a data set into `folder` under its SHA-256 and return that in hex; raises EnvironmentFault, UsageError."""
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise UsageError(f"{file} is larger than {LARGEST_FILE // 2**20} MiB")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = folder / f".{file.name}.partial"
        shutil.copyfile(file, partial)
        with partial.open("rb") as copied:  # of the copy: the original may change meanwhile
            digest = hashlib.file_digest(copied, "sha256").hexdigest()
        partial.replace(_place(digest, folder))
    except OSError as error:
        raise EnvironmentFault(f"cannot take in {file}: {error.strerror}") from error
    return digest


def pinned(spec: TaskSpec, folder: Path) -> TaskEntry:
    """Return a task as a manifest names it: a data set by its hash, and taken into `folder`; never by its path."""
    config: dict[str, Any] = dict(spec.config)
    digest = spec.data_sha256
    if spec.name.startswith(FAMILY):
        if not config.get("path"):
            raise UsageError(f'task {spec.name}: needs path = "FILE.jsonl" in its table of --task-config')
        digest = take_in(Path(str(config.pop("path"))), folder)
        if config.pop("sha256", digest) != digest:
            raise UsageError(f"task {spec.name}: the file is not the one of the sha256 in --task-config")
    return TaskEntry(name=spec.name, weight=spec.weight, config=config, data_sha256=digest)


def local_spec(task: TaskEntry, folder: Path) -> TaskSpec:
    """Return one task with its data set, if it has one, as it lies in `folder`; see missing."""
    spec = TaskSpec(task.name, task.weight, dict(task.config), task.data_sha256)
    if not task.data_sha256:
        return spec
    return replace(spec, config={**spec.config, "path": str(_place(task.data_sha256, folder))})


def _place(digest: str, folder: Path) -> Path:
    return folder / f"{digest}.jsonl"
