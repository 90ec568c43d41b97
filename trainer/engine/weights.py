"""A decoder's weights for sampling: linear maps of one input stacked, packed where that pays, copied where asked.

In float32 on a CPU a pass over the data costs as much as a small product, so two passes are saved by arranging the
weights: norms are multiplied into the map behind them (`folded`), and the two numbers of a head that are rotated
together stand side by side, as a complex number (`paired`). Elsewhere the order of the library's roundings is kept.

Where nothing has to be stacked, cast or arranged, a weight is the model's own, and no copy. After `detach` all are
copies. Memory for copies is taken once and written over at every `refresh`; only packed weights are made anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional

from shoal.trainer.engine.precision import worth_packing

PACKED_ROWS = 64  # a hint for the layout; other numbers of rows were as quick


class Map(Protocol):
    """A linear map."""

    def __call__(self, x_ND: torch.Tensor) -> torch.Tensor:
        """Return the map of x."""
        ...

    def add_to(self, residual_ND: torch.Tensor, x_ND: torch.Tensor) -> torch.Tensor:
        """Return residual + map of x, in one operation where there is one."""
        ...


@dataclass(slots=True)
class Plain:
    """A linear map by the library's own product; `weight` is [out, in]."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, x_ND: torch.Tensor) -> torch.Tensor:
        """Return the map of x."""
        return functional.linear(x_ND, self.weight, self.bias)

    def add_to(self, residual_ND: torch.Tensor, x_ND: torch.Tensor) -> torch.Tensor:
        """Return residual + map of x."""
        if self.bias is None:
            return torch.addmm(residual_ND, x_ND, self.weight.t())
        return residual_ND + self(x_ND)


@dataclass(slots=True)
class Packed:
    """A linear map with its weight in oneDNN's own layout."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, x_ND: torch.Tensor) -> torch.Tensor:
        """Return the map of x."""
        return torch.ops.mkldnn._linear_pointwise(x_ND, self.weight, self.bias, "none", [], "")

    def add_to(self, residual_ND: torch.Tensor, x_ND: torch.Tensor) -> torch.Tensor:
        """Return residual + map of x."""
        return torch.ops.mkldnn._linear_pointwise.binary(x_ND, residual_ND, self.weight, self.bias, "add")


@dataclass(slots=True)
class Layer:
    """One layer; norms are None where folded. `head_norms` [H + K, D] normalises queries and keys (Qwen3)."""

    norm_in: torch.Tensor | None
    qkv: Map
    head_norms: torch.Tensor | None
    out: Map
    norm_mid: torch.Tensor | None
    gate_up: Map
    down: Map


class Weights:
    """The weights of a Llama-like model as the decoder reads them."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        """Take the model's weights, in this type."""
        self._model, self._dtype, self._own = model, dtype, False
        self._buffers: dict[str, torch.Tensor] = {}
        self.arranged = dtype == torch.float32 and model.lm_head.weight.device.type == "cpu"
        self.refresh()

    def detach(self) -> None:
        """Share no memory with the model from now on."""
        self._own = True
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Read the model's weights anew."""
        inner = self._model.model
        self.embedding = self._kept("embedding", [inner.embed_tokens.weight])
        self.norm_out = self._norm("norm_out", inner.norm)
        head = self._model.lm_head.weight
        shared = head is inner.embed_tokens.weight and not self.arranged
        self.head = self._packed(self.embedding, None) if shared else self._map("head", [head], inner.norm)
        self.layers = [self._layer(f"{at}.", layer) for at, layer in enumerate(inner.layers)]

    def _layer(self, name: str, layer: Any) -> Layer:
        attention, mlp, config = layer.self_attn, layer.mlp, self._model.config
        norms = None
        if hasattr(attention, "q_norm"):
            parts = (attention.q_norm, config.num_attention_heads), (attention.k_norm, config.num_key_value_heads)
            rows = [self._paired(norm.weight, 1).reshape(1, -1).expand(count, -1) for norm, count in parts]
            norms = self._kept(name + "head_norms", rows)
        return Layer(
            self._norm(name + "norm_in", layer.input_layernorm),
            self._qkv(name + "qkv", attention, layer.input_layernorm),
            norms,
            self._map(name + "out", [attention.o_proj.weight], None, [attention.o_proj.bias]),
            self._norm(name + "norm_mid", layer.post_attention_layernorm),
            self._map(
                name + "gate_up",
                [mlp.gate_proj.weight, mlp.up_proj.weight],
                layer.post_attention_layernorm,
                [mlp.gate_proj.bias, mlp.up_proj.bias],
            ),
            self._map(name + "down", [mlp.down_proj.weight], None, [mlp.down_proj.bias]),
        )

    def _qkv(self, name: str, attention: Any, norm: nn.Module) -> Map:
        """Return the map to queries, keys and values, the first two paired where weights are arranged."""
        config = self._model.config
        heads = config.num_attention_heads, config.num_key_value_heads
        turned = tuple(zip((attention.q_proj, attention.k_proj), heads, strict=True))
        weights = [self._paired(part.weight, count) for part, count in turned] + [attention.v_proj.weight]
        biases = [attention.v_proj.bias]
        if biases[0] is not None:
            biases = [self._paired(part.bias, count) for part, count in turned] + biases
        return self._map(name, weights, norm, biases)

    def _paired(self, weight: torch.Tensor, heads: int) -> torch.Tensor:
        """Return the rows of `heads` heads in the order in which they are rotated, as a view."""
        weight = weight.detach()
        return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2) if self.arranged else weight

    def _norm(self, name: str, norm: Any) -> torch.Tensor | None:
        return None if self.arranged else self._kept(name, [norm.weight])

    def _map(
        self,
        name: str,
        parts: Sequence[torch.Tensor],
        norm: Any = None,
        biases: Sequence[torch.Tensor | None] = (None,),
    ) -> Map:
        """Return the stacked map, behind this norm if one is folded into it."""
        found = [bias for bias in biases if bias is not None]
        bias = self._kept(name + ".bias", found) if found else None
        if norm is None or not self.arranged:
            return self._packed(self._kept(name, parts), bias)
        return self._packed(self._kept(name, parts, copied=True).mul_(norm.weight), bias)

    def _packed(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Map:
        if not worth_packing(weight):
            return Plain(weight, bias)
        return Packed(torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS), bias)

    def _kept(self, name: str, parts: Sequence[torch.Tensor], copied: bool = False) -> torch.Tensor:
        """Return the parts one below the other, in this object's own memory unless the model's serves."""
        parts = [part.detach() for part in parts]
        if len(parts) == 1 and parts[0].dtype == self._dtype and not (self._own or copied):
            return parts[0]
        sizes = [part.numel() for part in parts]
        held = self._buffers.get(name)
        if held is None:
            last = parts[-1]  # the one that is never paired: its shape is plain
            held = last.new_empty(sum(sizes) // (last[0].numel()), *last.shape[1:], dtype=self._dtype)
            self._buffers[name] = held
        for target, part in zip(held.view(-1).split(sizes), parts, strict=True):
            target.view(part.shape).copy_(part)
        return held
