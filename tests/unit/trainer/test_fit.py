"""The size of a forward: fixed unless memory is asked, near what is really kept, halved when memory runs out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_policy import gradients, random_rows, tiny_model, tiny_policy

from shoal.protocol.errors import EnvironmentFault
from shoal.trainer import step as step_module
from shoal.trainer.algorithm import OptimizerSpec, recipe
from shoal.trainer.batch import Row
from shoal.trainer.fit import FEWEST, MOST, Room, available, kept_bytes, room, to_come
from shoal.trainer.logprobs import completion_logps
from shoal.trainer.packing import pad_packs
from shoal.trainer.step import Trainer

FOUND = OptimizerSpec(micro_tokens=None)


def really_kept(model: Any, rows: list[Row], checkpointing: bool) -> int:
    """Bytes of all different storages that a forward saves for its backward, weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    storages: dict[int, Any] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage  # held, so that its place is not given away
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        total = completion_logps(model, pad_packs([rows], pad_id=0), False, checkpointing)[0].sum()
    del total
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 1, "intermediate_size": 300}])
def test_the_estimate_is_near_what_a_forward_keeps(checkpointing: bool, changes: dict[str, int]) -> None:
    sizes = {"hidden_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 256} | changes
    model, shallower = (tiny_model(num_hidden_layers=layers, **sizes) for layers in (6, 5))
    rows = [Row(0, [2] * 32, [3] * 120, 0.0) for _ in range(4)]
    kept = really_kept(model, rows, checkpointing)
    if checkpointing:  # going back, one layer's own tensors are there as well
        kept += really_kept(model, rows, False) - really_kept(shallower, rows, False)
    assert 0.8 * kept < kept_bytes(model, 32 + 4 * 120, checkpointing) < 1.25 * kept


def test_a_fixed_size_stands_whatever_memory_says() -> None:
    found = room(tiny_model(), OptimizerSpec(micro_tokens=77), may_checkpoint=True, free=0.0)
    assert (found.tokens, found.checkpointing, found.fixed) == (77, False, True)
    assert OptimizerSpec().micro_tokens == 2048


def test_the_size_found_fits_and_twice_as_much_would_not() -> None:
    model = tiny_model(num_hidden_layers=4)
    for free in (3e6, 1e7, 4e7):
        found = room(model, FOUND, may_checkpoint=False, free=free)
        left = 0.8 * free - to_come(model)
        assert FEWEST <= found.tokens <= MOST
        assert kept_bytes(model, found.tokens, False) <= left < kept_bytes(model, 2 * found.tokens, False)
        assert not found.fixed


def test_training_takes_three_numbers_for_a_weight_and_the_engine_one() -> None:
    model = tiny_model()
    count = sum(p.numel() for p in model.parameters())
    assert to_come(model) == 16 * count
    assert to_come(model.requires_grad_(False)) == 4 * count


def test_checkpointing_comes_where_memory_is_short_and_the_model_can() -> None:
    model = tiny_model(num_hidden_layers=8)
    short = (to_come(model) + kept_bytes(model, 512, False)) / 0.8
    assert room(model, FOUND, may_checkpoint=True, free=short).checkpointing
    assert room(model, FOUND, may_checkpoint=True, free=short).tokens > 512
    assert not room(model, FOUND, may_checkpoint=False, free=short).checkpointing
    assert not room(model, FOUND, may_checkpoint=True, free=100 * short).checkpointing
    wanted = OptimizerSpec(micro_tokens=None, checkpointing=True)
    assert room(model, wanted, may_checkpoint=True, free=100 * short).checkpointing


def test_no_memory_gives_the_smallest_forward() -> None:
    assert room(tiny_model(), FOUND, may_checkpoint=False, free=0.0).tokens == FEWEST


def short_of(tokens: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """`micro_batches` on a device that has no memory for a larger budget."""

    def limited(rows: Any, budget: int, share: bool) -> Any:
        if budget > tokens:
            raise torch.OutOfMemoryError("no memory")
        return real(rows, budget, share)

    return limited


def test_when_memory_runs_out_the_step_is_done_again_with_half(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = recipe("grpo", minibatches=1)
    plenty, short = Trainer(tiny_policy(), spec), Trainer(tiny_policy(), spec, FOUND)
    short.room = Room(512, False, fixed=False)
    taken = [gradients(trainer) for trainer in (plenty, short)]
    plenty.update(random_rows())
    monkeypatch.setattr(step_module, "micro_batches", short_of(128, step_module.micro_batches))
    report = short.update(random_rows())
    assert report.counts["halved_forwards"] == 2
    assert short.room.tokens == 128
    for name, gradient in taken[0][0].items():
        assert torch.allclose(gradient, taken[1][0][name], atol=1e-12)
    assert short.update(random_rows(seed=1)).counts["halved_forwards"] == 0


def test_what_a_failed_attempt_had_gathered_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = recipe("grpo", minibatches=1)
    plenty, short = Trainer(tiny_policy(), spec), Trainer(tiny_policy(), spec, FOUND)
    short.room = Room(128, False, fixed=False)
    taken = [gradients(trainer) for trainer in (plenty, short)]
    expected = plenty.update(random_rows())
    real, calls = step_module.loss, []

    def failing_once(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("no memory")
        return real(*args)

    monkeypatch.setattr(step_module, "loss", failing_once)
    monkeypatch.setattr(step_module, "micro_batches", lambda rows, budget, share: [[[i]] for i in range(len(rows))])
    report = short.update(random_rows())
    assert report.counts["halved_forwards"] == 1
    assert report.loss == pytest.approx(expected.loss, abs=1e-12)
    for name, gradient in taken[0][0].items():
        assert torch.allclose(gradient, taken[1][0][name], atol=1e-12)


@pytest.mark.parametrize("bound", [Room(512, False), Room(FEWEST, False, fixed=False), Room(512, True)])
def test_what_cannot_be_halved_says_what_to_do(bound: Room) -> None:
    def fail() -> None:
        raise torch.OutOfMemoryError("no memory")

    said = "shorter completions" if bound.checkpointing else "switch checkpointing on"
    with pytest.raises(EnvironmentFault, match=said):
        bound.attempt(fail)


def machine(folder: Path, group: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A proc and a cgroup tree with 1,000 kB available."""
    proc, cgroups = folder / "proc", folder / "cgroups"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 5000 kB\nMemAvailable: 1000 kB\n")
    (proc / "self" / "cgroup").write_text(group)
    for name, content in files.items():
        (cgroups / name).parent.mkdir(parents=True, exist_ok=True)
        (cgroups / name).write_text(content)
    return proc, cgroups


@pytest.mark.parametrize(
    ("group", "files", "left"),
    [
        ("0::/\n", {}, 1_024_000),
        ("0::/a/b\n", {"a/memory.max": "500000", "a/memory.current": "300000", "a/b/memory.max": "max"}, 200_000),
        (
            "0::/a\n",
            {
                "a/memory.max": "500000",
                "a/memory.current": "300000",
                "a/memory.stat": "anon 1\ninactive_file 100000\n",
            },
            300_000,
        ),
        (
            "4:memory:/x\n3:cpu:/y\n",
            {"memory/x/memory.limit_in_bytes": "90000", "memory/x/memory.usage_in_bytes": "20000"},
            70_000,
        ),
        ("0::/a\n", {"a/memory.max": "5", "a/memory.current": "300000"}, 0),
        ("0::/a\n", {"a/memory.max": "9999999999", "a/memory.current": "1"}, 1_024_000),
    ],
)
def test_memory_is_what_the_machine_and_every_group_leave(
    tmp_path: Path, group: str, files: dict[str, str], left: int
) -> None:
    assert available(*machine(tmp_path, group, files)) == left


def test_a_machine_that_says_nothing_has_none(tmp_path: Path) -> None:
    assert available(tmp_path, tmp_path) == 0
