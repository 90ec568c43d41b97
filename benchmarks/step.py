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
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from _step_job import Job
from _step_results import tables, write_results
from cyclopts import App

HERE = Path(__file__).parent
ROOT = HERE.parent
SMOLLM2 = "runs/smollm2-135m"
REFERENCE = ROOT / ".venv-trl" / "bin" / "python"
ARMS = ("shoal", "trl")
PATIENCE = 900  # seconds for one answer of an arm
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
    Cell("smollm2-cost", "cost", small(4, 8, 64), 2),
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


def environment(job: Job) -> dict[str, str]:
    """The environment of an arm: its threads, the tree's own modules, and no hub."""
    threads = str(job.threads)
    return os.environ | {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONPATH": str(ROOT / ".ns"),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }


class Process:
    """An arm at the other end of two pipes. Its standard error goes to a file, whose end is shown when it fails."""

    def __init__(self, arm: str, job: Job) -> None:
        """Start it and wait until it is ready."""
        python = sys.executable if arm == "shoal" else str(REFERENCE)
        self.arm, self._errors = arm, tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            [python, str(HERE / f"_step_{arm}.py"), job.dump()],
            cwd=ROOT,
            env=environment(job),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.ready = self._read()

    def step(self, tokens: int) -> dict[str, Any]:
        """Make one step."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"tokens": tokens}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace")[-2000:]
            raise SystemExit(f"the arm {self.arm} ended with {self._process.wait()}:\n{said}")
        return json.loads(line)

    def close(self) -> None:
        """Let it end; end it when it does not."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def take_turns(cell: Cell, arms: Sequence[str]) -> dict[str, Any]:
    """Steps of all arms in turn; refuses arms that read other prompts or made other lengths."""
    running = [Process(arm, cell.job) for arm in arms]
    try:
        for _ in range(cell.warm):
            for process in running:
                process.step(cell.job.tokens)
        made = [[process.step(cell.job.tokens) for process in running] for _ in range(cell.repeats)]
    finally:
        for process in running:
            process.close()
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
        raise SystemExit(f"the arms differ in {what}: {sorted(set(values))}. No figure was kept.")


def peaks(cell: Cell, arms: Sequence[str]) -> dict[str, Any]:
    """The peak of each arm in a process of its own: a short step first, so that the optimizer's moments are there."""
    found = {}
    for arm in arms:
        process = Process(arm, cell.job)
        try:
            for _ in range(cell.warm):
                process.step(min(4, cell.job.tokens))
            step = process.step(cell.job.tokens)
        finally:
            process.close()
        found[arm] = {"run": time.time(), "peak": step["peak"], "seconds": [step["seconds"]], "tokens": step["tokens"]}
    return found


def alone(cell: Cell) -> dict[str, Any]:
    """What is measured of ours alone."""
    command = [sys.executable, str(HERE / "_step_update.py"), cell.kind, cell.job.dump(), str(cell.repeats)]
    done = subprocess.run(command, cwd=ROOT, env=environment(cell.job), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{cell.name} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return {"shoal": json.loads(done.stdout) | {"run": time.time()}}


def measure(cell: Cell, arms: Sequence[str]) -> dict[str, Any]:
    """Run one cell."""
    if cell.kind == "steps":
        return take_turns(cell, arms)
    return peaks(cell, arms) if cell.kind == "memory" else alone(cell)


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
) -> None:
    """Measure what is missing, then write the page.

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
    deadline = time.monotonic() + budget
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if quick else out
        folder.mkdir(parents=True, exist_ok=True)
        present = usable_arms(arms or ARMS) if chosen else []
        for cell in chosen:
            if time.monotonic() >= deadline:
                break
            if cell.job.model != "default" and not (ROOT / cell.job.model).is_dir():
                print(f"{cell.name}: left out, there is no {cell.job.model} (make smollm2)", flush=True)
                continue
            run_cell(cell, present, folder, again)
        if quick:
            print(tables(folder))
            return
    print(f"results: {write_results(out, [cell.name for cell in CELLS])}")


if __name__ == "__main__":
    sys.exit(app())
