"""Our own differentiable forward of Llama-like models: a prompt is read once, and nothing is computed for padding.

Shapes: N real tokens in a flat row, S prompts of up to P tokens, B completions of up to T input tokens, H query heads,
K key-value heads, D head size. All prompts stand first, then all completions. Linear layers see the N tokens; attention
lays them out in two grids: prompts read themselves, completions read their prompt and themselves (Prefix Grouper,
arXiv 2506.05433). So attention grows with the square of one completion, not of all that share a prompt.
"""

# ruff: noqa: N815 (names end in the shape of their tensor)

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Grid(NamedTuple):
    """Some flat tokens as rows. Where rows differ in length, `cells` [rows x width] says which token stands where (any,
    where there is none) and `places` where in the grid each token stands; both are None for a full grid."""

    rows: int
    width: int
    tokens: int
    cells: Tensor | None = None
    places: Tensor | None = None

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | str) -> Self:
        """The grid of consecutive rows of these lengths."""
        rows, width = len(lengths), max(lengths)
        if min(lengths) == width:
            return cls(rows, width, rows * width)
        lengths_R1 = torch.tensor(lengths, device=device)[:, None]
        starts_R1 = lengths_R1.cumsum(0) - lengths_R1
        column_W = torch.arange(width, device=device)
        filled_RW = column_W < lengths_R1
        cells_RW = torch.where(filled_RW, starts_R1 + column_W, 0)
        return cls(rows, width, sum(lengths), cells_RW.flatten(), filled_RW.flatten().nonzero()[:, 0])

    def spread(self, x_NC: Tensor, size: int) -> Tensor:
        """Lay flat tokens [N, heads * size] out as [rows, heads, width, size]."""
        if self.cells is not None:
            x_NC = x_NC.index_select(0, self.cells)
        return x_NC.view(self.rows, self.width, -1, size).transpose(1, 2)

    def gather(self, x: Tensor) -> Tensor:
        """Take [rows, heads, width, size] back to flat tokens [N, heads * size]."""
        flat = x.transpose(1, 2).reshape(self.rows * self.width, -1)
        return flat if self.places is None else flat.index_select(0, self.places)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each token of some packs stands. `completions` is None when no completion has a token to be read."""

    ids_N: Tensor
    positions_N: Tensor
    prompts: Grid
    completions: Grid | None
    prompt_of_B: Tensor  # which prompt each completion follows
    visible: Tensor | None  # bool, True = may be seen: [T, P + T], or [B, 1, T, P + T] where prompts differ in length

    def masked(self, dtype: torch.dtype) -> Self:
        """The layout with what is to be added to scores for `visible`: else every layer makes and keeps its own."""
        if self.visible is None:
            return self
        zeros = torch.zeros(self.visible.shape, dtype=dtype, device=self.visible.device)
        return replace(self, visible=zeros.masked_fill_(~self.visible, -torch.inf))


def lay_out(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[Sequence[int]]], device: torch.device | str
) -> tuple[Layout, Tensor]:
    """The layout of prompts and of the completions of each, and which token predicts each completion token [N'].

    A completion's last token is not read: it predicts nothing that is asked for. Completions without any token, and
    prompts without one, are not allowed.
    """
    ids = [token for prompt in prompts for token in prompt]
    ends = list(accumulate(map(len, prompts)))
    positions = [place for prompt in prompts for place in range(len(prompt))]
    predictors: list[int] = []
    inputs: list[int] = []
    for number, group in enumerate(completions):
        begin = len(prompts[number])
        for completion in group:
            read = len(completion) - 1
            predictors += [ends[number] - 1, *range(len(ids), len(ids) + read)]
            ids += completion[:-1]
            positions += range(begin, begin + read)
            inputs.append(read)
    owners = torch.tensor([n for n, group in enumerate(completions) for _ in group], device=device)
    grid = Grid.of(inputs, device) if any(inputs) else None
    layout = Layout(
        torch.tensor(ids, device=device),
        torch.tensor(positions, device=device),
        Grid.of([len(prompt) for prompt in prompts], device),
        grid,
        owners,
        None if grid is None else _visible([len(prompt) for prompt in prompts], owners, grid.width),
    )
    return layout, torch.tensor(predictors, device=device)


def _visible(prompt_lengths: Sequence[int], prompt_of_B: Tensor, width: int) -> Tensor:
    """What a completion token may see: its whole prompt, and its own completion up to itself."""
    device = prompt_of_B.device
    longest = max(prompt_lengths)
    own_TT = torch.ones(width, width, dtype=torch.bool, device=device).tril()
    if min(prompt_lengths) == longest:
        return torch.cat([own_TT.new_ones(width, longest), own_TT], 1)
    lengths_B = torch.tensor(prompt_lengths, device=device)[prompt_of_B]
    there_BP = torch.arange(longest, device=device) < lengths_B[:, None]
    rows = len(lengths_B)
    return torch.cat([there_BP[:, None].expand(rows, width, longest), own_TT.expand(rows, width, width)], 2)[:, None]


class Rotation(torch.autograd.Function):
    """Rotary positions: x cos + swap(x) sin, where swap exchanges the halves and sin carries the sign (2104.09864)."""

    @staticmethod
    def forward(ctx, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, -1), sin)

    @staticmethod
    def backward(ctx, grad: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        cos, sin = ctx.saved_tensors  # swapping twice changes nothing, and swapping sin turns its sign
        return (grad * cos).addcmul_(grad.roll(grad.shape[-1] // 2, -1), sin, value=-1), None, None


def hidden_states(model: Any, layout: Layout, predictors_N: Tensor, checkpointing: bool = False) -> Tensor:
    """Hidden states after the last norm of the tokens at `predictors_N`; what the output head reads.

    `checkpointing` keeps only each layer's input and computes the rest again going back (arXiv 1604.06174).
    """
    inner = model.model
    x_NC = functional.embedding(layout.ids_N, inner.embed_tokens.weight)
    rotation = _rotation(inner.rotary_emb, layout.positions_N, x_NC)
    layout, shape = layout.masked(x_NC.dtype), _Shape(model.config)
    for layer in inner.layers:
        if checkpointing and torch.is_grad_enabled():
            x_NC = checkpoint(_layer, layer, x_NC, layout, rotation, shape, use_reentrant=False)
        else:
            x_NC = _layer(layer, x_NC, layout, rotation, shape)
    return _norm(inner.norm, x_NC.index_select(0, predictors_N))


class _Shape:
    """Heads of a model: how many read, how many are read, and how large they are."""

    def __init__(self, config: Any) -> None:
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _layer(layer: Any, x_NC: Tensor, layout: Layout, rotation: tuple[Tensor, Tensor], shape: _Shape) -> Tensor:
    attention, mlp = layer.self_attn, layer.mlp
    normed = _norm(layer.input_layernorm, x_NC)
    q = _turned(attention.q_proj(normed), getattr(attention, "q_norm", None), rotation, shape.size)
    k = _turned(attention.k_proj(normed), getattr(attention, "k_norm", None), rotation, shape.size)
    x_NC = x_NC + attention.o_proj(_attend(q, k, attention.v_proj(normed), layout, shape))
    normed = _norm(layer.post_attention_layernorm, x_NC)
    return x_NC + mlp.down_proj(functional.silu(mlp.gate_proj(normed)) * mlp.up_proj(normed))


def _turned(x_NC: Tensor, norm: Any, rotation: tuple[Tensor, Tensor], size: int) -> Tensor:
    """Queries or keys rotated to their positions, normalised before where the model does so (Qwen3)."""
    x_NHD = x_NC.view(len(x_NC), -1, size)
    if norm is not None:
        x_NHD = _norm(norm, x_NHD)
    return Rotation.apply(x_NHD, *rotation).view(len(x_NC), -1)


def _attend(q: Tensor, k: Tensor, v: Tensor, layout: Layout, shape: _Shape) -> Tensor:
    """Mix values for each of the N tokens: [N, H D]."""
    grouped = shape.heads != shape.kv_heads
    first = layout.prompts.tokens
    q_p, k_p, v_p = (layout.prompts.spread(x[:first], shape.size) for x in (q, k, v))
    mixed = functional.scaled_dot_product_attention(q_p, k_p, v_p, is_causal=True, enable_gqa=grouped)
    mixed_NC = layout.prompts.gather(mixed)
    if layout.completions is None:
        return mixed_NC
    q_c, k_c, v_c = (layout.completions.spread(x[first:], shape.size) for x in (q, k, v))
    keys, values = (torch.cat([p.index_select(0, layout.prompt_of_B), c], 2) for p, c in ((k_p, k_c), (v_p, v_c)))
    mixed = functional.scaled_dot_product_attention(q_c, keys, values, attn_mask=layout.visible, enable_gqa=grouped)
    return torch.cat([mixed_NC, layout.completions.gather(mixed)])


def _norm(norm: Any, x: Tensor) -> Tensor:
    """RMS norm in float32, cast before the weight: in bf16 the other order drifts from the library's text."""
    weight, eps = norm.weight, getattr(norm, "variance_epsilon", None) or norm.eps
    if x.dtype in (torch.bfloat16, torch.float16):
        return functional.rms_norm(x.float(), x.shape[-1:], None, eps).to(x.dtype) * weight
    return functional.rms_norm(x, x.shape[-1:], weight, eps)


def _rotation(rotary: Any, positions_N: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines [N, 1, D] of the model's own rotary embedding."""
    with torch.no_grad():
        cos, sin = (part[0, :, None] for part in rotary(like[None], positions_N[None]))
        half = sin.shape[-1] // 2
        return cos, torch.cat([-sin[..., :half], sin[..., half:]], -1)
