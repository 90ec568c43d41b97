"""The compose files: hardened throughout, one port open, time to drain; and what their shell lines and the check do."""

import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from container_files import DOCKER, REPOSITORY, chosen, compose, seconds, stages

from shoal.node.cli import app
from shoal.node.commands.service import STOP_SECONDS
from shoal.node.layers import load
from shoal.node.options import HealthOptions, NetworkOptions

SERVICES: dict[str, dict[str, Any]] = compose()["services"]
NODES = sorted(set(SERVICES) - {"bootstrap"})
KNOWN = {
    *("image", "build", "init", "restart", "read_only", "cap_drop", "security_opt", "tmpfs", "ulimits", "logging"),
    *("healthcheck", "entrypoint", "command", "depends_on", "stop_grace_period", "environment", "deploy"),
    *("volumes", "ports"),
}
each = pytest.mark.parametrize("name", sorted(SERVICES))


@each
def test_every_container_is_hardened_and_bounded(name: str) -> None:
    service = SERVICES[name]
    assert set(service) <= KNOWN
    assert service["read_only"] is True
    assert service["init"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["tmpfs"] == ["/tmp:size=256m,mode=1777,noexec,nosuid,nodev"]
    assert service["ulimits"]["core"] == 0
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}
    assert set(service["logging"]["options"]) == {"max-size", "max-file"}


def test_one_port_is_open_and_that_of_the_bootstrap() -> None:
    port = NetworkOptions().port
    assert SERVICES["bootstrap"]["ports"] == [f"{port}:{port}/tcp", f"{port}:{port}/udp"]
    assert not any("ports" in SERVICES[name] for name in NODES)


def test_a_node_has_time_to_finish_its_step() -> None:
    assert all(seconds(SERVICES[name]["stop_grace_period"]) >= STOP_SECONDS for name in NODES)
    assert all(service["restart"] == "unless-stopped" for service in SERVICES.values())


def test_every_home_is_a_named_volume_of_its_own() -> None:
    homes = [volume for service in SERVICES.values() for volume in service["volumes"] if volume.endswith(":/data")]
    assert sorted(homes) == sorted(f"{name}:/data" for name in SERVICES)
    assert set(compose()["volumes"]) == {*SERVICES, "swarm"}
    assert all("swarm:/swarm:ro" in SERVICES[name]["volumes"] for name in NODES)


@each
def test_settings_are_ones_that_the_node_knows(name: str, tmp_path: Path) -> None:
    environment = {key: chosen(value) for key, value in SERVICES[name]["environment"].items()}
    config = load(tmp_path / "none", environment, {}).config
    assert config.swarm == "/swarm/swarm.toml"
    assert config.network.announce == ()


def test_the_image_is_named_by_the_release_and_built_by_the_dockerfile() -> None:
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    for service in SERVICES.values():
        assert service["image"] == f"shoal:{version}"
        assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).samefile(DOCKER / "Dockerfile")


def test_the_gpu_file_gives_each_node_a_device_and_changes_nothing_of_its_hardening() -> None:
    services = compose("compose.gpu.yml")["services"]
    assert sorted(services) == NODES
    for service in services.values():
        assert set(service) == {"image", "build", "environment", "deploy"}
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
        assert [chosen(number) for number in device["device_ids"]] == ["0"]
        assert service["environment"] == {"SHOAL_LEARNING_DEVICE": "cuda"}
        assert service["image"] == SERVICES["node1"]["image"] + "-gpu"


# What the shell lines do. A stand-in for `shoal` notes its arguments and makes the manifest.

STAND_IN = '#!/bin/sh\nIFS="|"\necho "$*" >> "$CALLS"\nIFS=" "\nif [ "$1 $2" = "swarm create" ]; then : > "$5"; fi\n'


