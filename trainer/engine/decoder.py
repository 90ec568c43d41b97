"""The forward pass of a Llama-like decoder for generation: fused weights and a preallocated key-value cache.

Shapes: N tokens in a flat batch, B rows, T cache columns, H query heads, K key-value heads, D head size. Prompts are
aligned at their right end, so that every row writes the same cache column in a step; positions count from each
row's own first token, and columns before it are masked.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

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


@dataclass(slots=True)
class _Linear:
    weight: torch.Tensor  # [out, in]
    bias: torch.Tensor | None

    def __call__(self, x_ND: torch.Tensor) -> torch.Tensor:
        return functional.linear(x_ND, self.weight, self.bias)

    def add_to(self, residual_ND: torch.Tensor, x_ND: torch.Tensor) -> torch.Tensor:
        """Return residual + linear(x), in one operation where there is no bias."""
        if self.bias is None:
            return torch.addmm(residual_ND, x_ND, self.weight.t())
        return residual_ND + self(x_ND)


@dataclass(slots=True)
class _Layer:
    norm_in: torch.Tensor
    qkv: _Linear
    head_norms: torch.Tensor | None  # [H + K, D]: Qwen3 normalises queries and keys
    out: _Linear
    norm_mid: torch.Tensor
    gate_up: _Linear
    down: _Linear


@dataclass(slots=True)
class Cache:
    """Keys and values [layers, 2, B, K, T, D] with an additive mask [B, T] (None where no row is padded).

    `first` [B] is each row's first real column, `length` the number of columns written.
    """

    keys_values: torch.Tensor
    mask: torch.Tensor | None
    first: torch.Tensor
    length: int

    def expanded(self, group_size: int, columns: int) -> "Cache":
        """Return a cache of `columns` in which every row stands `group_size` times."""
        layers, two, rows, heads, _, size = self.keys_values.shape
        grown = self.keys_values.new_empty(layers, two, rows * group_size, heads, columns, size)
        grown[..., : self.length, :] = self.keys_values.repeat_interleave(group_size, 2)
        mask_BT = self.mask
        if mask_BT is not None:
            mask_BT = functional.pad(mask_BT, (0, columns - self.length)).repeat_interleave(group_size, 0)
        return Cache(grown, mask_BT, self.first.repeat_interleave(group_size), self.length)

    def rows(self, keep: torch.Tensor) -> "Cache":
        """Return the cache of the rows at the indices `keep`."""
        mask_BT = None if self.mask is None else self.mask[keep]
        return Cache(self.keys_values.index_select(2, keep), mask_BT, self.first[keep], self.length)


class Decoder:
    """Fused copies of a model's weights; `refresh` takes them over again after an update."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self._model = model
        self._heads = config.num_attention_heads
        self._kv_heads = config.num_key_value_heads
        self._size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._eps = config.rms_norm_eps
        self._rotations: tuple[torch.Tensor, torch.Tensor] | None = None
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Read the weights of the model anew."""
        inner = self._model.model
        self._embedding = inner.embed_tokens.weight.detach()
        self._layers = [self._fused(layer) for layer in inner.layers]
        self._norm_out = inner.norm.weight.detach()
        self._head = _Linear(self._model.lm_head.weight.detach(), None)

    def _fused(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        norms = None
        if hasattr(attention, "q_norm"):
            parts = (attention.q_norm.weight, self._heads), (attention.k_norm.weight, self._kv_heads)
            norms = torch.cat([weight.detach().expand(count, -1) for weight, count in parts])
        return _Layer(
            layer.input_layernorm.weight.detach(),
            _joined(attention.q_proj, attention.k_proj, attention.v_proj),
            norms,
            _joined(attention.o_proj),
            layer.post_attention_layernorm.weight.detach(),
            _joined(mlp.gate_proj, mlp.up_proj),
            _joined(mlp.down_proj),
        )

    def prefill(self, ids_BT: torch.Tensor, first_B: torch.Tensor) -> tuple[torch.Tensor, Cache]:
        """Run right-aligned prompts; return float32 logits of the next token [B, V] and the cache.

        `first_B` is the column at which each row begins; what stands before it is never read.
        """
        rows, columns = ids_BT.shape
        place_T = torch.arange(columns, device=ids_BT.device)
        positions_BT = (place_T - first_B[:, None]).clamp(min=0)
        real_BT = place_T >= first_B[:, None]
        padded = not bool(real_BT.all())
        cache = Cache(
            self._embedding.new_empty(len(self._layers), 2, rows, self._kv_heads, columns, self._size),
            self._additive(real_BT) if padded else None,
            first_B,
            columns,
        )
        allowed = (place_T <= place_T[:, None]) & real_BT[:, None, None] if padded else None
        if allowed is not None:  # a column before the start may read itself: a row that reads nothing would be NaN
            allowed = allowed | torch.eye(columns, dtype=torch.bool, device=ids_BT.device)
        x_ND = self._embedding[ids_BT.flatten()]
        rotation = self._rotation(positions_BT.flatten(), columns)
        for at, layer in enumerate(self._layers):
            qkv = self._qkv(layer, x_ND, rotation).view(rows, columns, -1, self._size).transpose(1, 2)
            q, k, v = qkv.split([self._heads, self._kv_heads, self._kv_heads], 1)
            cache.keys_values[at, 0], cache.keys_values[at, 1] = k, v
            mixed = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=allowed, is_causal=allowed is None, enable_gqa=self._heads != self._kv_heads
            )
            x_ND = self._finish(layer, x_ND, mixed.transpose(1, 2).reshape(rows * columns, -1))
        return self._logits(x_ND.view(rows, columns, -1)[:, -1]), cache

    def step(self, ids_B: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Append one token to every row; return float32 logits of the next one [B, V]."""
        column, rows = cache.length, len(ids_B)
        cache.length = column + 1
        bias = None
        if cache.mask is not None:
            bias = cache.mask[:, : column + 1].repeat_interleave(self._kv_heads, 0)[:, None]
        x_ND = self._embedding[ids_B]
        rotation = self._rotation(column - cache.first, column + 1)
        for at, layer in enumerate(self._layers):
            qkv = self._qkv(layer, x_ND, rotation)
            both = cache.keys_values[at]
            both[:, :, :, column] = qkv[:, self._heads :].view(rows, 2, self._kv_heads, self._size).transpose(0, 1)
            keys, values = both.flatten(1, 2)[:, :, : column + 1]
            mixed = self._attend(qkv[:, : self._heads], keys, values, bias)
            x_ND = self._finish(layer, x_ND, mixed)
        return self._logits(x_ND)

    def _attend(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Return softmax(q k) v of one query token a row, as [B, H D]; plain products beat the fused kernel here."""
        rows = len(q)
        q = (q * self._size**-0.5).reshape(rows * self._kv_heads, -1, self._size)
        scores = torch.bmm(q, keys.transpose(1, 2)) if bias is None else torch.baddbmm(bias, q, keys.transpose(1, 2))
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(values.dtype)
        return torch.bmm(weights, values).view(rows, -1)

    def _qkv(self, layer: _Layer, x_ND: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return queries, keys and values [N, H + 2 K, D], the first two rotated to their positions."""
        qkv = layer.qkv(self._norm(x_ND, layer.norm_in)).view(len(x_ND), -1, self._size)
        turned = qkv[:, : self._heads + self._kv_heads]
        if layer.head_norms is not None:
            turned.copy_(self._norm(turned, None) * layer.head_norms)
        cos, sin = rotation
        swapped = turned.roll(self._size // 2, -1)
        turned.mul_(cos).addcmul_(swapped, sin)
        return qkv

    def _finish(self, layer: _Layer, x_ND: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Return the layer's output from its input and what attention mixed."""
        x_ND = layer.out.add_to(x_ND, mixed)
        gate, up = layer.gate_up(self._norm(x_ND, layer.norm_mid)).chunk(2, -1)
        return layer.down.add_to(x_ND, functional.silu(gate) * up)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        """Normalise in float32 and cast before the weight: in bf16 the other order drifts from the library's text."""
        if x.dtype == torch.float32:
            return functional.rms_norm(x, x.shape[-1:], weight, self._eps)
        plain = functional.rms_norm(x.float(), x.shape[-1:], None, self._eps).to(x.dtype)
        return plain if weight is None else plain * weight

    def _logits(self, x_BD: torch.Tensor) -> torch.Tensor:
        return self._head(self._norm(x_BD, self._norm_out)).float()

    def _additive(self, real_BT: torch.Tensor) -> torch.Tensor:
        zero = torch.zeros(real_BT.shape, dtype=self._embedding.dtype, device=real_BT.device)
        return zero.masked_fill(~real_BT, float("-inf"))

    def _rotation(self, positions_N: torch.Tensor, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and signed sines [N, 1, D]; the sign belongs to the half that is subtracted."""
        if self._rotations is None or len(self._rotations[0]) < columns:
            rotary = self._model.model.rotary_emb
            reach = max(64, 2 * columns)
            angles = torch.arange(reach, device=positions_N.device).float()[:, None] * rotary.inv_freq.float()
            cos, sin = (part * rotary.attention_scaling for part in (angles.cos(), angles.sin()))
            pair = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
            self._rotations = pair[0].to(self._embedding.dtype), pair[1].to(self._embedding.dtype)
        cosines, sines = self._rotations
        return cosines[positions_N][:, None], sines[positions_N][:, None]


def _joined(*parts: nn.Linear) -> _Linear:
    """Stack linear maps of the same input; a single one is shared, not copied."""
    biases = [part.bias for part in parts if part.bias is not None]
    if len(parts) == 1:
        return _Linear(parts[0].weight.detach(), biases[0].detach() if biases else None)
    bias = torch.cat([b.detach() for b in biases]) if biases else None
    return _Linear(torch.cat([part.weight.detach() for part in parts]), bias)
