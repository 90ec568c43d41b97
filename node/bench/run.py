"""One measurement of this machine with one model, within the time that was given."""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shoal.node.bench import advice
from shoal.node.bench.advice import Advice
from shoal.node.bench.rates import matmul_rates, threads
from shoal.node.bench.work import GROUP, PROMPT, Speed, Work
from shoal.node.checks.memory import available, device_memory, memory, shape_of
from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.trainer.model import Policy, load_policy, model_folder

ROWS = (8, 16, 32, 64, 128)
PART = 0.04  # share of the time that one figure may take; it takes longer where one call does


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured: a model on a device, for how long. Without `threads`, one and all cores are tried."""

    model: str = "default"
    device: str = "cpu"
    threads: int | None = None
    max_tokens: int = 16
    seconds: float = 20.0

    def __post_init__(self) -> None:
        """Check before anything is loaded."""
        for name, least, most in (("threads", 1, 256), ("max_tokens", 1, 1 << 16), ("seconds", 0.1, 3600)):
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise UsageError(f"--{name.replace('_', '-')} {value}: must lie between {least} and {most}")


@dataclass(frozen=True, slots=True)
class Bench:
    """What was found. Rates by type of number; speeds in order of rows, at the threads and type that are advised."""

    model: str
    parameters: int
    device: str
    cores: int
    memory_bytes: float
    matmul: dict[str, float]
    sampling: list[Speed]
    updating: list[Speed]
    advice: Advice
    notes: list[str]

    def plain(self) -> dict[str, Any]:
        """The same as plain types."""
        return asdict(self)


def bench(settings: Settings, say: Callable[[str], None] = lambda _: None) -> Bench:
    """Measure. Raises EnvironmentFault for a model that is missing or does not fit, UsageError for its settings."""
    folder = model_folder(settings.model)
    if not folder.is_dir():
        raise EnvironmentFault(
            f"no model directory at {folder}; give `default` or the path of a Hugging Face directory"
        )
    shape = shape_of(folder)
    have = fits(folder, settings)
    policy = load_policy(folder, device=settings.device)
    room_for(policy, settings)
    runs = Runs(policy, settings, say)
    count, rates = runs.threads()
    with threads(count):
        dtype = runs.dtype(rates, shape.parameters)
        sampling, updating = runs.by_rows(dtype, rates)
    group, prompts = advice.split(advice.enough_rows(sampling))
    found = Advice(count, dtype, group, prompts, advice.micro_tokens(shape, have), advice.largest_model(have))
    return Bench(
        model=settings.model,
        parameters=shape.parameters,
        device=settings.device,
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=have,
        matmul=rates,
        sampling=sampling,
        updating=updating,
        advice=found,
        notes=runs.notes,
    )


def fits(folder: Path, settings: Settings) -> float:
    """Return the memory there is. Raises EnvironmentFault where the model's training does not fit it."""
    finding = memory(shape_of(folder), GROUP, settings.max_tokens, settings.device)
    have = (device_memory(settings.device) if settings.device.startswith("cuda") else available())[0]
    if finding.verdict == "fail":
        largest = advice.size_name(advice.largest_model(have))
        raise EnvironmentFault(
            f"{settings.model} does not fit: {finding.detail}. Give a smaller --model (largest that fits in full: "
            f"{largest}) or close what else uses memory"
        )
    return have


def room_for(policy: Policy, settings: Settings) -> None:
    """Raise UsageError where prompt and completion are longer than the model reads."""
    longest = getattr(policy.model.config, "max_position_embeddings", None) or 1 << 30
    room = longest - len(policy.encode_prompt(PROMPT))
    if settings.max_tokens > room:
        raise UsageError(f"--max-tokens {settings.max_tokens}: {settings.model} has room for {max(room, 0)}")


class Runs:
    """The measurements, each in its share of the time; what was left out for want of time is in `notes`."""

    def __init__(self, policy: Policy, settings: Settings, say: Callable[[str], None]) -> None:
        """The time begins now."""
        self.policy, self.settings, self.say = policy, settings, say
        self.deadline = time.monotonic() + settings.seconds
        self.part = PART * settings.seconds
        self.notes: list[str] = []

    def threads(self) -> tuple[int, dict[str, float]]:
        """Return the number of threads with the quicker step, and the large product's rates with it."""
        cores = len(os.sched_getaffinity(0))
        tried = [self.settings.threads] if self.settings.threads else sorted({1, cores})
        if not self.settings.device.startswith("cpu"):
            tried = tried[:1]
        best: tuple[float, int, dict[str, float]] | None = None
        for count in tried:
            self.say(f"{count} thread{'s' * (count > 1)} …")
            with threads(count):
                rates = matmul_rates(self.settings.device, self.part / 2)
                work = Work(self.policy, self.settings.max_tokens)
                peak = rates["float32"]
                seconds = sum(1 / f(ROWS[0], self.part, peak).tokens_per_second for f in (work.sampling, work.updating))
            if best is None or seconds < best[0]:
                best = seconds, count, rates
        assert best is not None
        return best[1:]

    def dtype(self, rates: dict[str, float], parameters: int) -> str:
        """Return the quicker type of number for the update."""
        if not advice.half_pays(rates, parameters):
            return "float32"
        self.say("bfloat16 …")
        speeds = {
            dtype: Work(self.policy, self.settings.max_tokens, dtype).updating(32, self.part, rates[dtype])
            for dtype in ("float32", "bfloat16")
        }
        return max(speeds, key=lambda dtype: speeds[dtype].tokens_per_second)

    def by_rows(self, dtype: str, rates: dict[str, float]) -> tuple[list[Speed], list[Speed]]:
        """Return sampling and updating at more and more rows, as long as there is time for twice the last ones."""
        work = Work(self.policy, self.settings.max_tokens, dtype)
        sampling: list[Speed] = []
        updating: list[Speed] = []
        for rows in ROWS:
            self.say(f"{rows} rows …")
            begun = time.monotonic()
            sampling.append(work.sampling(rows, self.part, rates["float32"]))
            updating.append(work.updating(rows, self.part, rates[dtype]))
            now = time.monotonic()
            if rows != ROWS[-1] and now + 2 * (now - begun) > self.deadline:
                self.notes.append(f"no time to measure more than {rows} rows, which may pay: give more --seconds")
                break
        return sampling, updating
