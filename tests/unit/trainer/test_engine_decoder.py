"""The decoder against the library's own forward pass, for each layout it claims to know."""

import pytest
import torch
from engine_models import LAYOUTS, WINDOWED, gpt2, random_model
from torch import nn

from shoal.trainer.engine.cache import Cache
from shoal.trainer.engine.decoder import Decoder, supports

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [12], [13, 14, 15]]
NEXT = [[20, 21, 22, 23], [30, 31, 32, 33], [40, 41, 42, 43]]


def right_aligned(rows: list[list[int]]) -> tuple[torch.Tensor, list[int]]:
    width = max(map(len, rows))
    padded = [[0] * (width - len(row)) + row for row in rows]
    return torch.tensor(padded), [width - len(row) for row in rows]


def grown(cache: Cache, group_size: int, columns: int) -> Cache:
    """The cache with so many more columns, in which every row stands `group_size` times."""
    layers, two, rows, heads, _, size = cache.keys_values.shape
    seats = range(rows * group_size)
    memory = cache.keys_values.new_empty(layers, two, len(seats), heads, cache.length + columns, size)
    larger = Cache.fresh(memory, cache.length)
    larger.seat(seats, cache, [at // group_size for at in seats])
    larger.settle(seats)
    return larger


def logits_of(decoder: Decoder, rows: list[list[int]], following: list[list[int]]) -> torch.Tensor:
    """[B, 1 + steps, V] from the decoder: after the prompt, and after each token that follows."""
    logits, cache = decoder.prefill(*right_aligned(rows))
    cache = grown(cache, 1, len(following[0]))
    out = [logits]
    for ids in zip(*following, strict=True):
        out.append(decoder.step(torch.tensor(ids), cache))
    return torch.stack(out, 1)


def expected(model: nn.Module, rows: list[list[int]], following: list[list[int]]) -> torch.Tensor:
    """The same from one plain forward pass a row: no padding, no cache."""
    out = []
    for row, more in zip(rows, following, strict=True):
        logits = model(input_ids=torch.tensor([row + more]), use_cache=False).logits[0]
        out.append(logits[len(row) - 1 :].float())
    return torch.stack(out)


@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_logits_equal_the_plain_forward_pass(layout: str) -> None:
    model = random_model(LAYOUTS[layout]())
    assert supports(model)
    torch.testing.assert_close(
        logits_of(Decoder(model), PROMPTS, NEXT), expected(model, PROMPTS, NEXT), atol=1e-4, rtol=1e-4
    )


@torch.no_grad()
def test_rows_of_equal_length_need_no_mask() -> None:
    model = random_model(LAYOUTS["llama_grouped_tied"]())
    rows = [[5, 6, 7], [8, 9, 10], [11, 12, 13]]
    assert Decoder(model).prefill(*right_aligned(rows))[1].view.bias is None
    torch.testing.assert_close(logits_of(Decoder(model), rows, NEXT), expected(model, rows, NEXT), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layout", ["llama_grouped_tied", "qwen2", "qwen3"])
@torch.no_grad()
def test_bf16_is_as_near_to_float32_as_the_library_is(layout: str) -> None:
    exact = expected(random_model(LAYOUTS[layout]()), PROMPTS, NEXT)
    model = random_model(LAYOUTS[layout](), torch.bfloat16)
    ours = (logits_of(Decoder(model), PROMPTS, NEXT) - exact).square().mean().sqrt()
    theirs = (expected(model, PROMPTS, NEXT) - exact).square().mean().sqrt()
    assert ours < 1.25 * theirs
    assert ours < 0.05 * exact.std()


@torch.no_grad()
def test_positions_beyond_the_first_table_are_rotated_too() -> None:
    model = random_model(LAYOUTS["llama"]())
    rows, following = [[3 + at % 60 for at in range(70)]], [[5, 6, 7]]
    torch.testing.assert_close(
        logits_of(Decoder(model), rows, following), expected(model, rows, following), atol=1e-4, rtol=1e-4
    )


@torch.no_grad()
def test_a_group_and_a_choice_of_rows_keep_their_own_cache() -> None:
    model = random_model(LAYOUTS["qwen2"]())
    decoder = Decoder(model)
    _, cache = decoder.prefill(*right_aligned(PROMPTS))
    cache = grown(cache, 2, 2)
    decoder.step(torch.tensor([20, 21, 30, 31, 40, 41]), cache)
    logits = decoder.step(torch.tensor([50, 51]), cache.rows([1, 4]))
    rows, following = [PROMPTS[0], PROMPTS[2]], [[21, 50], [40, 51]]
    torch.testing.assert_close(logits, expected(model, rows, following)[:, -1], atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_refresh_takes_over_every_weight() -> None:
    model = random_model(LAYOUTS["qwen3"]())
    decoder = Decoder(model)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)), alpha=0.1)
    decoder.refresh()
    logits, _ = decoder.prefill(*right_aligned(PROMPTS))
    torch.testing.assert_close(logits, expected(model, PROMPTS, NEXT)[:, 0], atol=1e-4, rtol=1e-4)


def test_what_it_would_compute_wrongly_is_not_supported() -> None:
    assert not supports(gpt2())
    assert not supports(random_model(WINDOWED["mistral"]()))
    assert not supports(random_model(WINDOWED["qwen2"]()))
    config = LAYOUTS["llama"]()
    config.hidden_act = "gelu"
    assert not supports(random_model(config))
    config = LAYOUTS["llama"]()
    config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}
    assert not supports(random_model(config))


def test_a_layer_that_wraps_a_linear_map_is_not_supported() -> None:
    class Adapted(nn.Linear):
        """As adapters do: a linear map with something added in its forward pass."""

    model = random_model(LAYOUTS["llama"]())
    model.model.layers[0].self_attn.q_proj = Adapted(32, 32, bias=False)
    assert not supports(model)
