"""What a machine computes quickly: bfloat16 units, and matrix products with weights laid out beforehand.

The rules depend on the machine and on shapes, never on a clock: two runs of one build choose alike.
"""

from functools import cache

import torch

from shoal.protocol.errors import UsageError

GENERATION_DTYPES = ("same", "auto", "float32", "bfloat16")
"""`same` as the policy's own; `auto` is bfloat16 where the machine has units for it, else float32."""

_WORTH_PACKING = {torch.float32: 1 << 19, torch.bfloat16: 1 << 14}
"""Weights of a matrix from which packing pays: in float32 the library's own product is as quick on smaller ones
(benchmarks/generate.py), in bfloat16 it packs anew in every call."""


@cache
def has_bf16(device: str) -> bool:
    """Tell whether this kind of device ("cpu", "cuda") multiplies bfloat16 in hardware."""
    if device == "cuda":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return device == "cpu" and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def generation_dtype(name: str, own: torch.dtype, device: str) -> torch.dtype:
    """Return the type that weights are kept in for sampling; UsageError for an unknown name."""
    if name not in GENERATION_DTYPES:
        raise UsageError(f"unknown generation dtype {name!r}; known: {', '.join(GENERATION_DTYPES)}")
    if name == "same":
        return own
    if name == "auto":
        return torch.bfloat16 if has_bf16(device) else torch.float32
    return torch.bfloat16 if name == "bfloat16" else torch.float32


@cache
def can_pack() -> bool:
    """Tell whether this build of torch has oneDNN's products with packed weights."""
    names = "_reorder_linear_weight", "_linear_pointwise"
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)


def worth_packing(weight: torch.Tensor) -> bool:
    """Tell whether this weight shall be packed: on a CPU that has units for its type, from a size on."""
    least = _WORTH_PACKING.get(weight.dtype)
    if weight.device.type != "cpu" or least is None or weight.numel() < least:
        return False
    return can_pack() and (weight.dtype != torch.bfloat16 or has_bf16("cpu"))