def _start(name: str, folder: Path, *arguments: str, **environment: str) -> list[str]:
    """Run a service's entrypoint with the manifests in `folder`; return the calls of shoal, words divided by |."""
    tool = folder / "bin" / "shoal"
    if not tool.exists():
        tool.parent.mkdir()
        tool.write_text(STAND_IN)
        tool.chmod(0o755)
    service, calls = SERVICES[name], folder / "calls"
    calls.unlink(missing_ok=True)
    words = [*service["entrypoint"], *(arguments or service["command"])]
    known = {key: chosen(value) for key, value in service["environment"].items()}
    known |= {"CALLS": str(calls), "PATH": f"{tool.parent}:{os.environ['PATH']}", **environment}
    here = {key: value.replace("/swarm/", f"{folder}/") for key, value in known.items()}
    subprocess.run([chosen(word).replace("/swarm/", f"{folder}/") for word in words], env=here, check=True)
    return [line.replace(f"{folder}/", "/swarm/") for line in calls.read_text().splitlines()]


def test_the_bootstrap_founds_a_swarm_once_and_names_its_public_address(tmp_path: Path) -> None:
    first = _start("bootstrap", tmp_path, SHOAL_NETWORK_ANNOUNCE="/ip4/203.0.113.5/tcp/47700")
    create = "swarm|create|local|--out|/swarm/swarm.toml|--bootstrap|/dns4/bootstrap/tcp/47700"
    assert first == ["init", f"{create}|/ip4/203.0.113.5/tcp/47700", "run|--bootstrap-only"]
    assert _start("bootstrap", tmp_path) == ["init", "run|--bootstrap-only"]
    words = first[1].split("|")
    _, bound, _ = app.parse_args(words, print_error=False, exit_on_error=False)
    assert bound.arguments["new"].bootstrap == tuple(words[-2:])


def test_the_bootstrap_founds_nothing_when_a_swarm_is_named(tmp_path: Path) -> None:
    assert _start("bootstrap", tmp_path, SHOAL_SWARM="https://example.org/a.toml") == ["init", "run|--bootstrap-only"]


def test_a_node_makes_its_home_first_and_passes_its_arguments_on(tmp_path: Path) -> None:
    assert _start("node1", tmp_path) == ["init", "run"]
    assert _start("node1", tmp_path, "swarm", "join", "two words") == ["init", "swarm|join|two words"]


# The health check


class _Health(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/healthz" else 404)
        self.end_headers()
        self.wfile.write(b"stuck in sampling\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def health() -> Iterator[tuple[HTTPServer, type[_Health]]]:
    handler = type("Health", (_Health,), {})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server, handler
    server.shutdown()
    thread.join()
    server.server_close()


def _ask(port: int) -> subprocess.CompletedProcess[str]:
    # A proxy that nobody runs: the check must not go through it.
    environment = {"SHOAL_HEALTH_PORT": str(port), "http_proxy": "http://127.0.0.1:9"}
    command = [sys.executable, "-IS", str(DOCKER / "healthcheck.py")]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_ends_as_the_node_says_and_shows_why(
    health: tuple[HTTPServer, type[_Health]], status: int, code: int
) -> None:
    server, handler = health
    handler.status = status
    done = _ask(server.server_port)
    assert (done.returncode, done.stdout) == (code, "stuck in sampling\n")


def test_a_node_that_does_not_answer_is_not_healthy() -> None:
    server = HTTPServer(("127.0.0.1", 0), _Health)
    server.server_close()
    done = _ask(server.server_port)
    assert done.returncode == 1
    assert done.stderr.startswith(f"no answer on port {server.server_port}: ")


def test_image_and_compose_file_run_the_one_check_where_the_node_listens() -> None:
    runtime = stages(DOCKER / "Dockerfile")["runtime"]
    words = re.findall(r'"([^"]*)"', runtime.last("HEALTHCHECK").text.partition(" CMD ")[2])
    assert all(service["healthcheck"]["test"] == ["CMD", *words] for service in SERVICES.values())
    assert f"docker/healthcheck.py {words[-1]}" in [step.text for step in runtime.all("COPY")]
    source = (DOCKER / "healthcheck.py").read_text(encoding="utf-8")
    assert f"\nDEFAULT_PORT = {HealthOptions().health_port}\n" in source
