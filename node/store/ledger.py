"""The ledger's one writer: position and sequence numbers before they are used, and what became of every pass."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from shoal.node.store.inserts import give_back, insert_pass, insert_rollout, insert_settings, meet_peer, prune
from shoal.node.store.reader import LedgerReader
from shoal.node.store.records import PassRecord, PeerTotals, Position, RolloutRecord
from shoal.node.store.schema import faults, open_ledger, transaction
from shoal.node.store.settings import PassSettings

KEEP_ROUNDS = 10_000
UNRECORDED = 256  # passes whose beginning is remembered until they are recorded; more have failed or were dropped
MILLISECONDS = 1000


@dataclass(frozen=True, slots=True)
class PassFacts:
    """All that is written of one pass; `counts` are by "layer/reason"."""

    done: PassRecord
    rollouts: Sequence[RolloutRecord]
    settings: PassSettings
    counts: Mapping[str, int]


class Recorded(NamedTuple):
    """The number of a pass in the ledger, and the digests of blobs that no row names any more."""

    pass_id: int
    forgotten: Sequence[bytes]


class Store:
    """The ledger of one node; any thread may call, one writes at a time.

    A new ledger starts sequence numbers and published versions at the unix time in milliseconds: so an identity that
    was restored without its ledger repeats no number, and its versions do not fall.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.time, keep_rounds: int = KEEP_ROUNDS) -> None:
        """Open or create the ledger. Raises EnvironmentFault when it cannot be used, with what to do."""
        self.path = path
        self.now = now
        self.keep_rounds = keep_rounds
        self._entered: dict[tuple[int, int], float] = {}  # when the passes began that are not recorded yet
        self._lock = threading.RLock()
        self._connection = open_ledger(path)
        self._begin()
        self.reader = LedgerReader(path)

    def close(self) -> None:
        """Close the ledger; a second call does nothing."""
        with self._lock:
            self.reader.close()
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
        now = self.now()
        with self._writing(durable=True):
            self._connection.execute(
                "UPDATE position SET round = ?, number = ?, entered = ?, version = max(version, ?)",
                (round, passes, now, version),
            )
            self._entered[round, passes] = now
            while len(self._entered) > UNRECORDED:
                del self._entered[next(iter(self._entered))]

    def last_position(self) -> Position:
        """Return the pass that was entered last (round -1 in a new ledger), and the version to go on from."""
        row = self._one("SELECT round, number, version FROM position")
        return Position(row["round"], row["number"], row["version"])

    def record(self, facts: PassFacts) -> Recorded:
        """Write down one pass, all of it or nothing, and forget what is older than `keep_rounds`.

        The record's id, settings and times are filled in here. Raises EnvironmentFault when the disk is full.
        """
        with self._writing():
            entered = self._entered.pop((facts.done.round, facts.done.number), None)
            settings_id = insert_settings(self._connection, facts.settings)
            done = replace(facts.done, settings_id=settings_id, started=entered, ended=self.now())
            pass_id = insert_pass(self._connection, done, facts.counts)
            for rollout in facts.rollouts:
                insert_rollout(self._connection, pass_id, rollout)
                if not rollout.own and rollout.announcement is not None:  # the unsigned lane proves no key
                    meet_peer(self._connection, rollout, done)
            forgotten = prune(self._connection, done.round - self.keep_rounds)
        if forgotten:
            with self._lock, faults(self.path):
                give_back(self._connection)
        return Recorded(pass_id, forgotten)

    def peer_totals(self, key: bytes) -> PeerTotals:
        """Return how many rollouts of a peer were trained on, and how many were fetched and refused."""
        return self.reader.peer_totals(key)

    def sizes(self) -> dict[str, float]:
        """Return how large the ledger is, its log that is not yet folded in included."""
        files = (self.path, self.path.with_name(self.path.name + "-wal"))
        return {"ledger_bytes": sum(file.stat().st_size for file in files if file.exists())}

    def _begin(self) -> None:
        start = int(self.now() * MILLISECONDS)
        with self._writing(durable=True):
            self._connection.execute("INSERT OR IGNORE INTO sequence VALUES (1, ?)", (start,))
            self._connection.execute("INSERT OR IGNORE INTO position VALUES (1, -1, 0, NULL, ?)", (start,))

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
