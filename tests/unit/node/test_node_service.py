"""The printed unit: hardened, with the paths of this installation, and valid to systemd where it is there."""

import configparser
import os
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from shoal.node.commands.service import Installation, quoted, shoal_command, unit
from shoal.protocol.errors import UsageError

SYSTEM = Installation(["/opt/shoal/bin/shoal"], Path("/srv/node"), "shoal", gpu=False)


def settings(text: str) -> dict[str, list[str]]:
    """The settings of all sections; a unit may name one twice."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in text.splitlines():
        if line and not line.startswith(("#", "[")):
            name, _, value = line.partition("=")
            found[name].append(value)
    return found


def test_it_is_an_ini_file_with_three_sections() -> None:
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.read_string(unit(SYSTEM))
    assert parser.sections() == ["Unit", "Service", "Install"]


def test_what_the_service_manager_must_know() -> None:
    found = settings(unit(SYSTEM))
    assert found["Type"] == ["notify"]
    assert found["ExecStart"] == ["/opt/shoal/bin/shoal run --home /srv/node"]
    assert found["User"] == ["shoal"]
    assert found["Restart"] == ["on-failure"]
    assert found["RestartPreventExitStatus"] == ["2 3"]
    assert found["KillMode"] == ["mixed"]
    assert int(found["WatchdogSec"][0]) > 2 * 10, "the status line alone is renewed every ten seconds"
    assert int(found["TimeoutStopSec"][0]) >= 300, "long enough to finish a step and save"
    assert found["ReadWritePaths"] == ["/srv/node"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "read-only"),
        ("PrivateTmp", "yes"),
        ("PrivateDevices", "yes"),
        ("CapabilityBoundingSet", ""),
        ("LockPersonality", "yes"),
        ("RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6 AF_NETLINK"),
        ("SystemCallFilter", "@system-service"),
        ("RestrictNamespaces", "yes"),
        ("LimitCORE", "0"),
        ("UMask", "0077"),
    ],
)
def test_it_is_hardened(name: str, value: str) -> None:
    at_home = Installation(["/home/a/venv/bin/shoal"], Path("/srv/node"), "a", gpu=False)
    assert settings(unit(at_home))[name] == [value]


def test_homes_are_hidden_when_nothing_lies_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", "/opt/shoal")
    monkeypatch.setattr("sys.base_prefix", "/usr")
    assert settings(unit(SYSTEM))["ProtectHome"] == ["yes"]
    model = Installation(SYSTEM.command, SYSTEM.home, "shoal", False, (Path("/home/a/model"),))
    assert settings(unit(model))["ProtectHome"] == ["read-only"]
    monkeypatch.setattr("sys.base_prefix", "/root/.local/share/uv/python")
    assert settings(unit(SYSTEM))["ProtectHome"] == ["read-only"]


def test_executable_memory_is_not_forbidden_and_the_reason_stands_there() -> None:
    text = unit(SYSTEM)
    assert "MemoryDenyWriteExecute" not in settings(text)
    assert "# MemoryDenyWriteExecute is left out: torch" in text


def test_a_gpu_stays_visible() -> None:
    found = settings(unit(Installation(SYSTEM.command, SYSTEM.home, "shoal", gpu=True)))
    assert "PrivateDevices" not in found
    assert "ProtectClock" not in found


def test_a_home_below_var_lib_is_the_services_own() -> None:
    found = settings(unit(Installation(SYSTEM.command, Path("/var/lib/shoal"), "shoal", False)))
    assert found["StateDirectory"] == ["shoal"]
    assert "ReadWritePaths" not in found


def test_a_users_unit_has_what_works_without_privileges() -> None:
    text = unit(Installation(SYSTEM.command, SYSTEM.home, None, False))
    found = settings(text)
    assert "User" not in found
    assert "ProtectSystem" not in found
    assert found["NoNewPrivileges"] == ["yes"]
    assert found["WantedBy"] == ["default.target"]


def test_running_as_root_is_said() -> None:
    assert "would run as root" in unit(Installation(SYSTEM.command, SYSTEM.home, "root", False))
    assert "would run as root" not in unit(SYSTEM)


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("/srv/node", "/srv/node"),
        ("/srv/my node", '"/srv/my node"'),
        ("/srv/100%", "/srv/100%%"),
        ("/srv/$HOME", "/srv/$$HOME"),
        ('/srv/a"b', '"/srv/a\\"b"'),
        ("/srv/a\\b", '"/srv/a\\\\b"'),
    ],
)
def test_paths_are_taken_as_they_are(word: str, line: str) -> None:
    assert quoted(word, first=False) == line


@pytest.mark.parametrize("word", ["/srv/a\nExecStart=/bin/sh", "/srv/\x1b", "/srv/\u2028"])
def test_a_path_cannot_add_a_line(word: str) -> None:
    with pytest.raises(UsageError, match="cannot name"):
        unit(Installation(["/opt/shoal"], Path(word), "a", False))


@pytest.mark.parametrize("home", ["/srv/node", "/srv/my node 100% $HOME", "/var/lib/shoal"])
@pytest.mark.parametrize(("user", "gpu"), [("daemon", False), ("daemon", True), (None, False)])
def test_systemd_takes_it(tmp_path: Path, home: str, user: str | None, gpu: bool) -> None:
    text = unit(Installation(shoal_command(), Path(home), user, gpu))
    verify = shutil.which("systemd-analyze")
    if verify is None:  # the rest of this file has parsed it
        return
    path = tmp_path / "shoal.service"
    path.write_text(text)
    manager = "--system" if user else "--user"
    done = subprocess.run(
        [verify, manager, "verify", "--man=no", str(path)],
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    about_us = [line for line in done.stderr.splitlines() if "shoal" in line]
    assert done.returncode == 0, done.stderr
    assert about_us == [], done.stderr


def test_the_command_of_this_installation_exists() -> None:
    command = shoal_command()
    assert Path(command[0]).is_absolute()
    assert os.access(command[0], os.X_OK)
