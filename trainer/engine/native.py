"""The native engine: continuous batching for Llama-like models, one prefill a prompt and one small pass a token."""

from collections.abc import Sequence
from threading import Lock

import torch

from shoal.trainer.engine import parked
from shoal.trainer.engine.decoder import Decoder
from shoal.trainer.engine.flight import Drawn, Flight, Request, Terms
from shoal.trainer.engine.parked import Enough, Parked
from shoal.trainer.engine.precision import generation_dtype
from shoal.trainer.engine.sampling import Completion, Sampling, completed, uniforms
from shoal.trainer.model import Policy

MAX_ROWS = 512  # rows in flight: bounds the cache, as the next does; the draws depend on neither
CACHE_BYTES = 1 << 30


class NativeEngine:
    """Sample with stacked weights and one preallocated cache; equal to the engine over `generate`, and faster."""

    def __init__(self, policy: Policy, dtype: str = "same") -> None:
        """Take the policy's weights, in one of GENERATION_DTYPES."""
        self._policy = policy
        self._decoder = Decoder(policy.model, generation_dtype(dtype, policy.dtype, policy.device.type))
        self._eos = torch.tensor(policy.eos_ids, device=policy.device)
        self._version = policy.version
        self._turn = Lock()  # refresh writes the weights that a pass in another thread reads

    def refresh(self) -> None:
        """Take over the policy's present weights."""
        with self._turn:
            self._decoder.refresh()
            self._version = self._policy.version

    def detach(self) -> None:
        """Copy the weights, now and at every `refresh`, so that `sample` may run while the policy is trained."""
        with self._turn:
            self._decoder.detach()
            self._version = self._policy.version

    def sample(
        self, prompts: Sequence[str], group_size: int, sampling: Sampling, generator: torch.Generator
    ) -> list[list[Completion]]:
        """Return `group_size` completions for each prompt, equal for equal weights and generator state."""
        uniform_RT = uniforms(len(prompts) * group_size, sampling.max_tokens, generator)
        encoded = {text: tuple(self._policy.encode_prompt(text)) for text in dict.fromkeys(prompts)}
        requests = [Request(encoded[text], 0) for text in prompts for _ in range(group_size)]
        drawn, _ = self._run(requests, uniform_RT, sampling, None)
        rows = completed(self._policy, [(row.ids, row.logps, ()) for row in drawn])
        return [rows[at : at + group_size] for at in range(0, len(rows), group_size)]

    def begin(
        self, prompts: Sequence[str], group_size: int, sampling: Sampling, generator: torch.Generator
    ) -> list[Parked]:
        """Return the rows of one `sample` call, waiting for their first token."""
        return parked.begin(self._policy, prompts, group_size, sampling, generator)

    def proceed(
        self, rows: Sequence[Parked], sampling: Sampling, enough: Enough | None = None
    ) -> list[Completion | Parked]:
        """Sample until every row is done, or until `enough` says that the others shall be parked."""
        parked.require_draws(rows, sampling)
        uniform_RT = torch.tensor([row.draws[: sampling.max_tokens] for row in rows])
        requests = [Request(row.prompt_ids + row.ids, len(row.ids)) for row in rows]
        drawn, version = self._run(requests, uniform_RT, sampling, enough)
        return parked.extended(self._policy, rows, [(d.ids, d.logps, d.done) for d in drawn], version)

    def _run(
        self, requests: Sequence[Request], uniform_RT: torch.Tensor, sampling: Sampling, enough: Enough | None
    ) -> tuple[list[Drawn], int]:
        """Return what the rows drew, and the policy version by which."""
        if not requests:
            return [], self._version
        terms = Terms(sampling, self._eos, self._policy.pad_id, MAX_ROWS, CACHE_BYTES)
        with self._turn:
            flight = Flight(self._decoder, requests, uniform_RT.to(self._policy.device), terms)
            return flight.run(enough), self._version
