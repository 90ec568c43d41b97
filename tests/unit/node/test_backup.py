"""Backups of an identity: restored whole, or refused with a reason."""

import errno
import os
import stat
from pathlib import Path

import pytest
from node_pieces import identity

from shoal.node.backup import passphrase_of, put_in_place, read_backup, write_backup
from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.protocol.identity import Identity


@pytest.mark.parametrize("passphrase", [None, b"a long one"])
def test_a_backup_gives_the_same_identity_back(tmp_path: Path, passphrase: bytes | None) -> None:
    file = tmp_path / "backup.pem"
    write_backup(identity(1), file, passphrase)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    restored = read_backup(file, passphrase)
    assert restored.key == identity(1).key
    assert restored.sign(b"x") == identity(1).sign(b"x")
    assert identity(1).seed.hex() not in file.read_text()
    assert (b"ENCRYPTED" in file.read_bytes()) is (passphrase is not None)


def test_a_backup_is_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "backup.pem"
    write_backup(identity(1), file, None)
    with pytest.raises(EnvironmentFault, match="never overwritten"):
        write_backup(identity(2), file, None)
    assert read_backup(file, None).key == identity(1).key


def test_what_does_not_open_says_why(tmp_path: Path) -> None:
    locked, plain = tmp_path / "locked.pem", tmp_path / "plain.pem"
    write_backup(identity(1), locked, b"right")
    write_backup(identity(1), plain, None)
    with pytest.raises(UsageError, match="it needs one"):
        read_backup(locked, None)
    with pytest.raises(UsageError, match="passphrase is wrong"):
        read_backup(locked, b"wrong")
    with pytest.raises(UsageError, match="leave it out"):
        read_backup(plain, b"surplus")
    (tmp_path / "cut.pem").write_bytes(plain.read_bytes()[:40])
    with pytest.raises(EnvironmentFault, match="is not a backup"):
        read_backup(tmp_path / "cut.pem", None)
    with pytest.raises(EnvironmentFault, match="cannot read"):
        read_backup(tmp_path / "none.pem", None)


def test_an_identity_makes_way_and_is_kept_under_its_name(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    identity(1).save(path)
    aside = put_in_place(identity(2), path)
    assert aside == tmp_path / f"identity.key.{identity(1).key[:4].hex()}"
    assert Identity.load(path).key == identity(2).key
    assert Identity.load(aside).key == read_backup(aside, None).key == identity(1).key
    # there and back again: what is kept already is not kept twice
    put_in_place(identity(1), path)
    assert put_in_place(identity(2), path) == aside
    assert len(list(tmp_path.iterdir())) == 3


def test_another_file_of_that_name_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    identity(1).save(path)
    taken = tmp_path / f"identity.key.{identity(1).key[:4].hex()}"
    taken.write_text("something else")
    aside = put_in_place(identity(2), path)
    assert aside.name == f"{taken.name}.2"
    assert taken.read_text() == "something else"
    assert Identity.load(aside).key == identity(1).key


def test_a_damaged_identity_makes_way_too(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    path.write_text("half of i")
    assert put_in_place(identity(1), path).name == "identity.key.damaged"
    assert Identity.load(path).key == identity(1).key


def test_a_full_disk_leaves_the_identity_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "identity.key"
    identity(1).save(path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for owner, call in ((os, "fsync"), (Path, "replace")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, call, full)
            with pytest.raises(EnvironmentFault, match="No space left"):
                put_in_place(identity(2), path)
        assert Identity.load(path).key == identity(1).key
    assert {file.name for file in tmp_path.iterdir()} <= {path.name, f"{path.name}.{identity(1).key[:4].hex()}"}
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentFault, match="No space left"):
        write_backup(identity(1), tmp_path / "backup.pem", None)
    assert not (tmp_path / "backup.pem").exists()


def test_where_the_passphrase_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOAL_PASSPHRASE", raising=False)
    assert passphrase_of(None) is None
    monkeypatch.setenv("SHOAL_PASSPHRASE", "from outside")
    assert passphrase_of(None) == b"from outside"
    file = tmp_path / "passphrase"
    file.write_text("first line\nsecond\n")
    assert passphrase_of(file) == b"first line"
    file.write_text("\n")
    with pytest.raises(UsageError, match="first line is empty"):
        passphrase_of(file)
