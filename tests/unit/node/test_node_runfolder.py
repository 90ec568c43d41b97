"""The folder of a run: what is refused, what is kept, and what going on with a run means."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.node.config import SimulateConfig
from shoal.node.runfolder import METRICS, find_run, new_run
from shoal.protocol.errors import EnvironmentFault, UsageError


def config(out: Path, **run: Any) -> SimulateConfig:
    base = SimulateConfig()
    return replace(base, run=replace(base.run, out=out, **run))


def test_a_new_run_refuses_a_folder_with_a_run_unless_forced(tmp_path: Path) -> None:
    folder = new_run(config(tmp_path / "run"))
    folder.metrics.write({"event": "old"})
    folder.close()
    with pytest.raises(UsageError, match="--resume"):
        new_run(config(tmp_path / "run"))
    assert (tmp_path / "run" / METRICS).read_text() == '{"event":"old"}\n'
    new_run(config(tmp_path / "run", force=True)).close()
    assert (tmp_path / "run" / METRICS).read_text() == ""


def test_a_folder_with_other_things_is_never_cleared(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="not a run"):
        new_run(config(tmp_path, force=True))
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_folder_that_cannot_be_made_is_an_environment_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="writable folder") as error:
        new_run(config(tmp_path / "file" / "run"))
    assert error.value.exit_code == 3


def test_runs_are_numbered_when_no_folder_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = SimulateConfig()
    for expected in ("runs/1", "runs/2"):
        folder = new_run(base)
        folder.close()
        assert str(folder.path) == expected
    found, _ = find_run(replace(base, run=replace(base.run, resume=True)))
    found.close()
    assert str(found.path) == "runs/2"


def test_a_run_is_found_with_the_settings_it_was_begun_with(tmp_path: Path) -> None:
    begun = config(tmp_path / "run")
    begun = replace(begun, swarm=replace(begun.swarm, rounds=7, attack=("text:0.25",)))
    new_run(begun).close()
    folder, found = find_run(config(tmp_path / "run", resume=True))
    folder.close()
    assert found.plain() == begun.plain()


def test_other_settings_are_refused_when_going_on(tmp_path: Path) -> None:
    new_run(config(tmp_path / "run")).close()
    asked = config(tmp_path / "run", resume=True)
    with pytest.raises(UsageError, match="--rounds 9"):
        find_run(replace(asked, swarm=replace(asked.swarm, rounds=9)))


def test_without_a_run_there_is_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run to resume"):
        find_run(config(tmp_path, resume=True))


def test_records_are_rewound_to_a_checkpoint(tmp_path: Path) -> None:
    folder = new_run(config(tmp_path / "run"))
    folder.metrics.write({"round": 1})
    positions = folder.positions()
    folder.metrics.write({"round": 2})
    folder.rewind(positions)
    folder.metrics.write({"round": 3})
    folder.close()
    lines = (tmp_path / "run" / METRICS).read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"round": 1}, {"round": 3}]


def test_records_shorter_than_the_checkpoint_are_refused(tmp_path: Path) -> None:
    folder = new_run(config(tmp_path / "run"))
    with pytest.raises(EnvironmentFault, match="shorter"):
        folder.rewind([100, 0])
    folder.close()


def test_force_removes_what_a_run_wrote_and_nothing_else(tmp_path: Path) -> None:
    new_run(config(tmp_path / "run")).close()
    (tmp_path / "run" / "state" / "step-1").mkdir(parents=True)
    (tmp_path / "run" / "mine").mkdir()
    (tmp_path / "run" / "mine" / "notes.txt").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run" / "link").symlink_to(tmp_path / "elsewhere")
    new_run(config(tmp_path / "run", force=True)).close()
    assert (tmp_path / "run" / "mine" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "run" / "link").is_symlink()
    assert not (tmp_path / "run" / "state").exists()


def test_a_run_with_a_settings_file_for_tasks_is_found_again(tmp_path: Path) -> None:
    begun = config(tmp_path / "run")
    begun = replace(begun, swarm=replace(begun.swarm, task_config=tmp_path / "tasks.toml"))
    new_run(begun).close()
    folder, found = find_run(config(tmp_path / "run", resume=True))
    folder.close()
    assert found.swarm.task_config == tmp_path / "tasks.toml"


def test_a_folder_in_which_a_process_runs_is_refused(tmp_path: Path) -> None:
    running = new_run(config(tmp_path / "run"))
    with pytest.raises(UsageError, match="another process"):
        find_run(config(tmp_path / "run", resume=True))
    running.close()
    find_run(config(tmp_path / "run", resume=True))[0].close()
