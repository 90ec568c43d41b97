"""The home of a node: the same from anywhere, its owner's alone, and for one process at a time."""

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.node.home import LONGEST_SOCKET_PATH, Home
from shoal.protocol.errors import EnvironmentFault, UsageError

HOLD = """
import sys
from pathlib import Path
from shoal.node.home import Home
with Home(Path(sys.argv[1])).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(home: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3] / ".ns")},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_second_process_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    """Failure 7."""
    home = Home.make(tmp_path / "home")
    process = holder(home.path)
    with pytest.raises(UsageError, match=f"pid {process.pid} on .*, since 20"), home.lock():
        pass
    process.kill()
    process.wait()
    with (home.path / "lock").open("a") as left:
        left.write("more than the next one has to say " * 20)
    with home.lock():  # what a dead process left behind is no obstacle
        assert json.loads((home.path / "lock").read_text())["pid"] == os.getpid()


def test_a_home_is_its_owners_alone(tmp_path: Path) -> None:
    home = Home.make(tmp_path / "home")
    for folder in (home.path, home.checkpoints, home.blobs, home.swarms, home.log):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_home_is_the_same_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failure 8."""
    monkeypatch.delenv("SHOAL_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    found = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        found.append(Home.find().path)
    assert found == [tmp_path / "data" / "shoal"] * 2
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "other"))
    assert Home.find().path == tmp_path / "other"
    assert Home.find(Path("named")).path == tmp_path / "b" / "named"


def test_a_relative_folder_of_the_user_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOAL_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in ("data", ""):
        monkeypatch.setenv("XDG_DATA_HOME", folder)
        assert Home.find().path == tmp_path / ".local" / "share" / "shoal"


def test_a_user_without_a_folder_is_told_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("SHOAL_HOME", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(EnvironmentFault, match="name the node's with --home or SHOAL_HOME"):
        Home.find()


def test_a_file_system_without_locks_is_told_apart_from_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("shoal.node.home.fcntl.flock", refused)
    with pytest.raises(EnvironmentFault, match="on a local disk"), Home.make(tmp_path / "home").lock():
        pass


def test_a_home_without_a_node_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="shoal init"):
        Home.find(tmp_path).require_identity()


def test_a_home_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="cannot make the home"):
        Home.make(tmp_path / "file" / "home")


def test_a_long_path_gets_a_short_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1")
    short, long = Home(Path("/h")), Home(Path("/") / ("x" * LONGEST_SOCKET_PATH))
    assert short.socket == Path("/h/control.sock")
    assert long.socket.parent == Path("/run/user/1")
    assert len(str(long.socket)) < LONGEST_SOCKET_PATH
    assert long.socket != Home(Path("/") / ("y" * LONGEST_SOCKET_PATH)).socket
