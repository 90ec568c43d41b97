"""The images agree with the rest of the repository: pins, port, settings, and what may travel into a build."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from container_files import DOCKER, REPOSITORY, Stage, stages, steps

from shoal.node.layers import load
from shoal.node.options import NetworkOptions

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
both = pytest.mark.parametrize("image", ["Dockerfile", "Dockerfile.gpu"])


def _shell(script: str) -> str:
    command, path = ["/bin/sh", "-euc", script], {"PATH": os.environ["PATH"]}
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, env=path, check=True).stdout


def _only(stage: Stage, words: str) -> str:
    found = [command for command in stage.commands() if words in command]
    assert len(found) == 1, words
    return found[0]


@both
def test_every_stage_has_the_one_base_and_that_is_pinned_by_tag(image: str) -> None:
    assert steps(DOCKER / image)[0] == ("ARG", "BASE=python:3.11-slim-bookworm")
    found = stages(DOCKER / image)
    assert {stage.base for stage in found.values()} - set(found) == {"${BASE}"}


@both
def test_nothing_is_installed_but_what_is_pinned(image: str) -> None:
    for stage in stages(DOCKER / image).values():
        for command in stage.commands():
            assert not re.search(r"\b(curl|wget|git)\b", command)
            if re.search(r"\bpip\b.* install ", command):
                pinned = "--constraint constraints.txt" in command or "--no-deps" in command
                assert pinned or re.search(r"==\$\{\w+}", command), command


@both
def test_torch_is_the_pin_that_make_installs_from_the_index_that_make_asks(image: str) -> None:
    builder = stages(DOCKER / image)["builder"]
    in_image = re.search(r'"\$\((sed .*)\)"$', _only(builder, "^torch=="))
    in_make = re.search(r"^TORCH := \$\(shell (.*)\)$", MAKEFILE, re.MULTILINE)
    index = re.search(r"^TORCH_CPU_INDEX \?= (.*)$", MAKEFILE, re.MULTILINE)
    assert in_image
    assert in_make
    assert index
    assert re.fullmatch(r"torch==[\d.]+\n", _shell(in_image[1]))
    assert _shell(in_image[1]) == _shell(in_make[1])
    assert [step.text for step in builder.all("ARG")] == ([f"TORCH_INDEX={index[1]}"] if image == "Dockerfile" else [])


@both
def test_the_dependencies_are_those_of_the_project(image: str) -> None:
    builder = stages(DOCKER / image)["builder"]
    python, flag, program, into, file = shlex.split(_only(builder, "tomllib"))
    assert (python, flag, into) == ("python", "-c", ">")
    printed = _shell(shlex.join([sys.executable, "-c", program]))
    assert printed.splitlines() == PROJECT["project"]["dependencies"]
    assert _only(builder, "--build-constraint constraints.txt").endswith(f"--requirement {file}")


@both
def test_the_node_runs_as_nobody_else_on_its_documented_port(image: str) -> None:
    found = stages(DOCKER / image)
    runtime = found["runtime"]
    user, group = runtime.last("USER").text.split(":")
    assert min(int(user), int(group)) >= 1000
    assert f"--uid {user} --gid {group}" in _only(runtime, "useradd")
    assert {stage.last("USER").text for stage in found.values() if stage.all("USER")} == {f"{user}:{group}"}
    assert runtime.last("ENTRYPOINT").words() + runtime.last("CMD").words() == ["shoal", "run"]
    port = NetworkOptions().port
    assert runtime.last("EXPOSE").text.split() == [f"{port}/tcp", f"{port}/udp"]
    assert runtime.environment()["SHOAL_HOME"] == runtime.last("VOLUME").text == "/data"


@both
def test_no_compiler_and_no_installer_reach_the_image(image: str) -> None:
    found = stages(DOCKER / image)
    assert [step.text for step in found["runtime"].all("COPY")] == [
        "--from=builder /opt/shoal /opt/shoal",
        "docker/healthcheck.py /opt/shoal/healthcheck.py",
    ]
    assert "--without-pip /opt/shoal" in _only(found["builder"], "-m venv")
    assert _only(found["runtime"], "apt-get install").endswith("--no-install-recommends libgmp10")


def test_the_images_differ_in_torch_and_in_what_a_gpu_needs_only() -> None:
    cpu, gpu = stages(DOCKER / "Dockerfile"), stages(DOCKER / "Dockerfile.gpu")
    allowed = r"TORCH_INDEX=|NVIDIA_VISIBLE_DEVICES=|.*\^torch==|find /opt/shoal .*-name tests|.*image\.title="
    for name in ("builder", "runtime"):
        different = {step.text for step in set(cpu[name].steps) ^ set(gpu[name].steps)}
        assert different
        assert all(re.match(allowed, text) for text in different), different


@both
def test_settings_of_the_image_are_ones_that_the_node_knows(image: str, tmp_path: Path) -> None:
    environment = stages(DOCKER / image)["runtime"].environment()
    config = load(tmp_path / "none", environment, {}).config
    assert config.learning.device == ("cuda" if image == "Dockerfile.gpu" else "cpu")


def test_what_the_wheel_is_made_of_reaches_the_builder_and_nothing_else() -> None:
    lines = [line for line in (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    assert lines[0] == "*"
    admitted = {line[1:] for line in lines if line.startswith("!")}
    project, wheel = PROJECT["project"], PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", "constraints.txt", project["readme"], *project["license-files"], *wheel["packages"]}
    assert admitted == needed | {"docker/healthcheck.py"}
    assert all((REPOSITORY / path).exists() for path in admitted)
    # Later lines win: these hold inside the admitted folders.
    assert lines[-3:] == ["**/__pycache__", "**/.*", "**/*.key"]
