"""The likelihood tests: what they catch, what they cost honest rows, and how long they take.

    python benchmarks/likelihood.py                  # everything that is missing
    python benchmarks/likelihood.py --budget 600     # stop beginning new cells after ten minutes
    python benchmarks/likelihood.py --render         # only write docs/results/likelihood.md from the cells there are
    python benchmarks/likelihood.py --quick          # two tiny cells, to see that it works; nothing is written

Text cells need SmolLM2-135M in runs/smollm2-135m (`make smollm2`) and are left out without it; swarm cells run on the
default model. A cell is one JSON file: the benchmark can be stopped at any time and goes on where it was.
"""

import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from _likelihood_results import write_results
from _likelihood_swarm import SwarmCell, run_swarm
from _likelihood_text import TextCell, run_text
from cyclopts import App

Cell = TextCell | SwarmCell

MODEL = Path("runs/smollm2-135m")
CELLS: tuple[Cell, ...] = (
    TextCell(1.0, 1.0, 0),
    SwarmCell(0, 3e-4),
    SwarmCell(1, 3e-4),
    SwarmCell(0, 1e-3),
    TextCell(0.7, 1.0, 0),
    TextCell(1.3, 1.0, 0),
    TextCell(1.0, 1.0, 4),
    TextCell(1.0, 0.9, 0),
    TextCell(0.7, 1.0, 4),
)

app = App(help=__doc__, result_action="return_value")


def run_cell(cell: Cell, out: Path) -> dict[str, Any]:
    """Run one cell; an older look at completions reads the cell in which they were sampled."""
    if isinstance(cell, SwarmCell):
        return run_swarm(cell, out / "cache")
    fresh = None
    if cell.age:
        fresh = json.loads((out / f"{cell.fresh}.json").read_text())
    return run_text(cell, MODEL, fresh)


def run_missing(cells: list[Cell], out: Path, budget: float) -> None:
    """Run cells that have no file until all are there or `budget` seconds have passed."""
    deadline = time.monotonic() + budget
    for cell in cells:
        path = out / f"{cell.name}.json"
        if path.exists() or time.monotonic() >= deadline:
            continue
        if isinstance(cell, TextCell) and not MODEL.is_dir():
            print(f"{cell.name}: left out, there is no {MODEL} (make smollm2)", flush=True)
            continue
        if isinstance(cell, TextCell) and cell.age and not (out / f"{cell.fresh}.json").exists():
            print(f"{cell.name}: left out, {cell.fresh} has to be there first", flush=True)
            continue
        result = run_cell(cell, out)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(result) + "\n")
        part.rename(path)
        print(f"{cell.name}: {result['seconds']:.0f} s of CPU time", flush=True)


@app.default
def main(
    *, out: Path = Path("runs/likelihood"), budget: float = float("inf"), render: bool = False, quick: bool = False
) -> None:
    """Run the cells that are missing, then write the results.

    Parameters
    ----------
    out
        Folder of the cells.
    budget
        Seconds after which no further cell is begun.
    render
        Run nothing.
    quick
        Run two tiny cells only, and write nothing.
    """
    torch.set_num_threads(1)
    if quick:
        with tempfile.TemporaryDirectory() as scratch:
            tiny: list[Cell] = [SwarmCell(0, 3e-4, rounds=7)]
            tiny += [replace(TextCell(1.0, 1.0, 0), prompts=2, poisoned=1, max_tokens=8)]
            run_missing(tiny, Path(scratch), budget)
        return
    out.mkdir(parents=True, exist_ok=True)
    run_missing(list(CELLS), out, 0 if render else budget)
    print(f"results: {write_results(out, [cell.name for cell in CELLS])}")


if __name__ == "__main__":
    sys.exit(app())
