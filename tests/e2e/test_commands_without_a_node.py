"""The command line on a machine where no node runs: clear lines, exit codes, no terminal, and a doctor that ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SHOAL = [sys.executable, "-c", "from shoal.node.cli import main; main()"]
PEER = "12D3KooWKRyzVWW6ChFjQjK4miCty85Niy48tpPV95XdKu1BcvMA"


def shoal(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2] / ".ns"), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    environment |= {"SHOAL_HOME": str(home)}
    return subprocess.run(
        [*SHOAL, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("arguments", [["status"], ["status", "--json"], ["peers"], ["pause"], ["resume"]])
def test_verbs_that_need_a_node_end_with_3_and_one_line(tmp_path: Path, arguments: list[str]) -> None:
    done = shoal(*arguments, home=tmp_path)
    assert done.returncode == 3, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("shoal: no ")
    assert str(tmp_path) in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_of_a_bare_home_advises_and_ends_with_0(tmp_path: Path) -> None:
    home = tmp_path / "not-yet"
    done = shoal("doctor", "--json", home=home)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    found = {check["name"]: check for check in report["checks"]}
    assert report["good"] is True
    assert "shoal init" in found["home"]["advice"]
    assert found["swarm"]["verdict"] == "warn"
    assert found["verifier"]["verdict"] == "ok"
    assert found["device"]["verdict"] in ("ok", "warn")
    assert set(found) == {
        *("python", "configuration", "home", "node", "disk", "device", "memory", "threads", "verifier"),
        *("clock", "port", "health port", "reachability", "swarm", "bootstraps"),
    }
    assert not home.exists(), "the doctor writes nothing"


def test_the_doctor_finds_what_keeps_a_node_from_running(tmp_path: Path) -> None:
    (tmp_path / "identity.key").write_text("x")
    (tmp_path / "identity.key").chmod(0o644)
    tmp_path.chmod(0o700)
    dead = f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}"
    (tmp_path / "config.toml").write_text(f'[learning]\nmodel = "nowhere"\n[network]\nbootstrap = ["{dead}"]\n')
    done = shoal("doctor", home=tmp_path)
    assert done.returncode == 1, done.stdout
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert any(line.startswith("fail home") and "private key" in line for line in lines)
    assert any("chmod 600" in line for line in lines)
    assert any(line.startswith("fail memory") and "nowhere" in line for line in lines)
    assert any(line.startswith("warn bootstraps") and "Connection refused" in line for line in lines)


def test_a_unit_is_printed(tmp_path: Path) -> None:
    done = shoal("service", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"--home {tmp_path}" in done.stdout
    assert "Type=notify" in done.stdout
