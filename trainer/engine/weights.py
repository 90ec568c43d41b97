"""A decoder's weights for sampling: linear maps of one input stacked, packed where that pays, copied where asked.

Where nothing has to be stacked, cast or packed, a weight is the model's own, and no copy. After `detach` all are
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
    """One layer; `head_norms` [H + K, D] is there where queries and keys are normalised (Qwen3)."""

    norm_in: torch.Tensor
    qkv: Map
    head_norms: torch.Tensor | None
    out: Map
    norm_mid: torch.Tensor
    gate_up: Map
    down: Map


class Weights:
    """The weights of a Llama-like model as the decoder reads them."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        """Take the model's weights, in this type."""
        self._model, self._dtype, self._own = model, dtype, False
        self._buffers: dict[str, torch.Tensor] = {}
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
        self.norm_out = self._kept("norm_out", [inner.norm.weight])
        head = self._model.lm_head.weight
        tied = head is inner.embed_tokens.weight
        self.head = self._packed(self.embedding if tied else self._kept("head", [head]), None)
        self.layers = [self._layer(f"{at}.", layer) for at, layer in enumerate(inner.layers)]

    def _layer(self, name: str, layer: Any) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        norms = None
        if hasattr(attention, "q_norm"):
            config = self._model.config
            parts = (attention.q_norm, config.num_attention_heads), (attention.k_norm, config.num_key_value_heads)
            norms = self._kept(name + "head_norms", [norm.weight.expand(count, -1) for norm, count in parts])
        return Layer(
            self._kept(name + "norm_in", [layer.input_layernorm.weight]),
            self._map(name + "qkv", [attention.q_proj, attention.k_proj, attention.v_proj]),
            norms,
            self._map(name + "out", [attention.o_proj]),
            self._kept(name + "norm_mid", [layer.post_attention_layernorm.weight]),
            self._map(name + "gate_up", [mlp.gate_proj, mlp.up_proj]),
            self._map(name + "down", [mlp.down_proj]),
        )

    def _map(self, name: str, parts: Sequence[nn.Linear]) -> Map:
        biases = [part.bias for part in parts if part.bias is not None]
        bias = self._kept(name + ".bias", biases) if biases else None
        return self._packed(self._kept(name, [part.weight for part in parts]), bias)

    def _packed(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Map:
        if not worth_packing(weight):
            return Plain(weight, bias)
        return Packed(torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS), bias)

    def _kept(self, name: str, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the parts one below the other, in this object's own memory unless the model's serves."""
        parts = [part.detach() for part in parts]
        if len(parts) == 1 and parts[0].dtype == self._dtype and not self._own:
            return parts[0]
        rows = sum(len(part) for part in parts)
        held = self._buffers.get(name)
        if held is None:
            held = self._buffers[name] = parts[0].new_empty(rows, *parts[0].shape[1:], dtype=self._dtype)
        for target, part in zip(held.split([len(part) for part in parts]), parts, strict=True):
            target.copy_(part)
        return held
