"""Backups of an identity: restored whole, or refused with a reason."""

import stat
from pathlib import Path

import pytest
from node_pieces import identity

from shoal.node.backup import passphrase_of, put_aside, read_backup, write_backup
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


def test_an_identity_is_put_aside_under_its_name(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    identity(1).save(path)
    aside = put_aside(path)
    assert not path.exists()
    assert aside.name == f"identity.key.{identity(1).key[:4].hex()}"
    assert Identity.load(aside).key == identity(1).key
    identity(1).save(path)
    with pytest.raises(EnvironmentFault, match="move it away"):
        put_aside(path)


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
