"""What `shoal bench` counts, advises and refuses; what it measures is told, not judged."""

import json
import sys
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from shoal.node.bench import advice, rates, run, work
from shoal.node.bench.run import Settings
from shoal.node.bench.work import Speed
from shoal.node.checks import memory
from shoal.node.checks.memory import GIB, Shape
from shoal.node.commands import bench as command
from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.trainer.model import DEFAULT_MODEL, load_policy

SMALL = Shape(135_000_000, layers=30, hidden=576, inner=1536, kv_width=192, vocabulary=49152)
QUICK = Settings(threads=1, max_tokens=2, seconds=0.1)


def speeds(*tokens_per_second: float) -> list[Speed]:
    return [Speed(8 * 2**at, value, 0.1) for at, value in enumerate(tokens_per_second)]


def test_rows_grow_only_while_a_doubling_gains_a_tenth() -> None:
    assert advice.enough_rows(speeds(100)) == 8
    assert advice.enough_rows(speeds(100, 190, 300)) == 32
    assert advice.enough_rows(speeds(100, 190, 208, 900)) == 16
    assert advice.enough_rows(speeds(100, 90, 300)) == 8


@pytest.mark.parametrize(("rows", "expected"), [(8, (8, 2)), (32, (8, 4)), (64, (8, 8)), (128, (16, 8))])
def test_rows_become_groups_and_prompts(rows: int, expected: tuple[int, int]) -> None:
    assert advice.split(rows) == expected


def test_half_precision_is_tried_only_where_there_are_units_and_the_model_is_not_tiny() -> None:
    assert advice.half_pays({"float32": 1.0, "bfloat16": 1.6}, 135_000_000)
    assert not advice.half_pays({"float32": 1.0, "bfloat16": 1.4}, 135_000_000)
    assert not advice.half_pays({"float32": 1.0, "bfloat16": 8.0}, 111_000)
    assert not advice.half_pays({"float32": 1.0}, 135_000_000)


def test_tokens_of_a_pass_follow_from_what_the_weights_leave() -> None:
    """By hand: 30 x (12 x 576 + 4 x 1536) + 3 x 49152 = 539,136 numbers a token, 2.157 MB; weights take 2.7 GB."""
    weights = 1.5 * GIB + 135_000_000 * 20
    for tokens in (256, 2048, 16384):
        enough = (weights + 4.0 * 539_136 * tokens) / 0.8
        assert advice.micro_tokens(SMALL, 1.001 * enough) == tokens
        assert advice.micro_tokens(SMALL, 0.999 * enough) == max(256, tokens // 2)


def test_the_largest_model_grows_with_memory() -> None:
    assert advice.largest_model(0) == 0
    found = [advice.largest_model(size * GIB) for size in (6.2, 6.5, 24, 100, 1000)]
    assert found == sorted(found)
    # 135 M: 2.51 GiB of weights, 1.5 of the program, 1.03 for 512 tokens; a fifth stays free: 6.3 GiB
    assert found[0] < 135_000_000 <= found[1]
    assert 20 * found[-1] < 1000 * GIB


def test_work_counts_the_weights_that_tokens_meet() -> None:
    """By hand for the shipped model: two layers of 4 x 64 x 64 + 3 x 64 x 192, and an output layer of 64 x 64."""
    found = work.Work(load_policy(DEFAULT_MODEL), max_tokens=3)
    assert found._weights(10, 5) == 2 * (4 * 64 * 64 + 3 * 64 * 192) * 15 + 64 * 64 * 10


def test_every_row_of_the_work_has_its_length_and_carries_signal() -> None:
    found = work.Work(load_policy(DEFAULT_MODEL), max_tokens=5)
    groups = found.engine.sample([work.PROMPT], 8, work.Sampling(max_tokens=5), torch.Generator().manual_seed(0))
    assert {len(completion.ids) for group in groups for completion in group} == {5}
    report = found.trainer.update(found._rows(16))
    assert all(report.advantages)
    assert report.tokens == 16 * 5


def test_the_best_of_several_calls_leaves_out_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, costs, calls = [0.0], iter([9.0, 3.0, 2.0, 4.0, 1.0]), []

    def call() -> None:
        calls.append(1)
        clock[0] += next(costs)

    monkeypatch.setattr(rates.time, "perf_counter", lambda: clock[0])
    assert rates.best(call, 8.0, "cpu") == 2.0  # 3, 2 and 4 reach the 8 seconds; the 9 warmed up
    assert len(calls) == 4


def test_a_call_that_takes_far_too_long_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, costs = [0.0], iter([40.0])

    def call() -> None:
        clock[0] += next(costs)

    monkeypatch.setattr(rates.time, "perf_counter", lambda: clock[0])
    assert rates.best(call, 8.0, "cpu") == 40.0


def test_threads_are_as_before_afterwards() -> None:
    before = torch.get_num_threads()

    def fail() -> None:
        with rates.threads(before + 1):
            assert torch.get_num_threads() == before + 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.get_num_threads() == before


def test_a_measurement_in_no_time_measures_once_and_says_what_it_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "matmul_rates", lambda device, seconds: {"float32": 1e9, "bfloat16": 1e8})
    found = run.bench(QUICK)
    assert [speed.rows for speed in found.sampling] == [speed.rows for speed in found.updating]
    assert all(speed.tokens_per_second > 0 and speed.share > 0 for speed in (*found.sampling, *found.updating))
    assert found.advice.threads == 1
    assert found.advice.dtype == "float32"
    assert bool(found.notes) == (len(found.sampling) < len(run.ROWS))
    assert json.loads(json.dumps(found.plain()))["advice"]["group_size"] in advice.GROUPS


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (memory, run):
        monkeypatch.setattr(module, "available", lambda: (1.0 * GIB, "available"))
    monkeypatch.setattr(run, "load_policy", lambda *_, **__: pytest.fail("it was loaded"))
    with pytest.raises(EnvironmentFault, match=r"default does not fit: .* Give a smaller --model"):
        run.bench(QUICK)


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"threads": 0}, {"max_tokens": 0}, {"seconds": 0.0}):
        with pytest.raises(UsageError, match=r"must lie between"):
            replace(QUICK, **wrong)
    with pytest.raises(UsageError, match=r"--max-tokens 200: default has room for \d+"):
        run.bench(replace(QUICK, max_tokens=200))
    with pytest.raises(EnvironmentFault, match="no model directory at /nowhere"):
        run.bench(replace(QUICK, model="/nowhere"))


def test_the_screen_and_the_json_say_the_same(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    chosen = advice.Advice(2, "float32", 8, 4, 2048, 360_000_000)
    found = run.Bench(
        "default", 111_000, "cpu", 2, 8 * GIB, {"float32": 9e10}, speeds(1234), speeds(567), chosen, ["n"]
    )
    monkeypatch.setattr(run, "bench", lambda settings, say: found)
    monkeypatch.setattr(command, "console", lambda: Console(file=sys.stdout, width=200))
    assert command.bench(json=True) == 0
    assert json.loads(capsys.readouterr().out)["sampling"][0]["tokens_per_second"] == 1234
    assert command.bench() == 0
    shown = capsys.readouterr().out
    for part in ("8.0 GiB", "90 GFLOP/s", "1,234", "567", "--threads 2", "--group-size 8", "360 M"):
        assert part in shown
    assert len(shown.splitlines()) <= 24
