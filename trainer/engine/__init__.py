"""Engines: what turns prompts into completions. `make_engine` picks the fastest one that fits the model."""

from shoal.trainer.engine.decoder import supports
from shoal.trainer.engine.generate import GenerateEngine
from shoal.trainer.engine.native import NativeEngine
from shoal.trainer.engine.sampling import Completion, Engine, Sampling
from shoal.trainer.model import Policy

__all__ = ["Completion", "Engine", "Sampling", "make_engine"]


def make_engine(policy: Policy) -> Engine:
    """Return the native engine where the model's layout is known to it, else the one over `generate`."""
    return NativeEngine(policy) if supports(policy.model) else GenerateEngine(policy)
