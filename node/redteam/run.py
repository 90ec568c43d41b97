"""Running the cells that are missing: processes side by side, each result kept whole, an end at any time."""

import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import connection, get_context, parent_process
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from shoal.node.redteam.cells import Cell
from shoal.protocol.errors import EnvironmentFault, UsageError

ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
PRELOADED = ["shoal.node.redteam.measure", "transformers.models.llama.modeling_llama"]
LOOK_SECONDS = 0.5  # between two looks at how far the running cells are
PATIENCE = 5.0  # seconds for a process that was told to end
TAIL = 4096  # bytes at the end of a cell's records in which its latest round stands


@dataclass(frozen=True, slots=True)
class Store:
    """The folder that holds one file for each cell that was run."""

    path: Path

    @property
    def work(self) -> Path:
        """Return where running cells keep what is thrown away afterwards."""
        return self.path / ".work"

    def file(self, cell: Cell) -> Path:
        """Return the file of a cell."""
        return self.path / f"{cell.name}.json"

    def has(self, cell: Cell) -> bool:
        """Return whether a cell was run."""
        return self.file(cell).exists()

    def log(self, cell: Cell) -> Path:
        """Return where a running cell writes what goes wrong."""
        return self.work / f"{cell.name}.log"

    def keep(self, cell: Cell, result: dict[str, Any]) -> None:
        """Write a result whole or not at all."""
        part = self.work / f"{cell.name}.part"
        part.write_text(json.dumps(result, separators=(",", ":")) + "\n", encoding="utf-8")
        part.replace(self.file(cell))

    @contextmanager
    def open(self) -> Iterator[None]:
        """Make the folder and hold it for this process alone; raise what hinders it in words."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise EnvironmentFault(f"cannot write to {self.path}: {error.strerror}; give another --out") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                text = f"another process is running in {self.path}: wait for it, or give another --out"
                raise UsageError(text) from None
            shutil.rmtree(self.work, ignore_errors=True)
            self.work.mkdir()
            try:
                yield
            finally:
                shutil.rmtree(self.work, ignore_errors=True)


@dataclass(slots=True)
class Tidings:
    """How far a matrix is: what ended and in how many seconds, what runs and how far it is, what is still to begin."""

    done: list[tuple[Cell, float]] = field(default_factory=list[tuple[Cell, float]])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    running: dict[str, float] = field(default_factory=dict[str, float])
    waiting: int = 0

    def remaining(self, workers: int) -> float | None:
        """Return the seconds that are left at the pace so far, None before the first cell has ended."""
        if not self.done:
            return None
        mean = sum(seconds for _, seconds in self.done) / len(self.done)
        return mean * (self.waiting + sum(1.0 - share for share in self.running.values())) / workers


@dataclass(frozen=True, slots=True)
class Effort:
    """How much may be spent: cells at the same time, and seconds after which no further one is begun."""

    workers: int = 2
    budget: float = float("inf")


Look = Callable[[Tidings], None]


class Runner:
    """Runs cells one process each: a cell that fails, or is killed for memory, takes no other with it."""

    def __init__(self, store: Store, effort: Effort, look: Look) -> None:
        self.store = store
        self.effort = effort
        self.look = look
        self.tidings = Tidings()
        self._running: dict[ForkServerProcess, tuple[Cell, float]] = {}
        # A server that has loaded the modules and done nothing else forks a process for each cell: to load them costs
        # a fifth of a cell, and a fork of a process that has used tensors or threads may hang.
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)

    def run(self, cells: Sequence[Cell]) -> Tidings:
        """Run cells in their order, until all have ended or the budget is spent; on Ctrl-C stop those that run."""
        waiting = list(cells)
        deadline = time.monotonic() + self.effort.budget
        try:
            while self._running or (waiting and time.monotonic() < deadline):
                while waiting and len(self._running) < self.effort.workers and time.monotonic() < deadline:
                    self._begin(waiting.pop(0))
                self.tidings.waiting = len(waiting)
                connection.wait([process.sentinel for process in self._running], timeout=LOOK_SECONDS)
                for process in [process for process in self._running if not process.is_alive()]:
                    self._ended(process)
                self.tidings.running = {cell.name: self._reached(cell) for cell, _ in self._running.values()}
                self.look(self.tidings)
        finally:
            self._stop()
        return self.tidings

    def _begin(self, cell: Cell) -> None:
        process = self._context.Process(target=run_one, args=(cell.plain(), str(self.store.path)), name=cell.name)
        with one_thread():
            process.start()
        self._running[process] = cell, time.monotonic()

    def _ended(self, process: ForkServerProcess) -> None:
        cell, began = self._running.pop(process)
        process.join()
        if self.store.has(cell):
            self.tidings.done.append((cell, time.monotonic() - began))
            return
        log = self.store.log(cell)
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
        last = next((line for line in reversed(lines) if line.strip()), "")
        self.tidings.failed[cell.name] = last or f"its process ended with code {process.exitcode}"

    def _reached(self, cell: Cell) -> float:
        """Return the share of its rounds that a running cell has behind it."""
        try:
            with (self.store.work / cell.name / "metrics.jsonl").open("rb") as records:
                records.seek(max(0, records.seek(0, os.SEEK_END) - TAIL))
                lines = records.read().split(b"\n")[1:-1]
            return min(1.0, max((json.loads(line).get("round", 0) for line in lines), default=0) / cell.rounds)
        except (OSError, ValueError):
            return 0.0

    def _stop(self) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.join(PATIENCE)
            if process.is_alive():
                process.kill()
                process.join()
        self._running.clear()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let a process begin with one thread for arithmetic: two cells must not fight for the cores."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def run_one(described: dict[str, Any], folder: str) -> None:
    """Run one cell: what a process of the matrix does. Whatever it says goes into the cell's log."""
    import signal
    from threading import Thread

    from shoal.node.redteam.measure import measure

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal: the first one decides
    Thread(target=_end_with_parent, daemon=True).start()
    cell, store = Cell(**described), Store(Path(folder))
    with store.log(cell).open("w", encoding="utf-8") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
        store.keep(cell, measure(cell, store.work / cell.name))
        log.flush()


def _end_with_parent() -> None:
    """End at once when the process that began this one is gone: nobody would wait for the result."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
