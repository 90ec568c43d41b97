"""The matrix as processes: cells that are there stay, one that fails takes no other with it, Ctrl-C ends cleanly."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.node.redteam.cells import NO_ATTACK, Cell
from shoal.node.redteam.run import Effort, Runner, Store

SHOAL = (sys.executable, "-c", "from shoal.node.cli import main; main()")
CONTROLS = ("redteam", "--attacks", "none", "--shares", "0", "--workers", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Runner]:
    store = Store(tmp_path_factory.mktemp("matrix") / "cells")
    cells = [
        Cell("text", 25, 0, "off", rounds=2),
        Cell(NO_ATTACK, 0, 0, "full", rounds=2, model="no/such/model"),
        Cell(NO_ATTACK, 0, 0, "full", rounds=2),
    ]
    with store.open():
        runner = Runner(store, Effort(workers=2), lambda _: None)
        runner.run(cells)
    return store, runner


def read(store: Store, cell: Cell) -> dict[str, Any]:
    return json.loads(store.file(cell).read_bytes())


def test_a_cell_that_fails_says_why_and_takes_no_other_with_it(folder: tuple[Store, Runner]) -> None:
    store, runner = folder
    assert [*runner.tidings.failed] == ["vertical-none-0-full-2-0-no_such_model"]
    assert "no/such/model" in runner.tidings.failed["vertical-none-0-full-2-0-no_such_model"]
    assert len(runner.tidings.done) == 2
    assert not store.work.exists(), "what is thrown away is gone"


def test_an_attacked_cell_tells_senders_apart(folder: tuple[Store, Runner]) -> None:
    cell = Cell("text", 25, 0, "off", rounds=2)
    found = read(folder[0], cell)
    assert Cell(**found["cell"]) == cell
    assert [at for at, _, _ in found["shown"]["text"]] == [0, 2]
    assert {asked for _, _, asked in found["shown"]["text"]} == {3 * 128}, "three honest nodes"
    assert set(found["accuracy"]) == {"0", "1", "2"}
    senders = {(sender, rewarded) for sender, rewarded, *_ in found["rows"]}
    assert senders >= {("honest", False), ("attacker", True)}
    assert {outcome for _, _, _, outcome, _, _ in found["rows"]} == {"accept"}, "nothing is on"
    assert found["timing"]["screen"]["seconds"] > 0


def test_a_control_looks_for_the_behaviour_of_every_attack(folder: tuple[Store, Runner]) -> None:
    found = read(folder[0], Cell(NO_ATTACK, 0, 0, "full", rounds=2))
    assert set(found["shown"]) > {"text", "math", "length"}
    assert {sender for sender, *_ in found["rows"]} == {"honest"}


def shoal(*arguments: str, **options: Any) -> "subprocess.Popen[str]":
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    return subprocess.Popen([*SHOAL, *arguments], stdout=subprocess.PIPE, text=True, env=environment, **options)


def test_ctrl_c_ends_with_a_report_on_the_cells_there_are(folder: tuple[Store, Runner], tmp_path: Path) -> None:
    there = Cell(NO_ATTACK, 0, 0, "full", rounds=2)
    kept = Path(shutil.copy2(folder[0].file(there), tmp_path)).stat()
    command = (*CONTROLS, "--rounds", "2", "--out", str(tmp_path))
    with shoal(*command, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1 of 3 cells are there, 2 to run\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: every process of the command gets it
        said = process.stdout.read()
        assert process.wait() == 130
    assert "1 of 3 cells run, the rest is missing" in said
    assert "interrupted" in said
    assert (tmp_path / "redteam.html").exists()
    assert not (tmp_path / ".work").exists()
    assert (tmp_path / f"{there.name}.json").stat().st_mtime_ns == kept.st_mtime_ns, "it was run again"


def test_a_spent_budget_only_writes_the_report(tmp_path: Path) -> None:
    with shoal(*CONTROLS, "--budget", "0", "--json", "--out", str(tmp_path)) as process:
        found = json.loads(process.stdout.read() if process.stdout else "")
        assert process.wait() == 0
    assert found["run"] == 0
    assert len(found["missing"]) == 3
    assert {one["verdict"] for one in found["targets"]["default"]} == {""}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--attacks", "nope"), "choose from none, text"),
        (("--ablate", "schema"), "no defence layer"),
        (("--shares", "ten"), "whole numbers separated by commas"),
        (("--workers", "0"), "must be at least 1"),
        (("--budget", "-5"), "--budget -5: give seconds, or 0"),
        (("--core", "--attacks", "flood"), "--attacks flood: not in that set"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    with shoal("redteam", *arguments, "--out", str(tmp_path / "out"), stderr=subprocess.PIPE) as process:
        out, error = process.communicate()
    assert process.returncode == 2
    assert out == ""
    assert error.count("\n") == 1
    assert said in error
    assert not (tmp_path / "out").exists()


def test_the_list_states_what_is_expected_of_each_attack() -> None:
    with shoal("redteam", "--list", "--json") as process:
        found = json.loads(process.stdout.read() if process.stdout else "")
    assert found["text"]["plants"] is True
    assert found["replay"]["layer"] == "header"
    assert all(one["why"] for one in found.values())


def test_one_process_at_a_time_has_a_folder(tmp_path: Path) -> None:
    with Store(tmp_path).open(), shoal(*CONTROLS, "--out", str(tmp_path), stderr=subprocess.PIPE) as process:
        _, error = process.communicate()
        assert process.returncode == 2
    assert "another process is running" in error
