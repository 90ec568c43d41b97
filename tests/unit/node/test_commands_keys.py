"""`shoal init` and `shoal keys`: one identity, kept, carried over, put aside, and never lost."""

import json
import stat
from pathlib import Path

import pytest

from shoal.node.commands.init import init
from shoal.node.commands.keys import backup, restore, rotate, show
from shoal.node.home import Home
from shoal.node.layers import load
from shoal.node.options import RunConfig
from shoal.node.store.ledger import Store
from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.protocol.identity import Identity
from shoal.protocol.libp2p.keys import key_of

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOAL_PASSPHRASE", raising=False)


@pytest.fixture
def home(tmp_path: Path, capsys: Captured) -> Home:
    init(home=tmp_path / "home")
    capsys.readouterr()
    return Home.find(tmp_path / "home")


def key_in(home: Home) -> bytes:
    return Identity.load(home.identity).key


def test_init_makes_a_home_and_a_second_call_changes_nothing(tmp_path: Path, capsys: Captured) -> None:
    init(home=tmp_path)
    first = capsys.readouterr().out
    home = Home.find(tmp_path)
    assert "made identity.key and config.toml" in first
    assert key_in(home).hex() in first
    assert stat.S_IMODE(home.identity.stat().st_mode) == 0o600
    assert load(home.config, {}, {}).config == RunConfig()
    before = {path: path.read_bytes() for path in (home.identity, home.config)}
    with home.lock():  # a node is running
        init(home=tmp_path)
    assert "nothing to do" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in before} == before


def test_init_makes_what_is_missing_only(home: Home, capsys: Captured) -> None:
    key = key_in(home)
    home.config.unlink()
    init(home=home.path)
    assert "made config.toml" in capsys.readouterr().out
    assert key_in(home) == key


def test_init_notes_the_swarm_so_that_it_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    init(home=tmp_path / "a", swarm="swarm.toml")
    assert load(tmp_path / "a" / "config.toml", {}, {}).config.swarm == str(tmp_path / "swarm.toml")
    init(home=tmp_path / "a", swarm="swarm.toml")
    assert capsys.readouterr().err == ""
    init(home=tmp_path / "a", swarm="https://example.org/s.toml")
    assert 'set `swarm = "https://example.org/s.toml"` there' in capsys.readouterr().err
    with pytest.raises(UsageError, match="no link to a swarm"):
        init(home=tmp_path / "b", swarm="shoal://12")
    assert not (tmp_path / "b").exists()


def test_keys_are_shown_without_the_secret(home: Home, capsys: Captured) -> None:
    identity = Identity.load(home.identity)
    show(home=home.path)
    text = capsys.readouterr().out
    show(home=home.path, json=True)
    printed = capsys.readouterr().out
    facts = json.loads(printed)
    assert facts["key"] == identity.key.hex()
    assert facts["key"].startswith(facts["short"])
    assert facts["path"] == str(home.identity)
    ids = facts["libp2p"]
    assert key_of(ids["transport"]) == Identity.from_seed(identity.derive("libp2p/transport/1")).key
    assert key_of(ids["gossip"]) == Identity.from_seed(identity.derive("libp2p/gossip/1")).key
    assert ids["transport"] in text
    assert facts["key"] in text
    for secret in (identity.seed, identity.derive("libp2p/transport/1"), identity.derive("libp2p/gossip/1")):
        assert secret.hex() not in text + printed


@pytest.mark.parametrize("passphrase", [None, "a long one"])
def test_a_backup_restores_the_same_node_elsewhere(
    home: Home, tmp_path: Path, passphrase: str | None, capsys: Captured
) -> None:
    """Failure 8."""
    file, secret = tmp_path / "backup.pem", tmp_path / "passphrase"
    secret.write_text(f"{passphrase}\n")
    with home.lock():  # reading does not disturb a node that runs
        backup(file, home=home.path, passphrase_file=secret if passphrase else None)
    assert ("not encrypted" in capsys.readouterr().out) is (passphrase is None)
    restore(file, home=tmp_path / "new", passphrase_file=secret if passphrase else None)
    assert key_in(Home.find(tmp_path / "new")) == key_in(home)
    if passphrase:
        with pytest.raises(UsageError, match="--passphrase-file"):
            restore(file, home=tmp_path / "third")
        assert not (tmp_path / "third" / "identity.key").exists()


