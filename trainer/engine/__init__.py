"""Engines: what turns prompts into completions. `make_engine` picks the fastest one that fits the model.

    groups = engine.sample(prompts, group_size, sampling, generator)     # list[list[Completion]]
    engine.refresh()                                                     # after every update
    engine.detach()                                                      # sampling while the policy is trained

Partial rollouts, of a `ParkingEngine` (`isinstance` tells; vLLM is none):

    rows = engine.begin(prompts, group_size, sampling, generator)        # list[Parked], none with a token yet
    rows = engine.proceed(rows, sampling, enough)                        # list[Completion | Parked], in the same places
    plain = rows[0].state(); row = Parked.restore(plain)                 # for snapshots

`proceed(begin(...), sampling)` is what `sample` does. `enough(done)` is asked after every token that ended a row, with
one bool a row; when it returns True, the rows that are not done come back as `Parked` with the tokens they have.
"""

from functools import partial

from shoal.trainer.engine.decoder import supports
from shoal.trainer.engine.generate import GenerateEngine
from shoal.trainer.engine.native import NativeEngine
from shoal.trainer.engine.parked import Parked, ParkingEngine
from shoal.trainer.engine.precision import GENERATION_DTYPES, generation_dtype
from shoal.trainer.engine.sampling import Completion, Engine, Sampling
from shoal.trainer.engine.vllm import VllmOptions
from shoal.trainer.engine.vllm_guard import LAYER, Count, GuardedEngine, uncounted
from shoal.trainer.model import Policy

__all__ = [
    "GENERATION_DTYPES",
    "Completion",
    "Engine",
    "Parked",
    "ParkingEngine",
    "Sampling",
    "VllmOptions",
    "make_engine",
]


def make_engine(
    policy: Policy, vllm: VllmOptions | None = None, count: Count = uncounted, dtype: str = "same"
) -> Engine:
    """Return the native engine where the model's layout is known to it, else the one over `generate`.

    With `vllm` it is vLLM instead, as long as that works; what it could not do goes to `count`. `dtype` is one of
    `GENERATION_DTYPES`: the type of the native engine's weights. The other engines keep the policy's own.
    """
    if vllm is not None:
        return GuardedEngine(policy, vllm, partial(make_engine, count=count, dtype=dtype), count)
    if supports(policy.model):
        return NativeEngine(policy, dtype)
    if generation_dtype(dtype, policy.dtype, policy.device.type) != policy.dtype:
        count(LAYER, "dtype_kept")
    return GenerateEngine(policy)
