"""Settings that follow from what was measured. Nothing here measures or loads anything."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.node.bench.work import Speed
from shoal.node.checks.memory import (
    BYTES_A_PARAMETER,
    ENGINE_BYTES,
    GIB,
    RUNTIME_BYTES,
    TIGHT,
    Shape,
    activations,
)

WORTH = 1.1  # a doubling of rows that gains less than a tenth is not worth its memory and its staleness
HALF_WORTH = 1.5  # a type of half precision that multiplies less than so many times as fast is not worth its rounding
LARGE = 50_000_000  # parameters from which the rounding to half precision costs less than it saves
FEW_PROMPTS, GROUPS = 2, (8, 16)
MICRO = tuple(2**power for power in range(8, 15))  # 256 to 16,384 tokens of one forward pass
SMALL = 512
SIZES = (1_000_000, 10_000_000, 50_000_000, 135_000_000, 360_000_000, 500_000_000, 1_000_000_000, 1_700_000_000)
SIZES += (3_000_000_000, 7_000_000_000, 14_000_000_000, 32_000_000_000, 70_000_000_000)


@dataclass(frozen=True, slots=True)
class Advice:
    """What to set. `largest` is the number of parameters of the largest model that fits with these settings."""

    threads: int
    dtype: str
    group_size: int
    prompts: int
    micro_tokens: int
    largest: int


def enough_rows(speeds: Sequence[Speed]) -> int:
    """Rows at once from which more of them no longer pay; `speeds` in order of rows."""
    chosen = speeds[0]
    for speed in speeds[1:]:
        if speed.tokens_per_second < WORTH * chosen.tokens_per_second:
            break
        chosen = speed
    return chosen.rows


def split(rows: int) -> tuple[int, int]:
    """Group size and prompts a pass for so many rows: larger groups once there are prompts enough."""
    group = GROUPS[1] if rows >= 8 * GROUPS[1] else GROUPS[0]
    return group, max(FEW_PROMPTS, rows // group)


def half_pays(rates: dict[str, float], parameters: int) -> bool:
    """Whether bfloat16 is worth trying: the machine has units for it, and the model is not tiny."""
    return parameters >= LARGE and rates.get("bfloat16", 0.0) >= HALF_WORTH * rates["float32"]


def micro_tokens(shape: Shape, memory: float) -> int:
    """The most tokens of one forward and backward pass that memory has room for, beside weights and moments."""
    room = beside_weights(shape.parameters, memory)
    return max((tokens for tokens in MICRO if activations(shape, tokens) <= room), default=MICRO[0])


def beside_weights(parameters: int, memory: float) -> float:
    """The bytes that weights, gradients, moments, the engine and the program itself leave; some memory stays free."""
    return TIGHT * memory - RUNTIME_BYTES - parameters * (BYTES_A_PARAMETER + ENGINE_BYTES)


def largest_model(memory: float) -> int:
    """Parameters of the largest usual size whose full training in float32 fits; 0 for none.

    With forward passes of `SMALL` tokens. Width and depth are taken to grow alike, from those of a Llama of 135 M.
    """
    base = Shape(135_000_000, layers=30, hidden=576, inner=1536, vocabulary=49152)
    fitting = 0
    for size in SIZES:
        scale = (size / base.parameters) ** 0.25
        shape = replace(
            base,
            parameters=size,
            layers=round(base.layers * scale),
            hidden=round(base.hidden * scale),
            inner=round(base.inner * scale),
        )
        if activations(shape, SMALL) <= beside_weights(size, memory):
            fitting = size
    return fitting


def size_name(parameters: int) -> str:
    """A number of parameters in words."""
    if not parameters:
        return "none"
    return f"{parameters / 1e9:.1f} B" if parameters >= 1e9 else f"{parameters / 1e6:.3g} M"


def memory_name(size: float) -> str:
    """Bytes in words."""
    return f"{size / GIB:.1f} GiB"
