"""The ledger's one writer: position and sequence numbers before they are used, and what became of every pass."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from shoal.node.events import RoundResult
from shoal.node.store.blobs import BlobStore
from shoal.node.store.facts import own_records, pass_record, peer_records
from shoal.node.store.inserts import insert_pass, insert_rollout, insert_settings, meet_peer, prune
from shoal.node.store.records import Position
from shoal.node.store.samples import pack_samples
from shoal.node.store.schema import faults, open_ledger, transaction
from shoal.node.store.settings import PassSettings
from shoal.node.witness import PassNotes

KEEP_ROUNDS = 10_000
MILLISECONDS = 1000


class Store:
    """The ledger and the blobs of one node; any thread may call, one writes at a time.

    A new ledger starts sequence numbers and published versions at the unix time in milliseconds: so an identity that
    was restored without its ledger repeats no number, and its versions do not fall.
    """

    def __init__(
        self, path: Path, blobs: BlobStore, keep_rounds: int = KEEP_ROUNDS, now: Callable[[], float] = time.time
    ) -> None:
        """Open or create the ledger. Raises EnvironmentFault when it cannot be used, with what to do."""
        self.path = path
        self.blobs = blobs
        self.keep_rounds = keep_rounds
        self.now = now
        self.recorded = 0  # passes since this process began
        self._lock = threading.RLock()
        self._connection = open_ledger(path)
        self._begin()

    def close(self) -> None:
        """Close the ledger; a second call does nothing."""
        with self._lock:
            self._connection.close()

    def sequence_start(self) -> int:
        """Return the first sequence number that no earlier process can have used."""
        return int(self._one("SELECT end FROM sequence")["end"])

    def commit_sequence(self, end: int) -> None:
        """Reserve the numbers below `end`; on the disk when this returns. It never falls."""
        with self._writing(durable=True):
            self._connection.execute("UPDATE sequence SET end = max(end, ?)", (end,))

    def enter(self, round: int, passes: int, version: int) -> None:
        """Note that a pass begins, before anything of it is published; `version` is the policy's as published.

        On the disk when this returns. The highest version is kept also when a lower one is entered.
        """
        with self._writing(durable=True):
            self._connection.execute(
                "UPDATE position SET round = ?, number = ?, entered = ?, version = max(version, ?)",
                (round, passes, self.now(), version),
            )

    def last_position(self) -> Position | None:
        """Return the pass that was entered last; None in a new ledger."""
        row = self._one("SELECT round, number, version FROM position")
        return None if row["round"] is None else Position(row["round"], row["number"], row["version"])

    def published_version(self) -> int:
        """Return the highest version under which anything may have been published: the next may equal it."""
        return int(self._one("SELECT version FROM position")["version"])

    def record_pass(self, result: RoundResult, notes: PassNotes, settings: PassSettings, key: bytes) -> int:
        """Write down one pass of the node with this key, and return its number in the ledger.

        Blobs first, then all rows in one transaction: a row may name a blob that is gone, never the reverse. Runs for
        some milliseconds and belongs in a thread. Raises EnvironmentFault when the disk is full.
        """
        samples = self.blobs.put(pack_samples(result.own), kept=True) if result.own else None
        chosen = {id(peer) for peer in result.peers}
        for published in notes.out:
            self.blobs.put(published.blob, kept=True)
        for fetched in notes.came:
            self.blobs.put(fetched.blob, kept=id(fetched.peer) in chosen)
        rollouts = own_records(result, notes, key) + peer_records(result, notes)
        with self._writing():
            settings_id = insert_settings(self._connection, settings)
            done = replace(pass_record(result, self._times()), samples=samples, settings_id=settings_id)
            pass_id = insert_pass(self._connection, done, result.counts)
            for rollout in rollouts:
                insert_rollout(self._connection, pass_id, rollout)
                if not rollout.own:
                    meet_peer(self._connection, rollout, done)
            stale = prune(self._connection, result.round - self.keep_rounds)
        for digest in stale:
            self.blobs.remove(digest)
        self.recorded += 1
        return pass_id

    def state(self) -> dict[str, int]:
        """Return sizes and counts for people: passes recorded by this process, bytes of the ledger and of the blobs."""
        size = self.path.stat().st_size if self.path.exists() else 0
        blobs = {f"blob_{name}": count for name, count in self.blobs.state().items()}
        return {"recorded": self.recorded, "ledger_bytes": size, **blobs}

    def _begin(self) -> None:
        start = int(self.now() * MILLISECONDS)
        with self._writing(durable=True):
            self._connection.execute("INSERT OR IGNORE INTO sequence VALUES (1, ?)", (start,))
            self._connection.execute("INSERT OR IGNORE INTO position VALUES (1, NULL, NULL, NULL, ?)", (start,))

    def _times(self) -> tuple[float | None, float]:
        return self._one("SELECT entered FROM position")["entered"], self.now()

    def _one(self, statement: str, *values: object) -> sqlite3.Row:
        with self._lock, faults(self.path):
            row = self._connection.execute(statement, values).fetchone()
        assert row is not None
        return row

    @contextmanager
    def _writing(self, *, durable: bool = False) -> Iterator[None]:
        """Hold the writer's lock for one transaction; `durable` ones outlive a power cut, the others a crash."""
        with self._lock, faults(self.path):
            if durable:
                self._connection.execute("PRAGMA synchronous = FULL")
            try:
                with transaction(self._connection):
                    yield
            finally:
                if durable:
                    self._connection.execute("PRAGMA synchronous = NORMAL")
