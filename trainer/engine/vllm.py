"""The engine over vLLM, in this process: prompts as token ids, a seed a row, weights replaced in place.

vLLM is an extra (`docs/vllm.md`): it is imported when an engine is made, never before. Its arithmetic is its own, so
its log-probs are not quite the trainer's: `mismatch.measure` shows by how much, and after each change of weights `fit`
holds a few sequences against the local model.
"""

import importlib
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import torch

from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.trainer.engine.sampling import Completion, Sampling, completed
from shoal.trainer.engine.vllm_weights import export_untied, untied_weights
from shoal.trainer.mismatch import Mismatch, compare
from shoal.trainer.model import Policy

FAULTS = (ImportError, OSError, RuntimeError, ValueError, TypeError, AttributeError, LookupError, AssertionError)
"""What vLLM is known to raise when it cannot start, sample or load."""

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.05}
"""Most that `fit.mean` may be, in nats a token: beyond it vLLM does not run the weights that the trainer has."""

_PROBES, _PROBE_TOKENS = 4, 48
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process: weights go over without a copy through a socket
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # it would pin the threads of the trainer too
    "VLLM_NO_USAGE_STATS": "1",  # it would report to its makers
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


class EngineFault(EnvironmentFault):
    """vLLM cannot do what was asked; `reason` names the counter, `lasting` says whether asking again is in vain."""

    def __init__(self, reason: str, detail: str, lasting: bool = True) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.lasting = reason, lasting


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """Sizes of the engine. `sleep` frees the GPU's memory while nothing is sampled (CUDA only; the CPU ignores it)."""

    dtype: str = "float32"
    kv_cache_mb: int = 1024
    max_rows: int = 256
    context: int = 4096
    sleep: bool = False

    def __post_init__(self) -> None:
        """Check the sizes before anything is loaded."""
        if self.dtype not in TOLERANCE:
            raise UsageError(f"vLLM's dtype is {self.dtype!r}: choose one of {', '.join(TOLERANCE)}")
        for name in ("kv_cache_mb", "max_rows", "context"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}: give 1 or more")