def test_restoring_over_another_identity_is_refused_or_keeps_it(home: Home, tmp_path: Path, capsys: Captured) -> None:
    file, own = tmp_path / "backup.pem", key_in(home)
    init(home=tmp_path / "other")
    backup(file, home=tmp_path / "other")
    other = key_in(Home.find(tmp_path / "other"))
    with pytest.raises(UsageError, match="--force puts it aside"):
        restore(file, home=home.path)
    assert key_in(home) == own
    restore(file, home=home.path, force=True)
    assert key_in(home) == other
    aside = home.path / f"identity.key.{own[:4].hex()}"
    assert str(aside) in capsys.readouterr().out
    restore(file, home=home.path)
    assert "was there already" in capsys.readouterr().out
    restore(aside, home=home.path, force=True)  # what was put aside can be taken back as it is
    assert key_in(home) == own


def test_a_damaged_identity_can_be_replaced_by_its_backup(home: Home, tmp_path: Path) -> None:
    file, key = tmp_path / "backup.pem", key_in(home)
    backup(file, home=home.path)
    home.identity.write_text("half of i")
    with pytest.raises(EnvironmentFault, match="--force"):
        restore(file, home=home.path)
    restore(file, home=home.path, force=True)
    assert key_in(home) == key
    assert (home.path / "identity.key.damaged").read_text() == "half of i"


def test_a_restored_identity_goes_on_above_all_numbers_that_it_may_have_used(home: Home, tmp_path: Path) -> None:
    store = Store(home.database, now=lambda: 1000.0)  # long ago
    store.commit_sequence(1_000_500)
    store.close()
    elsewhere = Store(tmp_path / "elsewhere.db")  # where the same identity has been in the meantime
    used, version = elsewhere.sequence_start(), elsewhere.last_position().version
    elsewhere.close()
    backup(tmp_path / "backup.pem", home=home.path)
    restore(tmp_path / "backup.pem", home=home.path)
    store = Store(home.database)
    assert store.sequence_start() >= used
    assert store.last_position().version >= version
    store.commit_sequence(2**53)
    store.close()
    restore(tmp_path / "backup.pem", home=home.path)
    store = Store(home.database)
    assert store.sequence_start() == 2**53, "numbers never fall"
    store.close()


def test_rotating_begins_anew_keeps_the_old_and_says_what_it_means(home: Home, capsys: Captured) -> None:
    old = key_in(home)
    rotate(home=home.path)
    said = capsys.readouterr().out
    assert key_in(home) != old
    assert key_in(home).hex() in said
    assert "admitted or invited again" in said
    aside = home.path / f"identity.key.{old[:4].hex()}"
    assert str(aside) in said
    assert Identity.load(aside).key == old


def test_a_running_node_keeps_its_identity(home: Home, tmp_path: Path) -> None:
    """Failure 7."""
    backup(tmp_path / "backup.pem", home=home.path)
    before = home.identity.read_bytes()
    with home.lock():
        with pytest.raises(UsageError, match="another process lives in"):
            rotate(home=home.path)
        with pytest.raises(UsageError, match="another process lives in"):
            restore(tmp_path / "backup.pem", home=home.path, force=True)
    assert home.identity.read_bytes() == before


def test_without_a_node_every_verb_says_what_to_do(tmp_path: Path) -> None:
    for verb in (show, rotate):
        with pytest.raises(UsageError, match="shoal init"):
            verb(home=tmp_path / "none")
    with pytest.raises(UsageError, match="shoal init"):
        backup(tmp_path / "b.pem", home=tmp_path / "none")
    assert list(tmp_path.iterdir()) == []
