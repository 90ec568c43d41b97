"""Reading the ledger, also while a node writes it; light to import."""

import sqlite3
import threading
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from shoal.node.store.records import PassRecord, PeerRecord, PeerTotals, RolloutRecord, RowRecord
from shoal.node.store.schema import MIGRATIONS, check_version, connect, faults, version_of
from shoal.protocol.errors import EnvironmentFault

Kind = TypeVar("Kind")


class LedgerReader:
    """What passes, rollouts and peers the ledger knows; any thread may call. It never writes."""

    def __init__(self, path: Path) -> None:
        """Open an existing ledger. Raises EnvironmentFault when there is none or it cannot be read."""
        if not path.is_file():
            raise EnvironmentFault(f"no ledger at {path}: it is made by the first `shoal run` of this home")
        self.path = path
        self._lock = threading.Lock()
        with faults(path):
            self._connection = connect(path, read_only=True)
            try:
                _require_current(version_of(self._connection), path)
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        """Close the ledger; a second call does nothing."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def passes(self, last: int) -> list[PassRecord]:
        """Return the newest `last` passes, oldest first."""
        rows = self._all("SELECT * FROM passes ORDER BY id DESC LIMIT ?", last)
        return [self._pass(row) for row in reversed(rows)]

    def one_pass(self, pass_id: int) -> PassRecord | None:
        """Return one pass by its number in the ledger, None when it is not (or no longer) there."""
        return next((self._pass(row) for row in self._all("SELECT * FROM passes WHERE id = ?", pass_id)), None)

    def span(self) -> tuple[int, int] | None:
        """Return the numbers of the oldest and the newest pass that are kept; None when there is none."""
        row = self._all("SELECT min(id) AS oldest, max(id) AS newest FROM passes")[0]
        return None if row["newest"] is None else (row["oldest"], row["newest"])

    def rollouts(self, pass_id: int) -> list[RolloutRecord]:
        """Return the rollouts of a pass: own ones first, then peers' in the order in which they were fetched."""
        rows = self._all("SELECT * FROM rollouts WHERE pass_id = ? ORDER BY id", pass_id)
        return [self._rollout(row) for row in rows]

    def counts(self, pass_id: int) -> dict[str, int]:
        """Return what a pass counted, by "layer/reason"."""
        rows = self._all("SELECT layer, reason, count FROM counts WHERE pass_id = ?", pass_id)
        return {f"{row['layer']}/{row['reason']}": row["count"] for row in rows}

    def settings(self, settings_id: int) -> str:
        """Return settings as JSON (of a `PassSettings`)."""
        rows = self._all("SELECT json FROM settings WHERE id = ?", settings_id)
        if not rows:
            raise EnvironmentFault(f"ledger {self.path}: the settings {settings_id} of a pass are missing")
        return str(rows[0]["json"])

    def served(self, since_round: int) -> list[tuple[int, bytes, bytes]]:
        """Return (round, blob digest, announcement) of what was announced for this round and later, oldest first."""
        rows = self._all(
            "SELECT round, digest, announcement FROM rollouts WHERE own AND announcement NOT NULL AND round >= ? "
            "ORDER BY id",
            since_round,
        )
        return [(row["round"], row["digest"], row["announcement"]) for row in rows]

    def peers(self) -> list[PeerRecord]:
        """Return all peers whose rollouts were fetched, the one seen last first."""
        refusals: dict[bytes, dict[str, int]] = {}
        for row in self._all("SELECT * FROM peer_refusals"):
            refusals.setdefault(row["key"], {})[f"{row['layer']}/{row['reason']}"] = row["count"]
        rows = self._all("SELECT * FROM peers ORDER BY last_seen DESC")
        return [PeerRecord(**dict(row), refusals=refusals.get(row["key"], {})) for row in rows]

    def peer_totals(self, key: bytes) -> PeerTotals:
        """Return what became of a peer's rollouts; zeros for one of which nothing was fetched."""
        rows = self._all("SELECT used, refused FROM peers WHERE key = ?", key)
        return PeerTotals(rows[0]["used"], rows[0]["refused"]) if rows else PeerTotals()

    def totals(self) -> dict[str, int]:
        """Return how many passes, own sets shared, rollouts fetched and refused, peers' rows used and trained on."""
        row = self._all(
            """SELECT (SELECT count(*) FROM passes) AS passes,
            count(CASE WHEN own AND announcement NOT NULL THEN 1 END) AS shared,
            count(CASE WHEN NOT own THEN 1 END) AS fetched,
            count(CASE WHEN NOT own AND action <> 'accept' THEN 1 END) AS refused,
            coalesce(sum(CASE WHEN NOT own THEN used_rows END), 0) AS used_rows,
            coalesce(sum(CASE WHEN NOT own THEN trained_rows END), 0) AS trained_rows FROM rollouts"""
        )[0]
        return dict(row)

    def _all(self, statement: str, *values: object) -> list[sqlite3.Row]:
        with self._lock, faults(self.path):
            return self._connection.execute(statement, values).fetchall()

    def _pass(self, row: sqlite3.Row) -> PassRecord:
        values: dict[str, Any] = dict(row)
        values["report"] = self._json(values["report"], dict[str, Any])
        values["seconds"] = self._json(values["seconds"], dict[str, float])
        return PassRecord(**values | {"signal": bool(values["signal"])})

    def _rollout(self, row: sqlite3.Row) -> RolloutRecord:
        values: dict[str, Any] = dict(row)
        del values["id"], values["pass_id"]
        rows = self._json(values["rows"], list[tuple[str, str, str, float | None, float]])
        return RolloutRecord(**values | {"own": bool(values["own"]), "rows": tuple(RowRecord(*row) for row in rows)})

    def _json(self, text: str, kind: type[Kind]) -> Kind:
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.MsgspecError as error:
            raise EnvironmentFault(f"ledger {self.path}: a row holds what no node writes there: {error}") from error


def _require_current(version: int, path: Path) -> None:
    check_version(version, len(MIGRATIONS), path)
    if version < len(MIGRATIONS):
        raise EnvironmentFault(
            f"ledger {path} is of an older version ({version} of {len(MIGRATIONS)}): start the node once, which brings "
            "it up to date"
        )
