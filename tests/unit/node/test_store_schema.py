"""The tables of the ledger: made, brought up to date, and refused with advice where they cannot be used."""

import sqlite3
from pathlib import Path

import pytest

from shoal.node.store.reader import LedgerReader
from shoal.node.store.schema import MIGRATIONS, faults, open_ledger, transaction, version_of
from shoal.protocol.errors import EnvironmentFault


def test_a_new_ledger_has_all_tables_and_the_newest_version(tmp_path: Path) -> None:
    connection = open_ledger(tmp_path / "new.db")
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    assert {"passes", "rollouts", "peers", "counts", "position", "sequence", "settings"} <= tables
    assert version_of(connection) == len(MIGRATIONS)
    assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_an_older_ledger_is_brought_up_to_date_with_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    old = open_ledger(path)
    old.execute("INSERT INTO sequence VALUES (1, 77)")
    old.close()
    newer = (*MIGRATIONS, ("ALTER TABLE sequence ADD COLUMN note TEXT NOT NULL DEFAULT 'moved'",))
    connection = open_ledger(path, newer)
    assert version_of(connection) == len(newer)
    assert tuple(connection.execute("SELECT end, note FROM sequence").fetchone()) == (77, "moved")


def test_a_migration_that_fails_leaves_the_ledger_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    open_ledger(path).close()
    broken = (*MIGRATIONS, ("CREATE TABLE half (a)", "INSERT INTO nowhere VALUES (1)"))
    with pytest.raises(sqlite3.OperationalError):
        open_ledger(path, broken)
    connection = open_ledger(path)
    assert version_of(connection) == len(MIGRATIONS)
    assert not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'half'").fetchall()


def test_a_ledger_of_a_newer_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "newer.db"
    connection = open_ledger(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    for opening in (open_ledger, LedgerReader):
        with pytest.raises(EnvironmentFault, match="newer version of shoal"):
            opening(path)
    assert path.read_bytes() == before


def test_an_older_ledger_is_not_read_before_it_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    connection = open_ledger(path)
    connection.execute("PRAGMA user_version = 0")
    connection.close()
    with pytest.raises(EnvironmentFault, match="older version"):
        LedgerReader(path)


def test_another_programs_database_is_never_touched(tmp_path: Path) -> None:
    path = tmp_path / "mail.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE mail (text)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(EnvironmentFault, match="another program"):
        open_ledger(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["garbage", "cut", "page"])
def test_a_damaged_ledger_is_refused_with_advice(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "shoal.db"
    connection = open_ledger(path)
    with transaction(connection):
        connection.executemany(
            "INSERT INTO settings (digest, json) VALUES (?, ?)", ((f"{n}", "x" * 900) for n in range(50))
        )
    connection.close()
    data = bytearray(path.read_bytes())
    if damage == "garbage":
        data = bytearray(b"not a database, whatever its name says" * 100)
    elif damage == "cut":
        del data[len(data) // 2 :]
    else:
        data[-8192:] = bytes([0xA5]) * 8192
    path.write_bytes(data)
    with pytest.raises(EnvironmentFault, match="Move it aside"):
        open_ledger(path)
    assert path.read_bytes() == bytes(data), "the evidence stays as it was found"


def test_a_missing_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="folder exists"):
        open_ledger(tmp_path / "nowhere" / "shoal.db")
    with pytest.raises(EnvironmentFault, match="first `shoal run`"):
        LedgerReader(tmp_path / "shoal.db")


def test_a_full_disk_says_so_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "shoal.db"
    connection = open_ledger(path)
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")  # SQLite then reports what it reports of a full disk
    with pytest.raises(EnvironmentFault, match="disk is full"), faults(path), transaction(connection):
        connection.execute("INSERT INTO settings VALUES (1, x'00', ?)", ("x" * 100_000,))
    assert not connection.in_transaction
    assert connection.execute("SELECT count(*) FROM settings").fetchone()[0] == 0
