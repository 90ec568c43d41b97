"""How fast this machine multiplies matrices, measured: the bar that everything else is held against."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

WIDTHS = {"cpu": 1024, "cuda": 4096}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LONG = 4
PROBE, SLOW = 256, 20  # a type that is so many times slower on a small product has no units here: that one will do


def best(call: Callable[[], Any], seconds: float, device: str, least: int = 2) -> float:
    """Seconds of the fastest call: one to warm up, then at least `least`, and more while `seconds` are left.

    A first call of more than `LONG` times that is the answer itself: a large model would take minutes otherwise.
    """
    first = timed(call, device)
    if first > LONG * seconds:
        return first
    deadline = time.perf_counter() + seconds
    found: list[float] = []
    while len(found) < least or time.perf_counter() < deadline:
        found.append(timed(call, device))
    return min(found)


def timed(call: Callable[[], Any], device: str) -> float:
    """Seconds until the device has done one call."""
    begun = time.perf_counter()
    call()
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


def matmul_rates(device: str, seconds: float, width: int | None = None) -> dict[str, float]:
    """Multiply-adds times two a second of a large product, by type of number."""
    width = width or WIDTHS.get(torch.device(device).type, WIDTHS["cpu"])
    found: dict[str, float] = {}
    for name, dtype in DTYPES.items():
        found[name] = _rate(PROBE, dtype, 0, device)
        if SLOW * found[name] >= max(found.values()):
            found[name] = _rate(width, dtype, seconds, device)
    return found


def _rate(width: int, dtype: torch.dtype, seconds: float, device: str) -> float:
    a_MM, b_MM = (torch.randn(width, width, device=device).to(dtype) for _ in range(2))
    return 2.0 * width**3 / best(lambda: torch.mm(a_MM, b_MM), seconds, device)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Bound the threads of tensor arithmetic for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
