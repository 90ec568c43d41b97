"""One draw against a float64 brute force, for any logits and settings."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.trainer.engine.sampling import Sampling, draw

LOGITS = st.lists(st.integers(-40, 40).map(lambda tenths: tenths / 10), min_size=2, max_size=12)


def kept_probabilities(logits: list[float], sampling: Sampling) -> list[float]:
    """The sampling distribution worked out one token at a time, ties going as the filters' own definitions say."""
    scaled = [value / sampling.temperature for value in logits]
    if 0 < sampling.top_k < len(scaled):
        least = sorted(scaled, reverse=True)[sampling.top_k - 1]
        scaled = [value if value >= least else -math.inf for value in scaled]
    weights = [math.exp(value) for value in scaled]
    total = sum(weights)
    if sampling.top_p < 1:
        order = sorted(range(len(weights)), key=lambda at: -weights[at])
        before = 0.0
        for at in order:
            mass = weights[at] / total
            if before >= sampling.top_p:
                weights[at] = 0.0
            before += mass
        total = sum(weights)
    return [weight / total for weight in weights]


@given(
    logits=st.lists(st.integers(-400, 400), min_size=2, max_size=12, unique=True),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    top_k=st.integers(0, 14),
    top_p=st.sampled_from([0.013, 0.307, 0.613, 0.911, 1.0]),
    uniform=st.floats(0, 1, exclude_max=True, width=32),
)
def test_a_draw_is_the_inverse_of_the_cumulative_distribution(
    logits: list[int], temperature: float, top_k: int, top_p: float, uniform: float
) -> None:
    values = [value / 100 for value in logits]  # unique, so that no filter depends on the order of ties
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    probs = kept_probabilities(values, sampling)
    ids, logps = draw(torch.tensor([values]), sampling, torch.tensor([uniform]))
    token = int(ids[0])
    below, above = sum(probs[:token]), sum(probs[: token + 1])
    assert probs[token] > 0
    assert below - 1e-5 <= uniform <= above + 1e-5
    assert math.isclose(float(logps[0]), math.log(probs[token]), abs_tol=1e-4)
    assert logps[0] <= 0


@given(logits=LOGITS, masked=st.sets(st.integers(0, 11)), uniform=st.sampled_from([0.0, 0.5, 1 - 2**-24]))
def test_a_token_without_probability_is_never_drawn(logits: list[float], masked: set[int], uniform: float) -> None:
    values = torch.tensor([logits])
    masked = {at for at in masked if at < len(logits)}
    if len(masked) == len(logits):
        masked.pop()
    values[0, list(masked)] = -math.inf
    ids, logps = draw(values, Sampling(), torch.tensor([uniform]))
    assert int(ids[0]) not in masked
    assert torch.isfinite(logps).all()


@given(logits=LOGITS, uniform=st.floats(0, 1, exclude_max=True, width=32))
def test_greedy_takes_the_likeliest_whatever_the_draw(logits: list[float], uniform: float) -> None:
    ids, logps = draw(torch.tensor([logits]), Sampling(temperature=0), torch.tensor([uniform]))
    assert logits[int(ids[0])] == max(logits)
    total = math.log(sum(math.exp(value) for value in logits))
    assert math.isclose(float(logps[0]), max(logits) - total, abs_tol=1e-5)
