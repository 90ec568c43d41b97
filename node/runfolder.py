"""The folder of one run: its settings, its records, and how it is found, refused or gone on with."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from shoal.node.config import SimulateConfig
from shoal.protocol.errors import EnvironmentFault, UsageError

METRICS, TIMINGS, REPORT, SETTINGS = "metrics.jsonl", "timings.jsonl", "report.html", "run.json"
FOLDERS = ("state", "models")
DEFAULT_PARENT = Path("runs")


class Records:
    """Append-only JSON lines, handed to the system one by one; `position` marks where a checkpoint was taken."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path.open("ab", buffering=0)

    @property
    def position(self) -> int:
        """Bytes written so far."""
        return self.file.tell()

    def write(self, event: dict[str, Any]) -> None:
        """Append one record; raise `EnvironmentFault` when the disk takes no more."""
        line = json.dumps(event, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        try:
            while line:
                line = line[self.file.write(line) :]
        except OSError as error:
            raise EnvironmentFault(
                f"cannot write {self.path}: {error.strerror}; free some space, then go on with --resume"
            ) from error

    def sync(self) -> None:
        """Wait until the disk has everything."""
        os.fsync(self.file.fileno())

    def truncate(self, position: int) -> None:
        """Drop everything after `position`: what was written after the checkpoint is made again.

        Raises `EnvironmentFault` when the file is shorter than that.
        """
        if self.path.stat().st_size < position:
            raise EnvironmentFault(f"{self.path} is shorter than at the last checkpoint: begin again with --force")
        self.file.truncate(position)
        self.file.seek(position)

    def close(self) -> None:
        """Close the file; harmless when repeated."""
        self.file.close()


class RunFolder:
    """A run's folder with open records. Raises `EnvironmentFault` when it cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = Records(path / METRICS)
        try:
            fcntl.flock(self.metrics.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.metrics.close()
            raise UsageError(f"another process is running in {path}: wait for it, or give another --out") from None
        self.timings = Records(path / TIMINGS)

    @property
    def checkpoints(self) -> Path:
        """Return where the simulation keeps its state."""
        return self.path / "state"

    @property
    def had_checkpoints(self) -> bool:
        """Return True when a checkpoint was finished here, whole or not now."""
        return any(self.checkpoints.glob("step-*"))

    def positions(self) -> list[int]:
        """Return how far the two records have come."""
        return [self.metrics.position, self.timings.position]

    def sync(self) -> None:
        """Wait until the disk has both records."""
        self.metrics.sync()
        self.timings.sync()

    def rewind(self, positions: Iterable[int]) -> None:
        """Drop what was recorded after `positions`."""
        for records, position in zip((self.metrics, self.timings), positions, strict=True):
            records.truncate(position)

    def close(self) -> None:
        """Close the records."""
        self.metrics.close()
        self.timings.close()


def new_run(config: SimulateConfig) -> RunFolder:
    """Make the folder of a new run; raise `UsageError` when it holds one already and --force was not given."""
    path = config.run.out or DEFAULT_PARENT / str(1 + max(_numbers(DEFAULT_PARENT), default=0))
    try:
        if (path / SETTINGS).exists():
            if not config.run.force:
                raise UsageError(
                    f"{path} holds a run: give another --out, --resume to go on with it, or --force to replace it"
                )
            _clear(path)
        elif path.is_dir() and any(path.iterdir()):
            raise UsageError(f"{path} is not empty and not a run: give an empty or new folder with --out")
        path.mkdir(parents=True, exist_ok=True)
        (path / SETTINGS).write_text(json.dumps(config.plain(), indent=2) + "\n", encoding="utf-8")
        return RunFolder(path)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write to {path}: {error.strerror}; give a writable folder with --out"
        ) from error


def find_run(config: SimulateConfig) -> tuple[RunFolder, SimulateConfig]:
    """Open the run to go on with, with the settings it was begun with; raise `UsageError` when there is none."""
    path = config.run.out or DEFAULT_PARENT / str(max(_numbers(DEFAULT_PARENT), default=0))
    try:
        content = (path / SETTINGS).read_bytes()
        saved = msgspec.json.decode(content, type=SimulateConfig, dec_hook=lambda kind, value: kind(value))
    except FileNotFoundError:
        raise UsageError(f"{path} holds no run to resume: name its folder with --out") from None
    except msgspec.MsgspecError as error:
        raise EnvironmentFault(f"{path / SETTINGS} is damaged ({error}): begin again with --force") from error
    asked, default, begun = config.plain(), SimulateConfig().plain(), saved.plain()
    for group, settings in asked.items():
        for name, value in settings.items():
            if value != default[group][name] and value != begun[group][name]:
                option = "--" + name.replace("_", "-")
                raise UsageError(
                    f"{option} {value}: the run in {path} was begun with {begun[group][name]}; leave it out"
                )
    try:
        return RunFolder(path), saved
    except OSError as error:
        raise EnvironmentFault(f"cannot write to {path}: {error.strerror}") from error


def _numbers(parent: Path) -> list[int]:
    return (
        [int(item.name) for item in parent.iterdir() if item.name.isascii() and item.name.isdecimal()]
        if parent.is_dir()
        else []
    )


def _clear(path: Path) -> None:
    """Remove what a run wrote, and nothing else; the settings last, so that it stays known as a run until then."""
    for name in FOLDERS:
        if (path / name).is_dir() and not (path / name).is_symlink():
            shutil.rmtree(path / name)
    for name in (METRICS, TIMINGS, REPORT, SETTINGS):
        (path / name).unlink(missing_ok=True)
