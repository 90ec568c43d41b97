"""Swarm sampling against training alone: splits of own and peers' rollouts, rules for peers' rows, and regimes.

    python benchmarks/sapo.py                  # everything that is missing, with two workers
    python benchmarks/sapo.py --budget 600     # stop beginning new cells after ten minutes
    python benchmarks/sapo.py --render         # only write docs/results/sapo.md from the cells there are
    python benchmarks/sapo.py --quick          # two short cells, to see that it works; nothing is written

A cell is one simulation, kept as one JSON file: so the benchmark can be stopped at any time and goes on where it was.
Cells that were not run are shown empty.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from _sapo_results import write_results
from cyclopts import App

from shoal.node.config import Arm, Learning, Links, Mixing, RunOptions, SimulateConfig, SwarmOptions

SEEDS = (0, 1, 2)
SPLITS = ((8, 0), (6, 2), (4, 4), (2, 6))
RULES = ("all", "positive", "likely")
ROUNDS = 200
REGIME_ROUNDS = 100  # a regime is compared with training alone in the same regime, over the steep part of the curve

app = App(help=__doc__, result_action="return_value")


@dataclass(frozen=True)
class Cell:
    """One simulation: a regime, a split, a rule for peers' rows, a way of mixing, an arm and a seed."""

    regime: str
    local: int
    external: int
    rule: str
    mix: str
    arm: Arm
    seed: int
    settings: dict[str, dict[str, Any]] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        """Return the name of the cell's file."""
        regime = self.regime.replace(" ", "_").replace(",", "")
        return f"{regime}-{self.arm}-{self.local}-{self.external}-{self.rule}-{self.mix}-{self.seed}"

    def config(self, out: Path) -> SimulateConfig:
        """Return the simulation's settings."""
        told = self.settings
        rounds = ROUNDS if self.regime == "default" else REGIME_ROUNDS
        mixing = Mixing(local=self.local, external=self.external, peer_rows=self.rule, mix=self.mix)
        run = RunOptions(out=out, arms=(self.arm,), eval_every=20, eval_items=256, checkpoint_every=rounds)
        return SimulateConfig(
            mixing=replace(mixing, **told.get("mixing", {})),
            learning=Learning(**told.get("learning", {})),
            swarm=replace(
                SwarmOptions(rounds=rounds, seed=self.seed, own_skill=0.4, other_skill=0.03), **told.get("swarm", {})
            ),
            links=Links(**told.get("links", {})),
            run=run,
        )


REGIMES: dict[str, dict[str, dict[str, Any]]] = {
    "default": {},
    "sparse": {"swarm": {"other_skill": 0.005}},
    "alike": {"swarm": {"own_skill": 0.05, "other_skill": 0.05}},
    "uneven": {"swarm": {"own_skill": 0.8, "other_skill": 0.01}},
    "never shown": {"swarm": {"own_skill": 0.4, "other_skill": 0.0}},
    "lr 1e-3": {"learning": {"lr": 1e-3}},
    "stale": {"links": {"speed_spread": 1.2}, "swarm": {"max_age_rounds": 12, "max_lag": 12}},
    "synchronous": {"links": {"speed_spread": 0.0}, "swarm": {"max_age_rounds": 0}},
    "eight nodes": {"swarm": {"nodes": 8}},
    "lr 1e-4": {"learning": {"lr": 1e-4}},
    "half lost, slow": {"links": {"loss": 0.5, "delay": 20.0}},
}
"""What each regime changes against the defaults."""


def core_cells(seed: int) -> Iterator[Cell]:
    """Yield the table of the paper for one seed: splits x rules, with both controls."""
    yield Cell("default", 8, 0, "none", "whole", "isolated", seed)
    yield Cell("default", 8, 0, "none", "whole", "isolated_total", seed)
    for local, external in SPLITS[1:]:
        for rule in RULES:
            yield Cell("default", local, external, rule, "whole", "swarm", seed)


def regime_cells(seed: int) -> Iterator[Cell]:
    """Yield 8/0 and 4/4 in every other regime, and joined groups in the default one, for one seed."""
    for rule in RULES:
        yield Cell("default", 4, 4, rule, "joined", "swarm", seed)
    for regime, settings in REGIMES.items():
        if regime == "default":
            continue
        yield Cell(regime, 8, 0, "none", "whole", "isolated", seed, settings)
        for rule in ("all", "positive"):
            yield Cell(regime, 4, 4, rule, "whole", "swarm", seed, settings)


