"""The set-up that the make targets share: the pins are complete, and a Python that is too old is named."""

import importlib.metadata
import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[3]


def _pins() -> dict[str, str]:
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def _closure(wanted: list[str]) -> set[str]:
    """Names of all that is installed on behalf of these requirements on this machine."""
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(text), "") for text in wanted]
    while waiting:
        requirement, asked_by = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": asked_by}):
            continue
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting.extend((Requirement(text), extra) for text in _requires(name))
    return {name for name, _ in seen}


def _requires(name: str) -> list[str]:
    try:
        return importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:  # an optional package, or one for another kind of machine
        return []


def test_every_package_that_is_installed_on_our_behalf_is_pinned() -> None:
    pyproject = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    names = _closure(pyproject["project"]["dependencies"] + pyproject["dependency-groups"]["dev"])
    assert len(names) > 50
    assert names <= set(_pins())


def test_the_extras_are_pinned_too() -> None:
    pyproject = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    extras = pyproject["project"]["optional-dependencies"].values()
    assert {canonicalize_name(Requirement(text).name) for extra in extras for text in extra} <= set(_pins())


@pytest.mark.parametrize(
    ("version", "said"), [("3.10.4", "is Python 3.10.4."), (None, "is not there.")], ids=["old", "missing"]
)
def test_a_python_that_will_not_do_is_named_and_nothing_is_left_behind(
    tmp_path: Path, version: str | None, said: str
) -> None:
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "sed", "uname"):
        (tools / name).symlink_to(str(shutil.which(name)))
    python = tools / "python-of-old"
    if version is not None:
        python.write_text(f'#!/bin/bash\nif [[ $1 == --version ]]; then echo "Python {version}"; else exit 1; fi\n')
        python.chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if key != "MAKEFLAGS"} | {"PATH": str(tools)}
    command = [str(shutil.which("make")), "-C", str(tmp_path), "demo", f"PYTHON={python}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert "Shoal needs Python 3.11 or newer" in done.stderr
    assert said in done.stderr
    assert "make demo PYTHON=" in done.stderr
    assert not (tmp_path / ".venv").exists()
