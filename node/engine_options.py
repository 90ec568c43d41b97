"""What samples completions, and how its deviation from the trainer is corrected; a field's docstring is its help."""

from dataclasses import dataclass
from typing import Literal

from shoal.node.config import require

USUAL_CAP = 2.0


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What samples completions."""

    engine: Literal["torch", "vllm"] = "torch"
    """torch, or vllm where that library is installed (docs/vllm.md). When vllm is missing, fails or computes something
    else than the trainer, sampling goes on with torch, and the counter engine/REASON tells why."""
    importance_cap: float | None = None
    """C: own tokens weigh min(p / q, C), with p of the trainer and q of the sampler; 0 for no such weight. When left
    out: 2 with vllm or in bfloat16, whose probabilities are not quite the trainer's, else 0."""
    engine_cache_mb: int = 1024
    """Memory of vllm for keys and values, in MiB."""
    engine_rows: int = 256
    """Most completions that vllm samples at once."""
    engine_context: int = 4096
    """Longest prompt and completion together in vllm, in tokens, if the model reads as much."""
    engine_sleep: bool = False
    """Let vllm give the GPU's memory back while the model is trained (CUDA only)."""

    def cap(self, dtype: str) -> float | None:
        """Return the importance cap with this arithmetic of the trainer; None for no weight."""
        if self.importance_cap is None:
            return USUAL_CAP if self.engine == "vllm" or dtype == "bfloat16" else None
        return self.importance_cap or None


def check_engine(options: EngineOptions, device: str) -> None:
    """Raise `UsageError` for a number out of its range, or a device that vllm does not choose."""
    cap = options.importance_cap
    require(
        cap is None or cap == 0 or 1 <= cap < float("inf"),
        f"--importance-cap {cap}: give 1 or more, e.g. 2, or 0 for none",
    )
    for name, most in (("engine_cache_mb", 1 << 20), ("engine_rows", 4096), ("engine_context", 1 << 20)):
        value = getattr(options, name)
        require(1 <= value <= most, f"--{name.replace('_', '-')} {value}: must lie between 1 and {most}")
    require(
        options.engine != "vllm" or device in ("cpu", "cuda", "cuda:0"),
        f"--engine vllm takes the first device it sees, not --device {device}: give cpu or cuda, and choose the GPU "
        "with CUDA_VISIBLE_DEVICES",
    )
