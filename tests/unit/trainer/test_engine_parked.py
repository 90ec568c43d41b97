"""Parked rows: no token is lost or drawn twice, each knows its policy version, and the rest is by the new weights."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from engine_models import LAYOUTS, gpt2, policy_of, random_model
from torch import nn

from shoal.protocol.errors import UsageError
from shoal.trainer.engine import Completion, Parked, ParkingEngine, Sampling, make_engine, native
from shoal.trainer.engine.generate import GenerateEngine
from shoal.trainer.engine.native import NativeEngine
from shoal.trainer.model import Policy

PROMPTS = ["copy ab=", "reverse abcdef=", "last xyzxyzxyzxyzxyz="]
SAMPLING = Sampling(temperature=1.3, max_tokens=30)
GROUP = 4


def fresh() -> Policy:
    policy = policy_of(random_model(LAYOUTS["qwen2"]()))
    policy.eos_ids = (1, 20, 30, 40)  # rows end early and late
    return policy


def begun(engine: ParkingEngine) -> list[Parked]:
    return engine.begin(PROMPTS, GROUP, SAMPLING, torch.Generator().manual_seed(4))


def whole(policy: Policy) -> list[Completion]:
    groups = NativeEngine(policy).sample(PROMPTS, GROUP, SAMPLING, torch.Generator().manual_seed(4))
    return [completion for group in groups for completion in group]


def after(count: int) -> Any:
    return lambda done: sum(done) >= count


def ended(rows: Sequence[Completion | Parked]) -> list[bool]:
    return [isinstance(row, Completion) for row in rows]


def update(policy: Policy) -> None:
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(0.8)
    policy.version += 1


@torch.no_grad()
def forced(model: nn.Module, row: Parked | Completion, prompt: Sequence[int]) -> list[float]:
    """Log-probabilities of all the row's tokens by one plain pass of the library."""
    ids = list(row.ids)
    scores = model(input_ids=torch.tensor([list(prompt) + ids]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    return (scores.float() / 1.3).log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()


@pytest.mark.parametrize("seats", [512, 5])
def test_parked_and_continued_is_as_never_parked(monkeypatch: pytest.MonkeyPatch, seats: int) -> None:
    policy = fresh()
    expected = whole(policy)
    monkeypatch.setattr(native, "MAX_ROWS", seats)
    engine = NativeEngine(policy)
    rows: list[Any] = list(begun(engine))
    for least in (2, 5, 9):
        going = [at for at, row in enumerate(rows) if isinstance(row, Parked)]
        further = engine.proceed([rows[at] for at in going], SAMPLING, after(least - len(rows) + len(going)))
        for at, row in zip(going, further, strict=True):
            rows[at] = row
        assert least <= sum(ended(rows)) < len(rows)
    going = [at for at, row in enumerate(rows) if isinstance(row, Parked)]
    assert any(rows[at].ids for at in going)
    for at, row in zip(going, engine.proceed([rows[at] for at in going], SAMPLING), strict=True):
        rows[at] = row
    assert [(c.ids, c.finished, c.text, c.versions) for c in rows] == [
        (c.ids, c.finished, c.text, ()) for c in expected
    ]
    for own, other in zip(rows, expected, strict=True):
        assert own.logps == pytest.approx(other.logps, abs=1e-4)


def test_after_an_update_the_rest_is_by_the_new_weights_and_the_old_part_stays() -> None:
    policy = fresh()
    engine = NativeEngine(policy)
    first = engine.proceed(begun(engine), SAMPLING, after(3))
    parked = [row for row in first if isinstance(row, Parked)]
    old = [forced(policy.model, row, row.prompt_ids) for row in parked]
    update(policy)
    engine.refresh()
    rest = engine.proceed(parked, SAMPLING)
    assert any(len(row.ids) > 2 for row in parked)
    for before, wanted, row in zip(parked, old, rest, strict=True):
        assert isinstance(row, Completion)
        kept = len(before.ids)
        assert tuple(row.ids[:kept]) == before.ids
        assert row.versions == (0,) * kept + (1,) * (len(row.ids) - kept)
        assert before.versions == (0,) * kept
        assert row.logps[:kept] == list(before.logps) == pytest.approx(wanted, abs=1e-4)
        new = forced(policy.model, row, before.prompt_ids)
        assert row.logps[kept:] == pytest.approx(new[kept:], abs=1e-4)
        assert abs(row.logps[0] - new[0]) > 1e-4  # the versions do differ


def test_state_goes_through_json_and_back() -> None:
    engine = NativeEngine(fresh())
    parked = [row for row in engine.proceed(begun(engine), SAMPLING, after(2)) if isinstance(row, Parked)]
    restored = [Parked.restore(json.loads(json.dumps(row.state()))) for row in parked]
    assert restored == parked
    assert engine.proceed(restored, SAMPLING) == engine.proceed(parked, SAMPLING)


def test_enough_hears_of_every_row_in_its_place() -> None:
    engine = NativeEngine(fresh())
    heard: list[list[bool]] = []

    def enough(done: Sequence[bool]) -> bool:
        heard.append(list(done))
        return False

    rows = engine.proceed(begun(engine), SAMPLING, enough)
    assert all(isinstance(row, Completion) for row in rows)
    order = sorted(range(len(rows)), key=lambda at: len(rows[at].ids))
    shortest = len(rows[order[0]].ids)
    assert heard[0] == [len(row.ids) == shortest for row in rows]
    assert all(a <= b for before, now in pairwise(heard) for a, b in zip(before, now, strict=True))


def test_the_engine_over_generate_continues_the_same_rows() -> None:
    policy = fresh()
    ours, theirs = NativeEngine(policy), GenerateEngine(policy)
    parked = [row for row in ours.proceed(begun(ours), SAMPLING, after(4)) if isinstance(row, Parked)]
    assert len({len(row.ids) for row in parked + begun(theirs)}) > 1
    mixed = parked + begun(theirs)[:2]
    for own, other in zip(ours.proceed(mixed, SAMPLING), theirs.proceed(mixed, SAMPLING), strict=True):
        assert isinstance(own, Completion)
        assert own.ids == other.ids
        assert own.logps == pytest.approx(other.logps, abs=1e-4)
    some = theirs.proceed(mixed, SAMPLING, lambda _: True)
    assert sum(ended(some)) == len(parked)  # those that are furthest go first
    assert some[-2:] == mixed[-2:]


def test_other_settings_than_those_at_the_start_are_refused() -> None:
    for engine in (make_engine(fresh()), make_engine(policy_of(gpt2()))):
        assert isinstance(engine, ParkingEngine)
        rows = begun(engine)
        with pytest.raises(UsageError, match="max_tokens is 31"):
            engine.proceed(rows, Sampling(max_tokens=31))
        assert engine.proceed([], SAMPLING) == []
