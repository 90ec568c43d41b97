"""A taken port ends the process at once, with one clear line, the option to use, and exit code 2."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SHOAL = [sys.executable, "-c", "from shoal.node.cli import main; main()"]


def shoal(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(__file__).parents[2] / ".ns"),
        "OMP_NUM_THREADS": "1",
        "HOME": str(folder),
    }
    return subprocess.run([*SHOAL, *words], env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in a swarm of its own."""
    folder = tmp_path_factory.mktemp("ports")
    out = str(folder / "m.toml")
    for words in (("init",), ("swarm", "create", "ports", "--lineage", "any", "--out", out)):
        done = shoal(folder, *words)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("option", ["--port", "--health-port"])
def test_a_taken_port_is_one_clear_line_and_exit_code_2(founded: Path, option: str) -> None:
    with socket.socket() as taken, socket.socket() as free:
        for each in (taken, free):
            each.bind(("127.0.0.1", 0))
        taken.listen()
        port, other = taken.getsockname()[1], free.getsockname()[1]
        free.close()
        ports = {"--port": other, "--health-port": 0} | {option: port}
        flags = [word for name, number in ports.items() for word in (name, str(number))]
        done = shoal(founded, "run", "--bootstrap-only", "--host", "127.0.0.1", *flags)
    assert done.returncode == 2, done.stderr
    said = [line for line in done.stderr.splitlines() if str(port) in line]
    assert len(said) == 1, done.stderr
    assert option in said[0]
    assert "Traceback" not in done.stderr
    assert not (founded / ".local" / "share" / "shoal" / "control.sock").exists()