def all_cells() -> list[Cell]:
    """Return every cell, those of the table of the paper first."""
    cells = [cell for seed in SEEDS for cell in core_cells(seed)]
    for seed in SEEDS[:2]:
        cells.extend(regime_cells(seed))
    return cells


def run_cell(cell: Cell) -> dict[str, Any]:
    """Run one cell in this process and return its figures: means over nodes."""
    from shoal.node.heldout import held_out_prompts
    from shoal.node.plan import make_plan
    from shoal.node.report.summary import summarise
    from shoal.node.runfolder import new_run
    from shoal.node.simulate import Simulation
    from shoal.trainer.tasks.registry import TaskRegistry
    from shoal.trainer.verify import Grader

    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        config = cell.config(Path(scratch) / "run")
        if cell.rule == "none":
            config = replace(config, mixing=replace(config.mixing, peer_rows="all"))
        folder = new_run(config)
        with Grader(TaskRegistry(make_plan(config).specs)) as grader:
            held_out = held_out_prompts(grader.registry, config.run.eval_items)
            Simulation(config, folder, grader, held_out, lambda _: None).run()
        folder.close()
        [arm] = summarise(folder.path).arms
        return {
            "cell": {key: value for key, value in asdict(cell).items() if key != "settings"},
            "seconds": time.perf_counter() - began,
            "cumulative_reward": arm.cumulative_reward,
            "reward": [[round_, value] for round_, value in arm.reward],
            "accuracy": [[round_, value] for round_, value in arm.accuracy],
            "ages": {str(age): count for age, count in sorted(arm.intake.ages.items())},
            "accepted": arm.intake.accepted,
            "refused": arm.intake.refused,
            "shortfall": arm.intake.shortfall,
            "tokens": arm.cost.tokens,
        }


def run_missing(missing: list[Cell], out: Path, workers: int, budget: float) -> None:
    """Run cells, `workers` at a time, until all are there or `budget` seconds have passed; keep each as it ends."""
    deadline = time.monotonic() + budget
    # Each worker is a new program: a fork of a process with tensors and threads may hang.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        running: dict[Future[dict[str, Any]], Cell] = {}
        while running or (missing and time.monotonic() < deadline):
            while missing and len(running) < workers and time.monotonic() < deadline:
                cell = missing.pop(0)
                running[pool.submit(run_cell, cell)] = cell
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                keep(running.pop(future), future.result(), out)
                print(f"{len(missing)} to begin", flush=True)


def keep(cell: Cell, result: dict[str, Any], out: Path) -> None:
    """Write a result whole or not at all."""
    part = out / f".{cell.name}.part"
    part.write_text(json.dumps(result) + "\n")
    part.rename(out / f"{cell.name}.json")
    print(f"{cell.name}: {result['cumulative_reward']:.1f} in {result['seconds']:.0f} s", flush=True)


@app.default
def main(
    *,
    out: Path = Path("runs/sapo"),
    budget: float = float("inf"),
    workers: int = 2,
    render: bool = False,
    quick: bool = False,
) -> None:
    """Run the cells that are missing, then write the results.

    Parameters
    ----------
    out
        Folder of the cells.
    budget
        Seconds after which no further cell is begun.
    workers
        Cells that run at the same time, one core each.
    render
        Run nothing.
    quick
        Run two short cells only, and write nothing.
    """
    if quick:
        short = {"swarm": {"rounds": 10}}
        with tempfile.TemporaryDirectory() as scratch:
            alone = Cell("quick", 8, 0, "none", "whole", "isolated", 0, short)
            together = Cell("quick", 4, 4, "positive", "whole", "swarm", 0, short)
            run_missing([alone, together], Path(scratch), workers, budget)
        return
    out.mkdir(parents=True, exist_ok=True)
    cells = all_cells()
    missing = [cell for cell in cells if not (out / f"{cell.name}.json").exists()]
    run_missing(missing, out, workers, 0 if render else budget)
    print(f"results: {write_results(out, cells)}")


if __name__ == "__main__":
    sys.exit(app())
