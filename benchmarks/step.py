"""One training step against TRL's GRPOTrainer: the same weights, prompts, rewards, lengths, threads and settings.

    make trl-env && make smollm2            # once: the reference in .venv-trl, the small real model
    python benchmarks/step.py               # every figure that is missing, then docs/results/speed.md
    python benchmarks/step.py --again       # all of them anew
    python benchmarks/step.py --cells tiny-8x8x12-t1 --arms shoal --again   # one cell, one arm; the other is kept
    python benchmarks/step.py --render      # only write the page from the figures there are
    python benchmarks/step.py --quick       # a few tiny steps, to see that it works; nothing is written

Each arm is a process of its own; they take turns step by step (A B A B), and ratios are of minima and of medians. A
cell is one JSON file: the benchmark can be stopped at any time and goes on where it was. What is not installed is left
out with a line that says so. Take final figures on a machine that does nothing else.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from _step_job import Job
from _step_process import REFERENCE, ROOT, Broken, alone, started
from _step_results import tables, write_results
from cyclopts import App

SMOLLM2 = "runs/smollm2-135m"
ARMS = ("shoal", "trl")
CORES = len(os.sched_getaffinity(0))

Arm = Literal["shoal", "trl"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement. `steps`: whole steps in turn; `memory`: peaks of fresh processes; `cost`, `profile`: ours."""

    name: str
    kind: Literal["steps", "memory", "cost", "profile"]
    job: Job
    repeats: int = 1
    warm: int = 1


def tiny(prompts: int, threads: int) -> Job:
    """A job on the default model."""
    return Job("default", prompts, 8, 12, threads)


def small(prompts: int, group_size: int, tokens: int) -> Job:
    """A job on the small real model, with all cores."""
    return Job(SMOLLM2, prompts, group_size, tokens, CORES)


CELLS: tuple[Cell, ...] = (
    Cell("tiny-8x8x12-t1", "steps", tiny(8, 1), 30, 5),
    Cell("tiny-32x8x12-t1", "steps", tiny(32, 1), 20, 5),
    Cell("tiny-8x8x12-all", "steps", tiny(8, CORES), 30, 5),
    Cell("tiny-32x8x12-all", "steps", tiny(32, CORES), 20, 5),
    Cell("tiny-profile", "profile", tiny(8, 1)),
    Cell("smollm2-4x8x64", "steps", small(4, 8, 64), 3, 1),
    Cell("smollm2-cost", "cost", small(4, 8, 32), 2),
    Cell("smollm2-profile", "profile", small(4, 8, 16)),
    Cell("smollm2-memory-8x512", "memory", small(1, 8, 512), 1, 1),
)
QUICK: tuple[Cell, ...] = (
    Cell("tiny-2x4x6", "steps", Job("default", 2, 4, 6, 1), 2, 1),
    Cell("tiny-memory-4x6", "memory", Job("default", 1, 4, 6, 1)),
    Cell("tiny-cost", "cost", Job("default", 2, 8, 6, 1), 1),
    Cell("tiny-profile", "profile", Job("default", 2, 4, 6, 1)),
)

app = App(help=__doc__, result_action="return_value")


def take_turns(cell: Cell, arms: Sequence[str]) -> dict[str, Any]:
    """Steps of all arms in turn; refuses arms that read other prompts or made other lengths."""
    with started(arms, cell.job) as running:
        for _ in range(cell.warm):
            for process in running:
                process.step(cell.job.tokens)
        made = [[process.step(cell.job.tokens) for process in running] for _ in range(cell.repeats)]
    check_alike([process.ready["prompts"] for process in running], "token ids of the prompts")
    check_alike([step["tokens"] for steps in made for step in steps], "completion tokens")
    run = time.time()
    return {
        process.arm: {
            "run": run,
            "versions": process.ready["torch"],
            "seconds": [steps[at]["seconds"] for steps in made],
            "sample_seconds": [steps[at].get("sample_seconds") for steps in made],
            "tokens": made[0][at]["tokens"],
            "signal_rows": made[0][at].get("signal_rows"),
        }
        for at, process in enumerate(running)
    }


def check_alike(values: Sequence[Any], what: str) -> None:
    """End the benchmark where the arms do not do the same work."""
    if len(set(values)) > 1:
        raise Broken(f"the arms differ in {what}: {sorted(set(values))}. No figure was kept.")


