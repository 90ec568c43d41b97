"""Top-p over a large vocabulary, against a sum over tokens in order of probability in float64."""

import math
from typing import Any

import pytest
import torch

from shoal.trainer.engine import sampling
from shoal.trainer.engine.sampling import Sampling, filtered

SYMBOLS = 5000


def kept(logits: list[float], settings: Sampling) -> set[int]:
    """Which tokens stay, worked out one at a time."""
    scaled = [value / settings.temperature for value in logits]
    order = sorted(range(len(scaled)), key=lambda at: -scaled[at])
    if settings.top_k:
        order = order[: settings.top_k]
    total = math.fsum(math.exp(scaled[at]) for at in order)
    staying: set[int] = set()
    mass = 0.0
    for at in order:
        if mass >= settings.top_p:
            break
        staying.add(at)
        mass += math.exp(scaled[at]) / total
    return staying


def logits_of(spreads: list[float]) -> torch.Tensor:
    """A row for each spread, from nearly one token to nearly all."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn((len(spreads), SYMBOLS), generator=generator) * torch.tensor(spreads)[:, None]


@pytest.mark.parametrize(
    "settings", [Sampling(top_p=0.9), Sampling(top_p=0.6, temperature=0.7), Sampling(top_p=0.5, top_k=40)]
)
@pytest.mark.parametrize(("spreads", "sorts"), [([4.0, 6.0, 20.0], False), ([4.0, 0.1, 20.0], True)])
def test_tokens_stay_while_the_mass_before_them_is_small(
    monkeypatch: pytest.MonkeyPatch, settings: Sampling, spreads: list[float], sorts: bool
) -> None:
    sorted_calls: list[int] = []
    plain = torch.Tensor.sort

    def sort(self: torch.Tensor, *args: Any, **options: Any) -> Any:
        sorted_calls.append(1)
        return plain(self, *args, **options)

    monkeypatch.setattr(torch.Tensor, "sort", sort)
    logits = logits_of(spreads)
    result = filtered(logits, settings)
    assert bool(sorted_calls) == (sorts and not settings.top_k)
    for row, found in zip(logits, result, strict=True):
        wanted = kept(row.tolist(), settings)
        staying = {at for at, value in enumerate(found.tolist()) if value != -math.inf}
        assert len(staying ^ wanted) <= 1  # rounding decides about the last one
        at = torch.tensor(sorted(staying))
        torch.testing.assert_close(found[at], row[at] / settings.temperature)


def test_the_likeliest_stays_however_small_top_p_is() -> None:
    logits = logits_of([3.0, 9.0])
    left = filtered(logits, Sampling(top_p=1e-6)).isfinite()
    assert left.sum(1).tolist() == [1, 1]
    assert left.int().argmax(1).tolist() == logits.argmax(1).tolist()
    assert sampling.LIKELIEST * 4 < SYMBOLS
