"""An engine's weights: copies after `detach`, one memory for all of them, types, and packed maps."""

from itertools import chain
from threading import Thread
from typing import Any

import pytest
import torch
from engine_models import LAYOUTS, gpt2, policy_of, random_model
from test_engine_decoder import NEXT, PROMPTS, expected, logits_of

from shoal.protocol.errors import UsageError
from shoal.trainer.engine import Completion, Engine, Sampling, make_engine, precision
from shoal.trainer.engine.decoder import Decoder
from shoal.trainer.engine.native import NativeEngine
from shoal.trainer.engine.precision import generation_dtype, has_bf16
from shoal.trainer.engine.weights import Packed
from shoal.trainer.model import Policy


def policies() -> list[Policy]:
    names = "llama_grouped_tied", "llama_biased", "qwen3"
    return [policy_of(random_model(LAYOUTS[name]())) for name in names] + [policy_of(gpt2())]


def sampled(engine: Engine) -> list[list[Completion]]:
    return engine.sample(["reverse abc=", "copy ab="], 4, Sampling(), torch.Generator().manual_seed(1))


def same(ours: list[list[Completion]], theirs: list[list[Completion]]) -> None:
    for own, other in zip(chain(*ours), chain(*theirs), strict=True):
        assert own.ids == other.ids
        assert own.logps == pytest.approx(other.logps, abs=1e-5)  # copies lie elsewhere, and may round differently


def disturb(policy: Policy) -> None:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)


@pytest.mark.parametrize("at", range(4))
def test_a_detached_engine_sees_the_weights_of_the_last_refresh(at: int) -> None:
    policy = policies()[at]
    engine = make_engine(policy)
    engine.detach()
    before = sampled(engine)
    same(before, sampled(make_engine(policy)))
    disturb(policy)
    assert sampled(engine) == before
    engine.refresh()
    after = sampled(engine)
    same(after, sampled(make_engine(policy)))
    assert after != before


@pytest.mark.parametrize("packs", [False, True])
def test_a_detached_decoder_shares_no_memory_and_takes_none_anew(monkeypatch: pytest.MonkeyPatch, packs: bool) -> None:
    monkeypatch.setattr(precision, "_WORTH_PACKING", {torch.float32: 1} if packs else {})
    model = random_model(LAYOUTS["qwen3"]())
    decoder = Decoder(model)
    decoder.detach()
    held = decoder.weights._buffers
    places = {name: tensor.data_ptr() for name, tensor in held.items()}
    assert not {p.data_ptr() for p in model.parameters()} & set(places.values())
    decoder.refresh()
    assert {name: tensor.data_ptr() for name, tensor in decoder.weights._buffers.items()} == places


def test_refresh_waits_for_the_sample_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policies()[0]
    engine = NativeEngine(policy)
    engine.detach()
    expected_before = sampled(engine)
    plain, seen = Decoder.step, []

    def step(self: Decoder, ids_B: torch.Tensor, cache: Any) -> torch.Tensor:
        if not seen:  # in the middle of the first sample: another thread wants to refresh
            disturb(policy)
            seen.append(Thread(target=engine.refresh))
            seen[0].start()
        return plain(self, ids_B, cache)

    monkeypatch.setattr(Decoder, "step", step)
    assert sampled(engine) == expected_before
    seen[0].join()
    assert sampled(engine) == sampled(NativeEngine(policy))


@pytest.mark.parametrize("layout", ["llama_grouped_tied", "llama_biased", "qwen3"])
@torch.no_grad()
def test_packed_maps_compute_the_same(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    monkeypatch.setattr(precision, "_WORTH_PACKING", {torch.float32: 1})
    model = random_model(LAYOUTS[layout]())
    decoder = Decoder(model)
    assert isinstance(decoder.weights.layers[0].down, Packed)
    assert isinstance(decoder.weights.head, Packed)
    torch.testing.assert_close(logits_of(decoder, PROMPTS, NEXT), expected(model, PROMPTS, NEXT), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("layout", ["llama_grouped_tied", "llama_biased", "qwen3"])
@torch.no_grad()
def test_bfloat16_of_a_float32_policy_is_as_near_as_the_library_s(
    monkeypatch: pytest.MonkeyPatch, layout: str, packs: bool
) -> None:
    if packs and not has_bf16("cpu"):
        pytest.skip("oneDNN packs no bfloat16 on a CPU that has no units for it")
    monkeypatch.setattr(precision, "_WORTH_PACKING", {torch.bfloat16: 1} if packs else {})
    model = random_model(LAYOUTS[layout]())
    exact = expected(model, PROMPTS, NEXT)
    ours = logits_of(Decoder(model, torch.bfloat16), PROMPTS, NEXT)
    theirs = expected(random_model(LAYOUTS[layout](), torch.bfloat16), PROMPTS, NEXT)
    error, usual = ((found - exact).square().mean().sqrt() for found in (ours, theirs))
    assert 0 < error < 1.25 * usual
    assert error < 0.05 * exact.std()


def test_the_type_is_chosen_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    single, half = torch.float32, torch.bfloat16
    assert generation_dtype("same", half, "cpu") == half
    assert generation_dtype("float32", half, "cpu") == single
    assert generation_dtype("bfloat16", single, "cpu") == half
    for has, wanted in ((True, half), (False, single)):
        monkeypatch.setattr(precision, "has_bf16", lambda _, has=has: has)
        assert generation_dtype("auto", single, "cpu") == wanted
    with pytest.raises(UsageError, match="float16"):
        generation_dtype("float16", single, "cpu")
    assert has_bf16("cpu") == torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert not has_bf16("meta")


def test_an_engine_in_bfloat16_samples_from_the_float32_policy() -> None:
    policy = policies()[0]
    engine = make_engine(policy, dtype="bfloat16")
    for ours, exact in zip(sampled(engine), sampled(make_engine(policy)), strict=True):
        assert ours[0].logps[0] == pytest.approx(exact[0].logps[0], abs=0.05)
    engine.refresh()
    assert policy.model.lm_head.weight.dtype == torch.float32  # type: ignore[union-attr]