def peaks(cell: Cell, arms: Sequence[str]) -> dict[str, Any]:
    """The peak of each arm in a process of its own: a short step first, so that the optimizer's moments are there."""
    found = {}
    for arm in arms:
        with started([arm], cell.job) as (process,):
            for _ in range(cell.warm):
                process.step(min(4, cell.job.tokens))
            step = process.step(cell.job.tokens)
        found[arm] = {"run": time.time(), "peak": step["peak"], "seconds": [step["seconds"]], "tokens": step["tokens"]}
    return found


def measure(cell: Cell, arms: Sequence[str]) -> dict[str, Any]:
    """Run one cell."""
    if cell.kind == "steps":
        return take_turns(cell, arms)
    if cell.kind == "memory":
        return peaks(cell, arms)
    return {"shoal": alone(cell.kind, cell.job, cell.repeats) | {"run": time.time()}}


def run_cell(cell: Cell, arms: Sequence[str], out: Path, again: bool) -> None:
    """Run the arms of a cell that have no figures yet, all of them when one is missing, and keep the result."""
    path = out / f"{cell.name}.json"
    old = json.loads(path.read_text()) if path.exists() else {"arms": {}}
    wanted = [arm for arm in arms if arm == "shoal" or cell.kind in ("steps", "memory")]
    if not again and all(arm in old["arms"] for arm in wanted):
        return
    load, begun = os.getloadavg()[0], time.monotonic()
    arms_now = old["arms"] | measure(cell, wanted)
    kept = {
        "cell": cell.name,
        "kind": cell.kind,
        "job": json.loads(cell.job.dump()),
        "cores": CORES,
        "load": load,
        "seconds": time.monotonic() - begun,
        "arms": arms_now,
    }
    part = path.with_suffix(".part")
    part.write_text(json.dumps(kept, indent=1) + "\n")
    part.rename(path)
    print(f"{cell.name}: {kept['seconds']:.0f} s, load before it {load:.1f}", flush=True)


def usable_arms(asked: Sequence[str]) -> list[str]:
    """The arms that are installed; says which is not."""
    if "trl" in asked and not REFERENCE.exists():
        print("there is no .venv-trl (make trl-env): Shoal alone is measured", flush=True)
        return [arm for arm in asked if arm != "trl"]
    return list(asked)


@app.default
def main(
    *,
    out: Path = Path("runs/step"),
    cells: list[str] | None = None,
    arms: list[Arm] | None = None,
    again: bool = False,
    budget: float = float("inf"),
    render: bool = False,
    quick: bool = False,
) -> int:
    """Measure what is missing, then write the page; 1 when a cell broke.

    Parameters
    ----------
    out
        Folder of the cells.
    cells
        Only these cells.
    arms
        Only these arms; figures of the other one are kept.
    again
        Measure anew what is there.
    budget
        Seconds after which no further cell is begun.
    render
        Measure nothing.
    quick
        Run a few tiny steps only, and write nothing.
    """
    unknown = sorted(set(cells or ()) - {cell.name for cell in CELLS})
    if unknown:
        raise SystemExit(f"unknown cells {', '.join(unknown)}: choose from {', '.join(cell.name for cell in CELLS)}")
    chosen = QUICK if quick else tuple(cell for cell in CELLS if not cells or cell.name in cells)
    if render:
        chosen = ()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if quick else out
        folder.mkdir(parents=True, exist_ok=True)
        present = usable_arms(arms or ARMS) if chosen else []
        broken = run_all(chosen, present, (folder, again), time.monotonic() + budget)
        if quick:
            print(tables(folder))
        else:
            print(f"results: {write_results(out, [cell.name for cell in CELLS])}")
    return int(bool(broken))


def run_all(cells: Sequence[Cell], arms: Sequence[str], into: tuple[Path, bool], deadline: float) -> list[str]:
    """Run cells until the deadline; return the names of those that broke, after saying why."""
    broken: list[str] = []
    for cell in cells:
        if time.monotonic() >= deadline:
            print(f"{cell.name}: not begun, the budget is spent", flush=True)
            continue
        if cell.job.model != "default" and not (ROOT / cell.job.model).is_dir():
            print(f"{cell.name}: left out, there is no {cell.job.model} (make smollm2)", flush=True)
            continue
        try:
            run_cell(cell, arms, *into)
        except Broken as error:
            print(f"{cell.name}: no figure. {error}", flush=True)
            broken.append(cell.name)
    return broken


if __name__ == "__main__":
    sys.exit(app())
