"""Continuous batching: seats and memory are bounded, rows come and go, and nothing that is sampled depends on it."""

from itertools import chain
from typing import Any

import pytest
import torch
from engine_models import LAYOUTS, policy_of, random_model

from shoal.trainer.engine import Completion, Sampling, native
from shoal.trainer.engine.decoder import Decoder
from shoal.trainer.engine.generate import GenerateEngine
from shoal.trainer.engine.native import NativeEngine
from shoal.trainer.model import Policy

# Of very different lengths, so that rows of any age and length meet; end marks come early and late.
PROMPTS = ["copy ab=", "reverse abcdef=", "sort 3=", "copy ab=", "last xyzxyzxyzxyzxyz=", "next a=", "sort 31254="]
LONG = Sampling(temperature=1.2, max_tokens=40)


@pytest.fixture(scope="module")
def policy() -> Policy:
    found = policy_of(random_model(LAYOUTS["llama_grouped_tied"]()))
    found.eos_ids = (1, 20, 30)
    return found


def sampled(engine: Any, sampling: Sampling, group_size: int = 3) -> list[Completion]:
    groups = engine.sample(PROMPTS, group_size, sampling, torch.Generator().manual_seed(11))
    return list(chain.from_iterable(groups))


def same(ours: list[Completion], theirs: list[Completion]) -> None:
    assert [(c.ids, c.finished, c.text) for c in ours] == [(c.ids, c.finished, c.text) for c in theirs]
    for own, other in zip(ours, theirs, strict=True):
        assert own.logps == pytest.approx(other.logps, abs=1e-4)


@pytest.mark.parametrize("seats", [1, 2, 5, 7, 20])
def test_few_seats_give_what_the_library_gives(policy: Policy, monkeypatch: pytest.MonkeyPatch, seats: int) -> None:
    expected = sampled(GenerateEngine(policy), LONG)
    lengths = {len(c.ids) for c in expected}
    assert len(lengths) > 8  # rows do leave at different times
    assert max(lengths) == 40
    monkeypatch.setattr(native, "MAX_ROWS", seats)
    widest: list[int] = []
    plain_step = Decoder.step

    def step(self: Decoder, ids_B: torch.Tensor, cache: Any) -> torch.Tensor:
        widest.append(len(ids_B))
        return plain_step(self, ids_B, cache)

    monkeypatch.setattr(Decoder, "step", step)
    same(sampled(NativeEngine(policy), LONG), expected)
    assert max(widest) == seats


def test_memory_bounds_the_seats(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = sampled(NativeEngine(policy), LONG)
    engine = NativeEngine(policy)
    sizes: list[int] = []
    plain = Decoder.memory

    def memory(self: Decoder, rows: int, columns: int) -> torch.Tensor:
        found = plain(self, rows, columns)
        sizes.append(found.numel() * found.element_size())
        return found

    monkeypatch.setattr(Decoder, "memory", memory)
    monkeypatch.setattr(native, "CACHE_BYTES", 200_000)
    same(sampled(engine, LONG), expected)
    assert 100_000 < max(sizes) <= 200_000
    monkeypatch.setattr(native, "CACHE_BYTES", 1)  # one row there must be
    same(sampled(engine, LONG), expected)


def test_a_prompt_is_read_once_even_where_its_group_does_not_fit(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    plain = Decoder.prefill

    def prefill(self: Decoder, ids_BT: torch.Tensor, first: Any) -> Any:
        read.append(len(ids_BT))
        return plain(self, ids_BT, first)

    monkeypatch.setattr(Decoder, "prefill", prefill)
    prompts = ["copy ab=", "reverse abcdef=", "sort 3="]
    for seats in (512, 5, 1):
        read.clear()
        monkeypatch.setattr(native, "MAX_ROWS", seats)
        NativeEngine(policy).sample(prompts, 7, LONG, torch.Generator().manual_seed(2))
        assert sum(read) == len(prompts)


def test_long_prompts_are_read_in_parts(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = sampled(NativeEngine(policy), LONG)
    monkeypatch.setattr("shoal.trainer.engine.flight.PREFILL_TOKENS", 30)
    same(sampled(NativeEngine(policy), LONG), expected)


def test_what_was_in_memory_before_does_not_matter(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = sampled(NativeEngine(policy), LONG)

    def spoiled(self: Decoder, rows: int, columns: int) -> torch.Tensor:
        return torch.full(self.cache_shape(rows, columns), float("nan"))

    monkeypatch.setattr(Decoder, "memory", spoiled)
    for seats in (512, 4):
        monkeypatch.setattr(native, "MAX_ROWS", seats)
        same(sampled(NativeEngine(policy), LONG), expected)


def test_texts_are_those_of_the_policy(policy: Policy) -> None:
    for completion in sampled(NativeEngine(policy), LONG):
        assert completion.text == policy.decode(completion.ids)
        assert completion.versions == ()
