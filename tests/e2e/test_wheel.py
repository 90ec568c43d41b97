"""What is published installs and runs on its own: sdist → wheel → a clean environment outside the repository."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("node", "protocol", "trainer", "defenses")
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _run(*command: str | Path, cwd: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment)
    assert done.returncode == 0, f"{command} exited {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _sources() -> set[str]:
    return {
        str(path.relative_to(REPOSITORY))
        for package in PACKAGES
        for path in (REPOSITORY / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that was built from it (not from the work tree)."""
    out = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, REPOSITORY, cwd=out)
    (sdist,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def clean(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has the dependencies of this one, and Shoal from the wheel alone."""
    home = tmp_path_factory.mktemp("clean")
    _run(sys.executable, "-m", "venv", "--without-pip", home / "venv", cwd=home)
    python = home / "venv" / "bin" / "python"
    (site,) = (home / "venv" / "lib").glob("python*/site-packages")
    # A folder named in a .pth file is searched, but .pth files inside it are not obeyed: the editable install of this
    # environment stays out, while its dependencies need no second download.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    install = ("install", "--no-deps", "--no-index", "--ignore-installed", built[1])
    _run(sys.executable, "-m", "pip", "--python", python, *install, cwd=home)
    return home


def test_the_wheel_and_the_sdist_hold_every_source_file_and_nothing_beside(built: tuple[Path, Path]) -> None:
    sdist, wheel = built
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}
    assert names == {f"shoal/{name}" for name in _sources()}
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert _sources() <= packed


def test_the_command_runs_outside_the_repository(clean: Path) -> None:
    assert PROJECT["version"] in _run(clean / "venv" / "bin" / "shoal", "version", cwd=clean)


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_comes_from_the_wheel(clean: Path, package: str) -> None:
    code = f"import shoal.{package} as it; print(it.__file__)"
    place = Path(_run(clean / "venv" / "bin" / "python", "-c", code, cwd=clean).strip())
    assert place.is_relative_to(clean), f"shoal.{package} was taken from {place}"
