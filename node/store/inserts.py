"""How records become rows of the tables, and how old rows leave them; all inside the writer's transaction."""

import hashlib
import sqlite3
from collections.abc import Mapping
from dataclasses import fields

import msgspec

from shoal.node.store.records import PassRecord, RolloutRecord
from shoal.node.store.settings import PassSettings

PRUNED_AT_ONCE = 64  # passes; a memory that was shortened is worked off a little with each pass
PAGES_AT_ONCE = 4096  # 16 MiB


def insert_pass(connection: sqlite3.Connection, done: PassRecord, counts: Mapping[str, int]) -> int:
    """Add a pass with its counts by "layer/reason", and return its number in the ledger."""
    values = {field.name: getattr(done, field.name) for field in fields(done) if field.name != "id"}
    values |= {name: _json(values[name]) for name in ("report", "seconds")}
    pass_id = _add(connection, "passes", values)
    for name, count in counts.items():
        layer, _, reason = name.partition("/")
        _add(connection, "counts", {"pass_id": pass_id, "layer": layer, "reason": reason, "count": count})
    return pass_id


def insert_settings(connection: sqlite3.Connection, settings: PassSettings) -> int:
    """Add settings, unless they are there already, and return their number."""
    text = msgspec.json.encode(settings, order="deterministic")
    digest = hashlib.sha256(text).digest()
    connection.execute("INSERT OR IGNORE INTO settings (digest, json) VALUES (?, ?)", (digest, text.decode()))
    return int(connection.execute("SELECT id FROM settings WHERE digest = ?", (digest,)).fetchone()["id"])


def insert_rollout(connection: sqlite3.Connection, pass_id: int, rollout: RolloutRecord) -> None:
    """Add a rollout to its pass."""
    values = {field.name: getattr(rollout, field.name) for field in fields(rollout)}
    rows = [[row.action, row.layer, row.reason, row.reward, row.weight] for row in rollout.rows]
    _add(connection, "rollouts", values | {"pass_id": pass_id, "rows": _json(rows)})


def meet_peer(connection: sqlite3.Connection, rollout: RolloutRecord, done: PassRecord) -> None:
    """Add one fetched rollout to the totals of its publisher."""
    accepted = rollout.action == "accept"
    connection.execute(
        """INSERT INTO peers VALUES (:key, :operator, :now, :now, :round, 1, :yes, :no, :any, :used, :trained, :bytes)
        ON CONFLICT (key) DO UPDATE SET operator = :operator, last_seen = :now, last_round = :round,
        fetched = fetched + 1, accepted = accepted + :yes, refused = refused + :no, used = used + :any,
        used_rows = used_rows + :used, trained_rows = trained_rows + :trained, bytes = bytes + :bytes""",
        {
            "key": rollout.key,
            "operator": rollout.operator,
            "now": done.ended,
            "round": done.round,
            "yes": accepted,
            "no": not accepted,
            "any": rollout.trained_rows > 0,
            "used": rollout.used_rows,
            "trained": rollout.trained_rows,
            "bytes": rollout.bytes,
        },
    )
    if not accepted:
        connection.execute(
            """INSERT INTO peer_refusals VALUES (?, ?, ?, 1)
            ON CONFLICT (key, layer, reason) DO UPDATE SET count = count + 1""",
            (rollout.key, rollout.layer, rollout.reason),
        )


def prune(connection: sqlite3.Connection, before_round: int) -> list[bytes]:
    """Forget passes and peers of rounds before this one; return the digests that nothing names any more."""
    run = connection.execute
    oldest = "SELECT id FROM passes WHERE round < ? ORDER BY id LIMIT ?"
    old = run(oldest, (before_round, PRUNED_AT_ONCE)).fetchall()
    named: set[bytes] = set()
    for row in old:
        digests = run(
            "SELECT digest FROM rollouts WHERE pass_id = :id UNION SELECT samples FROM passes WHERE id = :id",
            {"id": row["id"]},
        )
        named |= {digest for (digest,) in digests if digest is not None}
        run("DELETE FROM passes WHERE id = ?", (row["id"],))
    if old:
        run("DELETE FROM peers WHERE last_round < ?", (before_round,))
        run("DELETE FROM settings WHERE id NOT IN (SELECT settings_id FROM passes)")
    still = "SELECT EXISTS (SELECT 1 FROM rollouts WHERE digest = ?)"
    return [digest for digest in named if not run(still, (digest,)).fetchone()[0]]


def give_back(connection: sqlite3.Connection) -> None:
    """Return free pages to the disk, at most `PAGES_AT_ONCE`; outside of a transaction."""
    connection.executescript(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})")  # plain execute frees one page only


def _add(connection: sqlite3.Connection, table: str, values: Mapping[str, object]) -> int:
    columns, marks = ", ".join(values), ", ".join("?" * len(values))
    done = connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", tuple(values.values()))
    return int(done.lastrowid or 0)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
