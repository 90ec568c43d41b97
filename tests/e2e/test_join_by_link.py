"""A newcomer who has nothing but a link and an invite joins a swarm whose only node is a real process."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.node.sources import link_of, read_manifest
from shoal.protocol.errors import EnvironmentFault
from shoal.protocol.manifest import Manifest

SHOAL = Path(sys.executable).with_name("shoal")
DEADLINE = 120.0  # seconds; a start takes a few, on a busy machine many more


def shoal(*words: str) -> str:
    done = subprocess.run([str(SHOAL), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def founded(tmp_path: Path) -> Iterator[Manifest]:
    """An invite swarm with a bootstrap node that runs on its founder's home."""
    home, port = str(tmp_path / "founder"), str(free_port())
    shoal("init", "--home", home)
    place = f"/ip4/127.0.0.1/tcp/{port}"
    out = str(tmp_path / "m.toml")
    shoal(
        *("swarm", "create", "e2e", "--home", home, "--lineage", "any", "--out", out),
        *("--admission", "invite", "--bootstrap", place),
    )
    command = [str(SHOAL), "run", "--home", home, "--bootstrap-only", "--host", "127.0.0.1", "--port", port]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--health-port", "0"], stdout=log, stderr=log)
    try:
        yield read_manifest(out)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def asked(link: str) -> Manifest:
    """The manifest at a link, as soon as somebody answers there."""
    until = time.monotonic() + DEADLINE
    while True:
        try:
            return read_manifest(link)
        except EnvironmentFault:
            if time.monotonic() > until:
                raise


def test_a_link_and_an_invite_are_enough(founded: Manifest, tmp_path: Path):
    link = str(link_of(founded))
    assert asked(link) == founded
    founder = str(tmp_path / "founder")
    invite = shoal("swarm", "invite", str(tmp_path / "m.toml"), "--operator", "ada", "--home", founder)
    newcomer = str(tmp_path / "ada")
    shoal("init", "--home", newcomer)
    assert "operator ada" in shoal("swarm", "join", link, "--invite", invite.strip(), "--home", newcomer)
