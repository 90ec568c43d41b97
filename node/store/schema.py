"""The tables of the ledger, how an older ledger is brought up to date, and what is said of a damaged one."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shoal.protocol.errors import EnvironmentFault

APPLICATION_ID = 0x53484F4C  # "SHOL", in the header of the file: another program's database is never touched
BUSY_SECONDS = 10.0  # how long another connection's write is waited for

_LEDGER = (
    "CREATE TABLE sequence (id INTEGER PRIMARY KEY CHECK (id = 1), end INTEGER NOT NULL)",
    """CREATE TABLE position (
        id INTEGER PRIMARY KEY CHECK (id = 1), round INTEGER NOT NULL, number INTEGER NOT NULL, entered REAL,
        version INTEGER NOT NULL
    )""",
    "CREATE TABLE settings (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, json TEXT NOT NULL)",
    """CREATE TABLE passes (
        id INTEGER PRIMARY KEY AUTOINCREMENT, round INTEGER NOT NULL, number INTEGER NOT NULL,
        version_before INTEGER NOT NULL, version_after INTEGER NOT NULL, started REAL, ended REAL NOT NULL,
        settings_id INTEGER NOT NULL REFERENCES settings, signal INTEGER NOT NULL, note TEXT NOT NULL, reward REAL,
        own_sets INTEGER NOT NULL, peer_sets INTEGER NOT NULL, used_rows INTEGER NOT NULL,
        trained_rows INTEGER NOT NULL, report TEXT NOT NULL, seconds TEXT NOT NULL, samples BLOB,
        inputs_hash BLOB NOT NULL, advantages_hash BLOB, selection_hash BLOB
    )""",
    "CREATE INDEX passes_by_round ON passes (round)",
    """CREATE TABLE counts (
        pass_id INTEGER NOT NULL REFERENCES passes ON DELETE CASCADE, layer TEXT NOT NULL, reason TEXT NOT NULL,
        count INTEGER NOT NULL, PRIMARY KEY (pass_id, layer, reason)
    ) WITHOUT ROWID""",
    """CREATE TABLE rollouts (
        id INTEGER PRIMARY KEY, pass_id INTEGER NOT NULL REFERENCES passes ON DELETE CASCADE, own INTEGER NOT NULL,
        place INTEGER, announcement BLOB, digest BLOB, bytes INTEGER NOT NULL, key BLOB NOT NULL,
        operator TEXT NOT NULL, round INTEGER NOT NULL, policy_version INTEGER NOT NULL, sequence INTEGER,
        received_round INTEGER, arrival INTEGER, age INTEGER NOT NULL, lag INTEGER, action TEXT NOT NULL,
        layer TEXT NOT NULL, reason TEXT NOT NULL, rows TEXT NOT NULL, used_rows INTEGER NOT NULL,
        trained_rows INTEGER NOT NULL
    )""",
    "CREATE INDEX rollouts_by_pass ON rollouts (pass_id)",
    "CREATE INDEX rollouts_by_digest ON rollouts (digest)",
    "CREATE INDEX rollouts_by_key ON rollouts (key)",
    """CREATE TABLE peers (
        key BLOB PRIMARY KEY, operator TEXT NOT NULL, first_seen REAL NOT NULL, last_seen REAL NOT NULL,
        last_round INTEGER NOT NULL, fetched INTEGER NOT NULL, accepted INTEGER NOT NULL, refused INTEGER NOT NULL,
        used INTEGER NOT NULL, used_rows INTEGER NOT NULL, trained_rows INTEGER NOT NULL, bytes INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE peer_refusals (
        key BLOB NOT NULL REFERENCES peers ON DELETE CASCADE, layer TEXT NOT NULL, reason TEXT NOT NULL,
        count INTEGER NOT NULL, PRIMARY KEY (key, layer, reason)
    ) WITHOUT ROWID""",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_LEDGER,)
"""Statements that lead from version n to n + 1. One that was ever released is never changed: a new one is added."""

_ADVICE = {
    sqlite3.SQLITE_FULL: "the disk is full: free some space",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
    sqlite3.SQLITE_READONLY: "it cannot be written: check the permissions of the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: check that its folder exists and can be written",
    sqlite3.SQLITE_BUSY: "another program holds it: end that program",
}
_DAMAGED = (
    "it is damaged. Move it aside together with its -wal and -shm files and start again: a new ledger begins, keys and "
    "checkpoints are untouched, and only the history is lost. `sqlite3 FILE .recover` may save a part of it"
)


@contextmanager
def faults(path: Path) -> Iterator[None]:
    """Turn what SQLite reports inside into an EnvironmentFault that names the file and says what to do."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in (sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISUSE):
            raise  # a mistake of ours and no matter of the machine
        raise EnvironmentFault(f"ledger {path}: {_ADVICE.get(code, _DAMAGED)} ({error})") from error


def open_ledger(path: Path, migrations: Sequence[Sequence[str]] = MIGRATIONS) -> sqlite3.Connection:
    """Open the ledger for writing, make it when it is not there, and bring an older one up to date.

    Raises EnvironmentFault, with what to do, for a damaged file, one of another program, and one that a newer version
    of this program has written.
    """
    with faults(path):
        connection = connect(path)
        try:
            _check(connection, path, len(migrations))
            _prepare(connection)
            _migrate(connection, migrations)
        except BaseException:
            connection.close()
            raise
        return connection


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Return a connection that any thread may use, one at a time; statements outside of BEGIN commit at once."""
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    if read_only:
        connection.execute("PRAGMA query_only = ON")
    return connection


def version_of(connection: sqlite3.Connection) -> int:
    """Return the version of the tables; 0 is an empty file."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def check_version(version: int, known: int, path: Path) -> None:
    """Raise EnvironmentFault for tables that only a newer version of this program understands."""
    if version > known:
        raise EnvironmentFault(
            f"ledger {path} was written by a newer version of shoal (its tables have version {version}, this program "
            f"knows {known}): install that version again, or use another home"
        )


def _check(connection: sqlite3.Connection, path: Path, known: int) -> None:
    version = version_of(connection)
    owner = int(connection.execute("PRAGMA application_id").fetchone()[0])
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if owner != APPLICATION_ID and (owner or version or tables):
        raise EnvironmentFault(f"ledger {path} is a database of another program: move it away, or use another home")
    check_version(version, known, path)
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise EnvironmentFault(f"ledger {path}: {_DAMAGED} ({found})")


def _prepare(connection: sqlite3.Connection) -> None:
    """Set what holds for a writer; not before the check, since some of it writes into the file."""
    if version_of(connection) == 0:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # possible before the first table only
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")  # what must outlive a power cut is committed with FULL
    connection.execute("PRAGMA foreign_keys = ON")


def _migrate(connection: sqlite3.Connection, migrations: Sequence[Sequence[str]]) -> None:
    """Apply what is missing, each step whole or not at all."""
    for version in range(version_of(connection), len(migrations)):
        with transaction(connection):
            for statement in migrations[version]:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {version + 1}")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Write all that happens inside, or nothing of it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk has rolled it back already
            connection.execute("ROLLBACK")
        raise