class VllmEngine:
    """Sample with vLLM. Raises EngineFault when it is missing, does not start, or does not compute what we compute.

    Equal generator state gives equal seeds and so, as far as vLLM repeats itself, equal draws; they are other draws
    than those of the torch engines. A row may end earlier than `max_tokens`, where the context ends.
    """

    def __init__(self, policy: Policy, options: VllmOptions | None = None, library: Any = None) -> None:
        """Start vLLM on the policy's present weights; `library` stands for the module `vllm`."""
        self._policy, self._options = policy, options or VllmOptions()
        self._vllm = library or _import()
        context = getattr(policy.model.config, "max_position_embeddings", None) or self._options.context
        self.context = min(context, self._options.context)
        self.fit: Mismatch | None = None
        self._probes = _first_probes(policy, self.context)
        with TemporaryDirectory(prefix="shoal-vllm-") as folder, _faults("vllm_start"), _undisturbed():
            export_untied(policy, folder)
            self._llm = self._vllm.LLM(**self._arguments(folder))
        self._check()
        self._rest()

    def detach(self) -> None:
        """Do nothing: vLLM has weights of its own, and takes over new ones in `refresh` alone."""

    def refresh(self) -> None:
        """Load the policy's present weights into vLLM and hold its log-probs against the local ones."""
        self._wake()
        with _faults("vllm_reload"), _undisturbed():
            weights = iter(untied_weights(self._policy.model))
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
            self._llm.reset_prefix_cache()  # what it holds was computed with the old weights
        self._check()
        self._rest()

    def sample(
        self, prompts: Sequence[str], group_size: int, sampling: Sampling, generator: torch.Generator
    ) -> list[list[Completion]]:
        """Return `group_size` completions for each prompt; see the class for what is equal and what is not."""
        encoded = [self._policy.encode_prompt(text) for text in prompts for _ in range(group_size)]
        if not encoded:
            return []
        longest = max(map(len, encoded))
        if longest >= self.context:
            detail = f"a prompt of {longest} tokens leaves no room in a context of {self.context}"
            raise EngineFault("vllm_prompt_too_long", detail, lasting=False)
        seeds = torch.randint(2**31 - 1, (len(encoded),), generator=generator, device=generator.device).tolist()
        params = [self._params(sampling, seed, len(ids)) for ids, seed in zip(encoded, seeds, strict=True)]
        self._wake()
        outputs = self._generate(encoded, params)
        self._rest()
        with _faults("vllm_sample"):
            rows = completed(self._policy, [(*_drawn(output.outputs[0]), ()) for output in outputs])
        self._remember(encoded, rows)
        return [rows[start : start + group_size] for start in range(0, len(rows), group_size)]

    def _arguments(self, folder: str) -> dict[str, Any]:
        """What `vllm.LLM` is told: no tokenizer, no defaults of the folder, log-probs after temperature and filters."""
        options = self._options
        return {
            "model": folder,
            "skip_tokenizer_init": True,
            "generation_config": "vllm",
            "dtype": options.dtype,
            "max_model_len": self.context,
            "max_num_seqs": options.max_rows,
            "kv_cache_memory_bytes": options.kv_cache_mb << 20,
            "logprobs_mode": "processed_logprobs",
            "enable_prefix_caching": True,
            "enforce_eager": self._policy.device.type == "cpu",  # compiling costs minutes there
            "enable_sleep_mode": self._sleeps,
            "disable_log_stats": True,
            "seed": 0,
        }

    def _params(self, sampling: Sampling, seed: int, prompt_tokens: int) -> Any:
        return self._vllm.SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=min(sampling.max_tokens, self.context - prompt_tokens),
            seed=seed,
            logprobs=0,  # of the sampled token alone
            stop_token_ids=list(self._policy.eos_ids),
            detokenize=False,
        )

    def _generate(self, encoded: Sequence[Sequence[int]], params: Sequence[Any]) -> list[Any]:
        requests = [{"prompt_token_ids": list(ids)} for ids in encoded]
        with _faults("vllm_sample"):
            return self._llm.generate(requests, list(params), use_tqdm=False)

    def _remember(self, encoded: Sequence[Sequence[int]], rows: Sequence[Completion]) -> None:
        """Keep a few rows as probes: a change of weights shows where the policy really samples."""
        step = max(1, len(rows) // _PROBES)
        whole = [[*ids, *row.ids] for ids, row in zip(encoded[::step], rows[::step], strict=True)]
        self._probes = [ids[:_PROBE_TOKENS] for ids in whole[:_PROBES] if len(ids) > 1] or self._probes

    def _check(self) -> None:
        """Raise EngineFault unless vLLM's log-probs of the probes are those of the local model."""
        params = self._vllm.SamplingParams(temperature=1.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        outputs = self._generate(self._probes, [params] * len(self._probes))
        with _faults("vllm_check"):
            theirs = [_prompt_logps(ids, output) for ids, output in zip(self._probes, outputs, strict=True)]
        self.fit = compare(_local_logps(self._policy, self._probes), theirs)
        most = TOLERANCE[self._options.dtype]
        if self.fit is None or not self.fit.mean <= most:
            found = "nothing" if self.fit is None else f"{self.fit.mean:.2g} nats a token"
            raise EngineFault("vllm_mismatch", f"its log-probs differ from the local ones by {found}; at most {most:g}")

    @property
    def _sleeps(self) -> bool:
        return self._options.sleep and self._policy.device.type == "cuda"

    def _wake(self) -> None:
        """Take the GPU's memory back. Written after vLLM's documentation; not run on a GPU."""
        if self._sleeps:
            with _faults("vllm_wake"):
                self._llm.wake_up()

    def _rest(self) -> None:
        """Leave the GPU's memory to the trainer. Written after vLLM's documentation; not run on a GPU."""
        if self._sleeps:
            with _faults("vllm_sleep"):
                self._llm.sleep(level=1)


def _import() -> Any:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with _faults("vllm_missing"):
        return importlib.import_module("vllm")


@contextmanager
def _faults(reason: str) -> Iterator[None]:
    """Turn what vLLM raises into an EngineFault with this reason."""
    try:
        yield
    except EngineFault:
        raise
    except FAULTS as error:
        first = (str(error).strip().splitlines() or [""])[0][:200]
        raise EngineFault(reason, f"{type(error).__name__}: {first}") from error


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Undo what vLLM does to the process: it seeds the global generators and disables torch.set_num_threads."""
    setter, threads = torch.set_num_threads, torch.get_num_threads()
    state, plain_state = torch.get_rng_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_num_threads = setter
        torch.set_num_threads(threads)
        torch.set_rng_state(state)
        random.setstate(plain_state)


def _first_probes(policy: Policy, context: int) -> list[list[int]]:
    """Sequences spread over the vocabulary, for the time before anything was sampled."""
    embeddings: Any = policy.model.get_input_embeddings()  # type: ignore[operator]
    size = embeddings.num_embeddings
    length = min(_PROBE_TOKENS, context - 1)
    return [[(7919 * (row * length + at) + row) % size for at in range(length)] for row in range(_PROBES)]


def _drawn(output: Any) -> tuple[list[int], list[float]]:
    """Return the sampled ids and their log-probs."""
    ids = list(output.token_ids)
    return ids, [float(choices[token].logprob) for token, choices in zip(ids, output.logprobs, strict=True)]


def _prompt_logps(ids: Sequence[int], output: Any) -> list[float]:
    found: Sequence[Mapping[int, Any]] = output.prompt_logprobs[1:]
    return [float(choices[token].logprob) for token, choices in zip(ids[1:], found, strict=True)]


@torch.no_grad()
def _local_logps(policy: Policy, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
    """Log-probs of each sequence's tokens but the first, by the local model."""
    found = []
    for ids in sequences:
        ids_1T = torch.tensor([list(ids)], device=policy.device)
        logits_TV = policy.model(input_ids=ids_1T, use_cache=False).logits[0, :-1].float()
        found.append(logits_TV.log_softmax(-1).gather(1, ids_1T[0, 1:, None])[:, 0].tolist())
    return found
