"""What a daemon keeps on the disk: its ledger, a line for each pass, and checkpoints from which it goes on.

The process may die at any instant. The ledger is written after each pass, a checkpoint every few passes; lost is
the time since then, never a sequence number, never the position in swarm time.
"""

import asyncio
import contextlib
import logging
import time
from pathlib import Path

from shoal.defenses.verdict import Counters
from shoal.node import snapshot
from shoal.node.events import RoundResult
from shoal.node.loop import Node
from shoal.node.store.recorder import Recorder
from shoal.node.witness import PassNotes
from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.trainer.checkpoint import load_latest, save

log = logging.getLogger(__name__)

DRAIN_SECONDS = 30.0  # a pass is written in milliseconds
LONGEST_UNSAVED = 300.0  # seconds; with long rounds that comes before the number of passes
KEPT_CHECKPOINTS = 2  # the latest, and the one before in case that a disk error spoils it


class Checkpoints:
    """Saves a node after its first pass, every so many more, and whenever told; a save that fails is tried again."""

    def __init__(self, folder: Path, node: Node, every: int, counters: Counters) -> None:
        self.folder = folder
        self.node = node
        self.every = every
        self.counters = counters
        self._passes = 0
        self._saved = float("-inf")  # monotonic

    def restore(self) -> int | None:
        """Set the node to its newest whole checkpoint; return its policy version, None when there is none.

        Raises EnvironmentFault when there are checkpoints but all are damaged, UsageError when the newest is of
        another model: a new beginning must be meant.
        """
        saved = load_latest(self.folder)
        if saved is None:
            if any(self.folder.glob("step-*")):
                raise EnvironmentFault(f"all checkpoints in {self.folder} are damaged: move them away to begin anew")
            return None
        for damaged in saved.skipped:
            self.counters.add("checkpoint", "damaged")
            log.warning("a damaged checkpoint was passed over: %s", damaged)
        try:
            snapshot.restore(self.node, saved.tensors, saved.state)
        except UsageError as error:
            raise UsageError(f"{error}, or move {self.folder} away to begin anew") from error
        return self.node.organs.trainer.policy.version

    async def after_pass(self) -> None:
        """Save when that is due: after the first pass, after so many more, and at the latest after some minutes."""
        self._passes += 1
        unsaved = time.monotonic() - self._saved
        if self._passes >= self.every or unsaved >= LONGEST_UNSAVED:
            with contextlib.suppress(EnvironmentFault):  # counted and shown; training goes on
                await self.save()

    async def save(self) -> Path:
        """Save now, between two passes, in the thread that trains. Raises EnvironmentFault."""
        tensors, state = snapshot.take(self.node)
        step = self.node.organs.trainer.policy.version

        def work() -> Path:
            return save(self.folder, step, tensors, state, keep=KEPT_CHECKPOINTS)

        try:
            path = await self.node.organs.compute.run("save", work)
        except EnvironmentFault as error:
            self.counters.add("checkpoint", "failed")
            log.warning("%s", error)
            raise
        self._passes, self._saved = 0, time.monotonic()
        self.counters.add("checkpoint", "saved")
        return path


class LedgerWriter:
    """Writes passes into the ledger in the background, in order. A full disk costs lines, counted, never a pass."""

    BACKLOG = 64  # passes that wait to be written

    def __init__(self, recorder: Recorder, counters: Counters) -> None:
        self.recorder = recorder
        self.counters = counters
        self._waiting: asyncio.Queue[tuple[RoundResult, PassNotes]] = asyncio.Queue(self.BACKLOG)

    def record(self, result: RoundResult, notes: PassNotes) -> None:
        """Take one pass; called in the event loop."""
        try:
            self._waiting.put_nowait((result, notes))
        except asyncio.QueueFull:
            self.counters.add("ledger", "dropped_backlog")

    async def run(self) -> None:
        """Write for as long as the node lives."""
        while True:
            result, notes = await self._waiting.get()
            try:
                await asyncio.to_thread(self.recorder.record_pass, result, notes)
            except EnvironmentFault as error:
                self.counters.add("ledger", "failed")
                log.warning("%s", error)
            finally:
                self._waiting.task_done()

    async def drain(self) -> None:
        """Return when all that was recorded is written; a disk that hangs is waited for DRAIN_SECONDS at most."""
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._waiting.join()
        except TimeoutError:
            self.counters.add("ledger", "dropped_at_end", max(1, self._waiting.qsize()))
            log.warning("the ledger was not written to its end within %.0f s", DRAIN_SECONDS)
