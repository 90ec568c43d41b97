"""A skipped test that nobody listed fails the run, alone and in a parallel run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
SUITE = """
import pytest
def test_runs(): pass
@pytest.mark.skip(reason="no such machine")
def test_skipped(): pass
@pytest.mark.xfail(reason="known")
def test_known(): assert False
"""


def _suite(folder: Path, listing: str, module: str = SUITE) -> None:
    (folder / "conftest.py").write_text((TESTS / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "skips.toml").write_text(listing, encoding="utf-8")
    (folder / "test_it.py").write_text(module, encoding="utf-8")


def _run(folder: Path, *options: str, strict: str = "1") -> tuple[int, str]:
    environment = {key: value for key, value in os.environ.items() if key not in {"CI", "PYTEST_ADDOPTS"}}
    environment["SHOAL_STRICT_SKIPS"] = strict
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        str(folder),
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "parallel"])
def test_an_unlisted_skip_fails_the_run_and_is_named(tmp_path: Path, options: tuple[str, ...]) -> None:
    _suite(tmp_path, "")
    code, output = _run(tmp_path, *options)
    assert code == 1, output
    assert "test_it.py::test_skipped: Skipped: no such machine" in output
    assert "test_known:" not in output


def test_a_module_that_skips_itself_whole_is_seen_in_a_parallel_run(tmp_path: Path) -> None:
    _suite(tmp_path, "", "import pytest\npytest.importorskip('no_such_module_at_all')\ndef test_a(): pass\n")
    code, output = _run(tmp_path, "-n", "2")
    assert code == 1, output
    assert "test_it.py: " in output


def test_a_listed_skip_passes(tmp_path: Path) -> None:
    _suite(tmp_path, '[[skip]]\ntest = "test_it.py::test_sk*"\nreason = "no such machine in CI"\n')
    code, output = _run(tmp_path)
    assert code == 0, output


def test_an_entry_without_a_reason_is_refused(tmp_path: Path) -> None:
    _suite(tmp_path, '[[skip]]\ntest = "test_it.py::*"\n')
    code, output = _run(tmp_path)
    assert code == 4, output
    assert "each [[skip]] has a test and a reason" in output


def test_at_a_desk_the_policy_rests(tmp_path: Path) -> None:
    _suite(tmp_path, "")
    code, output = _run(tmp_path, strict="0")
    assert code == 0, output
