"""vLLM as long as it works, and the torch engine from then on: no run ends because an optional library failed."""

import logging
from collections.abc import Callable, Sequence

import torch

from shoal.trainer.engine.sampling import Completion, Engine, Sampling
from shoal.trainer.engine.vllm import EngineFault, VllmEngine, VllmOptions
from shoal.trainer.model import Policy

log = logging.getLogger(__name__)

Count = Callable[[str, str], None]
"""Takes layer and reason of what did not go as asked."""

LAYER = "engine"


def uncounted(layer: str, reason: str) -> None:
    """Count nothing: for measurements and tests."""


class GuardedEngine:
    """An engine over vLLM that falls back to `spare` with a counted reason.

    A lasting fault (missing, does not start, does not reload, other log-probs than ours) ends vLLM for this process;
    another, such as a prompt that is too long for it, sends that one call to the spare engine. Either way the call
    gives what the spare engine gives for the generator's state.
    """

    def __init__(
        self,
        policy: Policy,
        options: VllmOptions,
        spare: Callable[[Policy], Engine],
        count: Count = uncounted,
        start: Callable[[Policy, VllmOptions], Engine] = VllmEngine,
    ) -> None:
        """Start vLLM, or the spare engine when that fails."""
        self._policy, self._make_spare, self._count = policy, spare, count
        self._spare: Engine | None = None
        self._vllm: Engine | None = None
        self._detached = False
        try:
            self._vllm = start(policy, options)
        except EngineFault as fault:
            self._fall_back(fault)

    @property
    def active(self) -> Engine:
        """The engine in use."""
        return self._vllm or self._torch()

    def refresh(self) -> None:
        """Take over the policy's present weights."""
        if self._spare is not None:
            self._spare.refresh()
        if self._vllm is not None:
            try:
                self._vllm.refresh()
            except EngineFault as fault:
                self._fall_back(fault)

    def detach(self) -> None:
        """From now on `sample` may run while the policy is trained."""
        self._detached = True
        for engine in (self._vllm, self._spare):
            if engine is not None:
                engine.detach()

    def sample(
        self, prompts: Sequence[str], group_size: int, sampling: Sampling, generator: torch.Generator
    ) -> list[list[Completion]]:
        """Return `group_size` completions for each prompt, of vLLM or of the engine that replaces it."""
        if self._vllm is not None:
            before = generator.get_state()
            try:
                return self._vllm.sample(prompts, group_size, sampling, generator)
            except EngineFault as fault:
                self._fall_back(fault)
            generator.set_state(before)
        return self._torch().sample(prompts, group_size, sampling, generator)

    def _torch(self) -> Engine:
        if self._spare is None:
            self._spare = self._make_spare(self._policy)
            if self._detached:
                self._spare.detach()
        return self._spare

    def _fall_back(self, fault: EngineFault) -> None:
        self._count(LAYER, fault.reason)
        if fault.lasting:
            log.warning("sampling goes on without vLLM: %s", fault)
            self._vllm = None
        self._torch()
