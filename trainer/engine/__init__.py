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

from shoal.trainer.engine.decoder import supports
from shoal.trainer.engine.generate import GenerateEngine
from shoal.trainer.engine.native import NativeEngine
from shoal.trainer.engine.parked import Parked, ParkingEngine
from shoal.trainer.engine.sampling import Completion, Engine, Sampling
from shoal.trainer.engine.vllm import VllmOptions
from shoal.trainer.engine.vllm_guard import Count, GuardedEngine, uncounted
from shoal.trainer.model import Policy

__all__ = ["Completion", "Engine", "Parked", "ParkingEngine", "Sampling", "VllmOptions", "make_engine"]


def make_engine(policy: Policy, vllm: VllmOptions | None = None, count: Count = uncounted) -> Engine:
    """Return the native engine where the model's layout is known to it, else the one over `generate`.

    With `vllm` it is vLLM instead, as long as that works; what it could not do goes to `count`.
    """
    if vllm is not None:
        return GuardedEngine(policy, vllm, make_engine, count)
    return NativeEngine(policy) if supports(policy.model) else GenerateEngine(policy)
