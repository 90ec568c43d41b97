"""Tasks by name: what is known, what is refused and how the message helps."""

import json
from pathlib import Path

import pytest

from shoal.protocol.errors import UsageError
from shoal.protocol.manifest import TaskEntry
from shoal.trainer.tasks.registry import TASK_SETS, TaskRegistry, TaskSpec, known_tasks, make_task


def test_unknown_task_names_the_near_ones() -> None:
    with pytest.raises(UsageError, match=r"strings/revers.*did you mean strings/reverse.*shoal tasks"):
        make_task("strings/revers")
    with pytest.raises(UsageError, match="did you mean rg/chain_sum"):
        make_task("rg/chainsum")
    with pytest.raises(UsageError, match="unknown task 'qqqqqq' "):
        make_task("qqqqqq")


def test_unknown_task_ends_with_the_usage_exit_code() -> None:
    with pytest.raises(UsageError) as caught:
        make_task("strings/nothing")
    assert caught.value.exit_code == 2


def test_string_tasks_take_no_config() -> None:
    with pytest.raises(UsageError, match="takes no config, got length"):
        make_task("strings/copy", {"length": 3})


def test_sets_can_all_be_made() -> None:
    assert len(TASK_SETS["strings"]) == 8
    assert len(TASK_SETS["sapo9"]) == 9
    registry = TaskRegistry([*TASK_SETS["strings"], *TASK_SETS["sapo9"]])
    assert registry.names[0] == "strings/reverse"
    assert registry.names[-1] == "rg/binary_matrix"
    assert set(registry.names) <= set(known_tasks())


def test_registry_refuses_doubles_and_nothing() -> None:
    with pytest.raises(UsageError, match="named twice"):
        TaskRegistry([TaskSpec("strings/copy"), TaskSpec("strings/copy")])
    with pytest.raises(UsageError, match="name at least one"):
        TaskRegistry([])
    with pytest.raises(UsageError, match="not one of this swarm's: strings/copy"):
        TaskRegistry([TaskSpec("strings/copy")]).task("strings/last")


def test_prompts_are_cached() -> None:
    registry = TaskRegistry([TaskSpec("strings/copy")])
    assert registry.prompt("strings/copy", 1, 2) is registry.prompt("strings/copy", 1, 2)
    assert registry.prompt("strings/copy", 1, 2).text != registry.prompt("strings/copy", 1, 3).text


def test_spec_survives_json() -> None:
    spec = TaskSpec("rg/chain_sum", 3, {"max_terms": 2}, "ab")
    assert TaskSpec(**json.loads(json.dumps(spec.to_dict()))) == spec


def test_registry_takes_manifest_entries() -> None:
    registry = TaskRegistry([TaskEntry(name="strings/sort", weight=2)])
    assert registry.names == ("strings/sort",)


def test_manifest_pin_reaches_the_data_set(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "1+1?", "answer": "2"}\n')
    with pytest.raises(UsageError, match="not the pinned data set"):
        TaskRegistry([TaskSpec("jsonl/q", config={"path": str(path)}, data_sha256="0" * 64)])


def test_plug_ins_come_from_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parity_plugin.py").write_text(
        "from shoal.trainer.tasks.base import Prompt\n"
        "class Parity:\n"
        "    inline, max_tokens, max_chars = True, 4, 16\n"
        "    def __init__(self, name, config):\n"
        "        self.name = name\n"
        "    def prompt(self, seed, index):\n"
        "        return Prompt(self.name, seed, index, f'{index} is', ('even', 'odd')[index % 2])\n"
        "    def grade(self, prompt, completion):\n"
        "        return float(completion.strip() == prompt.answer)\n"
    )
    (tmp_path / "parity-1.dist-info").mkdir()
    (tmp_path / "parity-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: parity\nVersion: 1\n")
    (tmp_path / "parity-1.dist-info" / "entry_points.txt").write_text(
        "[shoal.tasks]\nmine/parity = parity_plugin:Parity\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    registry = TaskRegistry([TaskSpec("mine/parity")])
    prompt = registry.prompt("mine/parity", 0, 3)
    assert (prompt.text, registry.task("mine/parity").grade(prompt, " odd")) == ("3 is", 1.0)
    assert "mine/parity" in known_tasks()
