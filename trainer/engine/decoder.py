"""The forward pass of a Llama-like decoder for generation, over stacked weights and the rows' cache.

Shapes: N tokens in a flat batch, B rows, T cache columns, H query heads, K key-value heads, D head size. Rows are
aligned at their right end (see cache.py); positions count from each row's own first token.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from shoal.trainer.engine.cache import Cache
from shoal.trainer.engine.weights import Layer, Weights

KEPT_NUMBERS = 1 << 22  # of cache between calls: fresh memory costs a small model a tenth of its time
LAYOUTS = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_ROPES = ("default", "linear", "llama3")  # those whose frequencies do not change with the length


def supports(model: nn.Module) -> bool:
    """Tell whether the decoder computes exactly what this model does: layout, activation, rotation, plain weights."""
    if type(model).__name__ not in LAYOUTS:
        return False
    config: Any = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    windowed = any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ())
    if type(model).__name__ == "MistralForCausalLM":
        windowed = windowed or config.sliding_window is not None
    linears = [module for module in model.modules() if hasattr(module, "in_features")]
    plain = all(type(module) is nn.Linear and module.weight.is_floating_point() for module in linears)
    return plain and not windowed and config.hidden_act == "silu" and rope.get("rope_type", "default") in _ROPES


class Decoder:
    """The forward pass over copies of a model's weights; `refresh` takes them over again after an update."""

    def __init__(self, model: Any, dtype: torch.dtype | None = None) -> None:
        """Take the model's weights, in this type; None keeps theirs."""
        config = model.config
        self._model = model
        self._heads = config.num_attention_heads
        self._kv_heads = config.num_key_value_heads
        self._size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._scale = self._size**-0.5
        self.weights = Weights(model, dtype or model.lm_head.weight.dtype)
        self._eps = torch.full((1, 1), config.rms_norm_eps, device=self.weights.embedding.device)
        self._rotations: torch.Tensor | None = None
        self._memory: torch.Tensor | None = None

    def refresh(self) -> None:
        """Read the weights of the model anew."""
        self.weights.refresh()

    def detach(self) -> None:
        """Share no memory with the model from now on."""
        self.weights.detach()

    def memory(self, rows: int, columns: int) -> torch.Tensor:
        """Return memory for keys and values of so many rows and columns; a little is kept from call to call.

        Only one cache may be in use that came from here.
        """
        shape = self.cache_shape(rows, columns)
        count = math.prod(shape)
        if count > KEPT_NUMBERS:
            return self.weights.embedding.new_empty(shape)
        if self._memory is None or len(self._memory) < count:
            self._memory = self.weights.embedding.new_empty(count)
        return self._memory[:count].view(shape)

    def cache_shape(self, rows: int, columns: int) -> tuple[int, ...]:
        """Return the shape of the keys and values of so many rows and columns."""
        return len(self.weights.layers), 2, rows, self._kv_heads, columns, self._size

    def prefill(self, ids_BT: torch.Tensor, first: Sequence[int]) -> tuple[torch.Tensor, Cache]:
        """Run right-aligned prompts; return float32 logits of the next token [B, V] and the cache.

        `first` is the column at which each row begins; what stands before it is never read.
        """
        weights, (rows, columns) = self.weights, ids_BT.shape
        place_T = torch.arange(columns, device=ids_BT.device)
        first_B1 = torch.tensor(first, device=ids_BT.device)[:, None]
        kv = weights.embedding.new_empty(self.cache_shape(rows, columns))
        allowed = _visible(place_T, first_B1) if any(first) else None
        x_ND = functional.embedding(ids_BT.flatten(), weights.embedding)
        rotation = self._rotation((place_T - first_B1).clamp_(min=0).flatten(), columns)
        last = len(weights.layers) - 1
        for at, layer in enumerate(weights.layers):
            qkv = self._qkv(layer, x_ND, rotation).view(rows, columns, -1, self._size).transpose(1, 2)
            q, k, v = qkv.split([self._heads, self._kv_heads, self._kv_heads], 1)
            kv[at, 0], kv[at, 1] = k, v
            causal = allowed is None and at != last
            if at == last:  # nobody reads further than the last token's output
                q, x_ND = q[:, :, -1:], x_ND.view(rows, columns, -1)[:, -1]
                allowed = None if allowed is None else allowed[:, :, -1:]
            mixed = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=allowed, is_causal=causal, enable_gqa=self._heads != self._kv_heads
            )
            x_ND = self._finish(layer, x_ND, mixed.transpose(1, 2).reshape(len(x_ND), -1))
        return self._logits(x_ND), Cache(kv, first, columns)

    def step(self, ids_B: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Append one token to every row; return float32 logits of the next one [B, V]."""
        column, rows = cache.length, len(ids_B)
        cache.length = column + 1
        window = slice(cache.start, column + 1)
        view = cache.view
        bias = None if view.bias is None else view.bias[:, :, window]
        x_ND = functional.embedding(ids_B, self.weights.embedding)
        rotation = self._rotation(column - view.first_B, column + 1)
        for layer, (both, keys, values) in zip(self.weights.layers, view.layers, strict=True):
            qkv = self._qkv(layer, x_ND, rotation)
            both[:, :, :, column] = qkv[:, self._heads :].view(rows, 2, self._kv_heads, self._size).transpose(0, 1)
            mixed = self._attend(qkv[:, : self._heads], keys[:, window], values[:, window], bias)
            x_ND = self._finish(layer, x_ND, mixed)
        return self._logits(x_ND)

    def _attend(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Return softmax(q k) v of one query token a row, as [B, H D]; plain products beat the fused kernel here."""
        rows = len(q)
        q = q.reshape(len(keys), -1, self._size)
        start, beta = (keys.new_empty(1, 1, 1), 0) if bias is None else (bias, 1)
        scores = torch.baddbmm(start, q, keys.transpose(1, 2), beta=beta, alpha=self._scale)
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(values.dtype)
        return torch.bmm(weights, values).view(rows, -1)

    def _qkv(self, layer: Layer, x_ND: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        """Return queries, keys and values [N, H + 2 K, D], the first two rotated to their positions."""
        qkv = layer.qkv(self._norm(x_ND, layer.norm_in)).view(len(x_ND), -1, self._size)
        turned = qkv[:, : self._heads + self._kv_heads]
        if layer.head_norms is not None:
            turned.copy_(self._norm(turned, layer.head_norms))
        if self.weights.arranged:
            torch.view_as_complex(turned.unflatten(2, (-1, 2))).mul_(rotation)
        else:
            swapped = turned.roll(self._size // 2, -1)
            turned.mul_(rotation[:, :1]).addcmul_(swapped, rotation[:, 1:])
        return qkv

    def _finish(self, layer: Layer, x_ND: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Return the layer's output from its input and what attention mixed."""
        x_ND = layer.out.add_to(x_ND, mixed)
        gate, up = layer.gate_up(self._norm(x_ND, layer.norm_mid)).chunk(2, -1)
        return layer.down.add_to(x_ND, functional.silu(gate).mul_(up))

    def _norm(self, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        """Divide by the root mean square, in float32, and cast before the weight: in bfloat16 the other order drifts
        from the library's text. Half the time of the library's own, which has no kernel on the CPU."""
        x_float = x.float()
        norm = torch.linalg.vector_norm(x_float, dim=-1, keepdim=True)
        scale = torch.addcmul(self._eps, norm, norm, value=1 / x.shape[-1]).rsqrt_()
        plain = (x_float * scale).to(x.dtype)
        return plain if weight is None else plain.mul_(weight)

    def _logits(self, x_BD: torch.Tensor) -> torch.Tensor:
        return self.weights.head(self._norm(x_BD, self.weights.norm_out)).float()

    def _rotation(self, positions_N: torch.Tensor, columns: int) -> torch.Tensor:
        """Return what turns a head at these positions: complex [N, 1, D / 2] for paired numbers, else [N, 2, D].

        The latter are cosines and signed sines; the sign belongs to the half that is subtracted.
        """
        if self._rotations is None or len(self._rotations) < columns:
            rotary = self._model.model.rotary_emb
            reach = max(64, 2 * columns)
            angles = torch.arange(reach, device=positions_N.device).float()[:, None] * rotary.inv_freq.float()
            cos, sin = (part * rotary.attention_scaling for part in (angles.cos(), angles.sin()))
            if self.weights.arranged:
                self._rotations = torch.complex(cos, sin)[:, None]
            else:
                table = torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)], 1)
                self._rotations = table.to(self.weights.embedding.dtype)
        return self._rotations.index_select(0, positions_N)


def _visible(place_T: torch.Tensor, first_B1: torch.Tensor) -> torch.Tensor:
    """Return which columns each column may read [B, 1, T, T]; one before the start reads itself, not nothing: NaN."""
    real_B11T = (place_T >= first_B1)[:, None, None]
    itself_TT = place_T == place_T[:, None]
    return ((place_T <= place_T[:, None]) & real_B11T) | itself_TT
