"""Checkpoints are whole or not there: after a kill, on a full disk, and with damaged files."""

import multiprocessing
import os
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.trainer.checkpoint import load_latest, save

STATE = {
    "none": None,
    "flag": True,
    "count": 2**63,
    "rate": 0.1,
    "name": "Größe",
    "key": b"\x00\xff",
    "list": [1, [2.5, "x"]],
    "by_round": {7: {"seen": b"a"}},
}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file grow beyond `size`: what a full disk looks like to the writer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_was_saved_comes_back_bit_for_bit(tmp_path: Path) -> None:
    tensors = {
        "w": torch.randn(3, 5, generator=torch.Generator().manual_seed(0)),
        "half": torch.tensor([1.5, float("inf")], dtype=torch.bfloat16),
        "step": torch.tensor(7),
        "generator": torch.Generator().manual_seed(3).get_state(),
        "odd": torch.tensor([float("nan"), -0.0]),
        "empty": torch.empty(0, 4),
    }
    path = save(tmp_path, 12, tensors, STATE)
    saved = load_latest(tmp_path)
    assert saved is not None
    assert (saved.step, saved.state, saved.path, saved.skipped) == (12, STATE, path, ())
    assert saved.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        back = saved.tensors[name]
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(
            back.view(torch.uint8) if back.ndim else back, tensor.view(torch.uint8) if tensor.ndim else tensor
        )


def test_tied_weights_and_views_are_stored_and_come_back(tmp_path: Path) -> None:
    whole = torch.arange(1000.0)
    tensors = {"embed": whole, "head": whole, "part": whole[10:20], "turned": whole.view(10, 100).t()}
    path = save(tmp_path, 1, tensors, {})
    assert (path / "tensors.safetensors").stat().st_size < 2.3 * 4 * 1000
    saved = load_latest(tmp_path)
    assert saved is not None
    assert all(torch.equal(saved.tensors[name], tensor) for name, tensor in tensors.items())
    assert torch.equal(whole, torch.arange(1000.0))


def test_the_newest_is_read_and_the_last_few_are_kept(tmp_path: Path) -> None:
    for step in (3, 20, 100):
        save(tmp_path, step, {"w": torch.tensor([float(step)])}, {"step": step}, keep=2)
    saved = load_latest(tmp_path)
    assert saved is not None
    assert (saved.step, saved.state["step"], saved.tensors["w"].item()) == (100, 100, 100.0)
    assert names(tmp_path) == ["step-0000000020-000", "step-0000000100-000"]


def test_a_step_saved_again_wins_over_its_first_save(tmp_path: Path) -> None:
    for attempt in range(3):
        save(tmp_path, 5, {}, {"attempt": attempt}, keep=2)
    saved = load_latest(tmp_path)
    assert saved is not None
    assert saved.state == {"attempt": 2}
    assert len(names(tmp_path)) == 2


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert load_latest(tmp_path) is None
    assert load_latest(tmp_path / "absent") is None


@pytest.mark.parametrize("victim", ["tensors.safetensors", "state.msgpack", "contents.json"])
@pytest.mark.parametrize("damage", ["removed", "cut", "flipped"])
def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path: Path, victim: str, damage: str) -> None:
    save(tmp_path, 1, {"w": torch.ones(9)}, {"good": 1})
    path = save(tmp_path, 2, {"w": torch.zeros(9)}, {"good": 2}) / victim
    data = bytearray(path.read_bytes())
    if damage == "removed":
        path.unlink()
    else:
        data[len(data) // 2] ^= 0x10
        path.write_bytes(data[:-1] if damage == "cut" else data)
    saved = load_latest(tmp_path)
    assert saved is not None
    assert (saved.step, saved.state) == (1, {"good": 1})
    assert len(saved.skipped) == 1
    assert saved.skipped[0].startswith("step-0000000002-000: ")


def test_a_half_written_one_is_ignored_and_cleared_away(tmp_path: Path) -> None:
    finished = save(tmp_path, 1, {}, {"good": 1})
    finished.rename(tmp_path / ".writing-0000000009-1")
    assert load_latest(tmp_path) is None
    save(tmp_path, 2, {}, {})
    assert names(tmp_path) == ["step-0000000002-000"]


@pytest.mark.parametrize("state", [{"big": b"x" * 9000}, {}])
def test_a_full_disk_is_one_clear_line_and_the_earlier_checkpoint_stays(tmp_path: Path, state: dict) -> None:
    save(tmp_path, 1, {"w": torch.ones(4)}, {"good": 1}, keep=1)
    tensors = {} if state else {"w": torch.zeros(9000)}
    with largest_file(4096), pytest.raises(EnvironmentFault, match=r"step 2 .*too large.* earlier ones stay") as caught:
        save(tmp_path, 2, tensors, state, keep=1)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3
    assert names(tmp_path) == ["step-0000000001-000"]
    saved = load_latest(tmp_path)
    assert saved is not None
    assert saved.state == {"good": 1}
    save(tmp_path, 2, tensors, state, keep=1)  # and it works again when there is room
    assert names(tmp_path) == ["step-0000000002-000"]


def test_a_folder_that_cannot_be_is_an_environment_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="file"):
        save(tmp_path / "file", 1, {}, {})


def test_state_of_other_types_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for wrong in ({"o": object()}, {"n": 2**64}, {"s": {1, 2}}):
        with pytest.raises(UsageError, match="plain types"):
            save(tmp_path / "new", 1, {}, wrong)
    with pytest.raises(UsageError, match="at least one"):
        save(tmp_path / "new", 1, {}, {}, keep=0)
    assert not (tmp_path / "new").exists()


def save_without_end(folder: Path, first: int, ready: Connection) -> None:
    """Save step after step until killed; each checkpoint holds its own step in tensors and state."""
    for step in range(first, first + 1_000_000):
        save(folder, step, {"w": torch.full((40_000,), float(step))}, {"step": step, "pad": bytes(5000)})
        if step == first:
            ready.send(step)


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["shoal.trainer.checkpoint"])
    moments = random.Random(11)
    reached, unfinished = 0, 0
    for _ in range(12):
        ours, theirs = context.Pipe()
        process = context.Process(target=save_without_end, args=(tmp_path, reached + 1, theirs))
        process.start()
        assert ours.recv() == reached + 1
        process.join(moments.uniform(0.0, 0.03))  # it never ends by itself
        process.kill()
        process.join()
        assert process.exitcode == -9
        unfinished += any(name.startswith(".writing-") for name in os.listdir(tmp_path))
        saved = load_latest(tmp_path)
        assert saved is not None
        assert saved.step > reached
        assert saved.skipped == ()  # what has a finished name is whole
        assert saved.state["step"] == saved.step
        assert torch.equal(saved.tensors["w"], torch.full((40_000,), float(saved.step)))
        reached = saved.step
    assert unfinished > 0  # otherwise no kill fell into a save, and nothing was tested
