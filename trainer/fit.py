"""How many tokens one forward may take: a fixed number, or what the free memory has room for.

A fixed number gives the same rounding on every machine, and so the same run. One that is found does not: it is for
machines that train alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from shoal.protocol.errors import EnvironmentFault
from shoal.trainer import main_memory
from shoal.trainer.algorithm import OptimizerSpec
from shoal.trainer.logprobs import KEPT_LOGITS

T = TypeVar("T")

FEWEST, MOST = 64, 16384
ROOMY = 1024  # tokens of one forward from which more of them hardly raise the speed of a large model
SHARE = 0.8  # of the free memory: the rest is for what the estimate does not know
LOGIT_COPIES = 3  # the logits, their probabilities and their gradient
FLOAT = 4  # bytes; under bfloat16 less is kept, and the estimate errs on the safe side


@dataclass(slots=True)
class Room:
    """How one forward is bounded. `fixed` sizes stand; a size that was found is halved when memory runs out."""

    tokens: int
    checkpointing: bool
    fixed: bool = True
    halvings: int = 0

    def attempt(self, work: Callable[[], T]) -> T:
        """The result of `work`, which reads `tokens` anew each time: it is done again with half when memory runs out.

        Raises EnvironmentFault when the size is fixed or cannot be halved further.
        """
        while True:
            try:
                return work()
            except torch.OutOfMemoryError as error:
                if self.fixed or self.tokens <= FEWEST:
                    raise EnvironmentFault(self._advice()) from error
            # Out of the handler: only now the frames that held the failed attempt's tensors are gone.
            self.tokens //= 2
            self.halvings += 1
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def told(self) -> int:
        """How often the size was halved since this was last asked."""
        halvings, self.halvings = self.halvings, 0
        return halvings

    def _advice(self) -> str:
        cure = "give a smaller model or shorter completions" if self.checkpointing else "switch checkpointing on"
        smaller = ", a smaller micro_tokens" if self.fixed and self.tokens > FEWEST else ""
        return f"the device's memory ran out in a forward of {self.tokens} tokens: {cure}{smaller}"


def room(model: nn.Module, spec: OptimizerSpec, may_checkpoint: bool, free: float | None = None) -> Room:
    """The bound of the specification, or one found from `free` bytes (None: those of the model's device).

    Without room for a few hundred tokens checkpointing is switched on, where the model can do it.
    """
    if spec.micro_tokens is not None:
        return Room(spec.micro_tokens, spec.checkpointing)
    left = SHARE * (free_bytes(_device(model)) if free is None else free) - to_come(model)
    keeps = Room(_most(model, left, checkpointing=False), checkpointing=False, fixed=False)
    if not may_checkpoint or (keeps.tokens >= ROOMY and not spec.checkpointing):
        return keeps
    return Room(_most(model, left, checkpointing=True), checkpointing=True, fixed=False)


def _most(model: nn.Module, left: float, checkpointing: bool) -> int:
    """The largest power of two that fits: a little more or less memory then seldom changes it."""
    tokens = MOST
    while tokens > FEWEST and kept_bytes(model, tokens, checkpointing) > left:
        tokens //= 2
    return tokens


def to_come(model: nn.Module) -> float:
    """Bytes that training will take beside activations: gradients and moments, and the engine's copy of the weights."""
    numbers = [(p.numel(), p.requires_grad) for p in model.parameters()]
    return FLOAT * float(sum(count * (1 + 3 * trained) for count, trained in numbers))


def kept_bytes(model: Any, tokens: int, checkpointing: bool) -> float:
    """Bytes that a forward over so many tokens keeps for its backward, logits included.

    A layer keeps its two inputs and norms (4 D), queries, keys, values and what they mix to (2 Q + 3 K: completions
    hold their prompt's keys and values as well), the projection's input (Q) and four tensors of the gated unit.
    """
    config = model.config
    heads = getattr(config, "num_attention_heads", 1)
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    read, asked = (getattr(config, "num_key_value_heads", None) or heads) * size, heads * size
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    layer = 4 * config.hidden_size + 3 * asked + 3 * read + 4 * inner
    layers = config.num_hidden_layers
    across = layers * config.hidden_size + layer if checkpointing else layers * layer
    logits = min(config.vocab_size * tokens, KEPT_LOGITS)
    return FLOAT * (float(across) * tokens + LOGIT_COPIES * logits)


def free_bytes(device: torch.device) -> float:
    """Bytes that this process may still take on a device."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + cached)
    return available()


def available(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> float:
    """Bytes of main memory that this process may still take.

    Where the kernel does not say, 0: the smallest forward is then the safe one.
    """
    try:
        return main_memory.available(proc, cgroups)[0]
    except OSError:
        return 0.0


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
