"""Sampling against the library's own `generate`: the same weights, prompts, lengths and threads, in turn.

    make smollm2                          # once: the small real model
    python benchmarks/generate.py         # both models, at several numbers of rows
    python benchmarks/generate.py --quick # the default model alone, briefly

Arms take turns (A B A B) in one process; ratios are of minima. No completion ends early, so that all arms draw equally
many tokens. The library samples as it comes (`do_sample=True`, temperature 1, no top-k), each prompt repeated for its
group; it returns no log-probabilities, ours does. `mixed` are rows of very different lengths with an end mark: the
library runs until the longest is done. Where the CPU has bfloat16 units, `--dtype bfloat16` measures both arms in that.
Take final figures on a machine that does nothing else.
"""

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from cyclopts import App

from shoal.trainer.engine import Sampling, make_engine
from shoal.trainer.model import Policy, load_policy, model_folder, set_threads

SMOLLM2 = Path("runs/smollm2-135m")
GROUP = 8
NEVER = 1 << 40  # no token has this id, so no completion ends early


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement: a model, rows (in groups of 8), the most new tokens, how often, and whether rows end early."""

    model: str
    rows: int
    tokens: int
    repeats: int
    mixed: bool = False

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{Path(self.model).name} {self.rows} x {self.tokens}{' mixed' if self.mixed else ''}"


def cells(quick: bool) -> list[Cell]:
    """What is measured, in order."""
    if quick:
        return [Cell("default", rows, 12, 5) for rows in (64, 256)]
    tiny = [Cell("default", rows, 12, 30) for rows in (8, 64, 256, 512)] + [Cell("default", 256, 64, 10, True)]
    if not SMOLLM2.is_dir():
        print(f"{SMOLLM2} is not there (make smollm2): left out", flush=True)
        return tiny
    return tiny + [Cell(str(SMOLLM2), rows, 64, 2) for rows in (8, 32, 64)]


def prompts(cell: Cell) -> list[str]:
    """Prompts of somewhat different lengths."""
    draw = random.Random(cell.rows)
    if cell.model != "default":
        return [f"What is {draw.randint(2, 99)} plus {draw.randint(2, 999)}?" for _ in range(cell.rows // GROUP)]
    kinds = ("reverse", "copy", "sort", "last")
    words = ["".join(draw.choices("abcdef", k=draw.randint(2, 6))) for _ in range(cell.rows // GROUP)]
    return [f"{draw.choice(kinds)} {word}=" for word in words]


def library(policy: Policy, cell: Cell) -> Callable[[], Any]:
    """The arm of the library: prompts repeated, padded on the left."""
    encoded = [policy.encode_prompt(text) for text in prompts(cell) for _ in range(GROUP)]
    width = max(map(len, encoded))
    ids = torch.tensor([[policy.pad_id] * (width - len(row)) + row for row in encoded])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in encoded])
    policy.model.eval()
    options: dict[str, Any] = {"do_sample": True, "top_k": 0, "max_new_tokens": cell.tokens}
    ends = list(policy.eos_ids) if cell.mixed else None
    policy.model.generation_config.eos_token_id = None  # type: ignore[union-attr]

    def run() -> Any:
        return policy.model.generate(  # type: ignore[operator]
            input_ids=ids, attention_mask=mask, eos_token_id=ends, pad_token_id=policy.pad_id, **options
        )

    return run


def ours(policy: Policy, cell: Cell) -> Callable[[], Any]:
    """Our arm: the engine as a node uses it, from texts to texts with log-probabilities."""
    engine = make_engine(policy if cell.mixed else replace(policy, eos_ids=(NEVER,)))
    generator, texts = torch.Generator().manual_seed(0), prompts(cell)
    return lambda: engine.sample(texts, GROUP, Sampling(max_tokens=cell.tokens), generator)


def seconds(arm: Callable[[], Any]) -> float:
    """Seconds of one call."""
    begun = time.perf_counter()
    arm()
    return time.perf_counter() - begun


def measure(cell: Cell, dtype: str) -> dict[str, Any]:
    """Seconds of all arms in turn, as minima, and what follows from them."""
    policy = load_policy(model_folder(cell.model), dtype=dtype)
    arms = {"generate": library(policy, cell), "shoal": ours(policy, cell)}
    taken = {name: [seconds(arm) for _ in range(1)] for name, arm in arms.items()}  # the first warms up
    for _ in range(cell.repeats):
        for name, arm in arms.items():
            taken[name].append(seconds(arm))
    best = {name: min(times[1:]) for name, times in taken.items()}
    tokens = cell.rows * cell.tokens
    rates = {name: None if cell.mixed else round(tokens / time, 1) for name, time in best.items()}
    return {
        "cell": cell.name,
        "dtype": dtype,
        "threads": torch.get_num_threads(),
        "seconds": {name: round(time, 5) for name, time in best.items()},
        "tokens_per_second": rates,
        "ratio": round(best["generate"] / best["shoal"], 2),
    }


app = App(help=__doc__, result_action="return_value")


@app.default
def main(*, quick: bool = False, threads: int = 1, dtype: str = "float32", out: Path | None = None) -> None:
    """Measure, print a line for each cell, and write all of them as JSON where `--out` says."""
    set_threads(threads)
    found: list[dict[str, Any]] = []
    for cell in cells(quick):
        result = measure(cell, dtype)
        found.append(result)
        both = ", ".join(f"{name} {time * 1000:.1f} ms" for name, time in result["seconds"].items())
        rate = result["tokens_per_second"]["shoal"]
        print(f"{cell.name}: {both}, ratio {result['ratio']}" + (f", {rate} tokens/s" if rate else ""), flush=True)
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    app()
