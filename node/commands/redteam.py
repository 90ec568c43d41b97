"""`shoal redteam`: a matrix of attacks on simulated swarms, with and without defences, and the report on it.

Exit codes: 0 done, or the budget is spent · 1 a cell failed · 2 an option that cannot be met · 130 interrupted.
"""

import math
import signal
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.table import Table

from shoal.node.commands.output import console, print_json, shown, styled
from shoal.node.config import require
from shoal.protocol.errors import UsageError

if TYPE_CHECKING:  # the command's own imports are heavy
    from collections.abc import Iterator, Sequence

    from shoal.node.redteam.cells import Cell
    from shoal.node.redteam.matrix import Choice
    from shoal.node.redteam.results import Results
    from shoal.node.redteam.run import Effort, Look, Tidings

INTERRUPTED = 130
FAILED = 1
EXPECTED = "expected: the layer that should stop it, stated before any run; partial: some of it is expected to pass"
UNSURE = "not measurable: too few answers or seeds, an attack that takes nothing by itself, or an unevenly busy machine"
_FLAG = Parameter(negative="")
_LISTED = Parameter(show_default=False)
_FLAT = Parameter(name="*")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Which cells of the matrix are wanted."""

    attacks: Annotated[str, _LISTED] = ""
    """Names separated by commas (all of them when left out)."""
    shares: Annotated[str, _LISTED] = ""
    """Shares of attacking nodes in percent, of 0, 8, 25 and 50, separated by commas; 8 needs swarms of twelve nodes."""
    seeds: Annotated[str, _LISTED] = ""
    """Seeds separated by commas."""
    ablate: Annotated[str, _LISTED] = ""
    """Layers to leave out, one at a time, separated by commas; only-LAYER switches all others off instead."""
    core: Annotated[bool, _FLAG] = False
    """The core set: what plants a behaviour at 25 %, also without the layer expected to stop it, and more."""
    paper: Annotated[bool, _FLAG] = False
    """The setting of arXiv 2511.09780, vertical and horizontal, with the default model."""
    rounds: int = 100
    """Rounds of each simulation."""
    setting: Literal["vertical", "horizontal"] = "vertical"
    """vertical: whole sets of own prompts; horizontal: joined groups of shared prompts."""
    model: str = "default"
    """`default`, or a directory that transformers can load."""


@dataclass(frozen=True, kw_only=True)
class Means:
    """What may be spent, and where results go."""

    out: Path = Path("runs/redteam")
    """Folder of the cells and the report."""
    budget: float = math.inf
    """Seconds after which no further cell is begun; 0 only writes the report."""
    workers: int = 2
    """Cells that run at the same time, one core each."""


_ASKED, _MEANS = Asked(), Means()


def redteam(
    *,
    asked: Annotated[Asked, _FLAT] = _ASKED,
    means: Annotated[Means, _FLAT] = _MEANS,
    list: Annotated[bool, _FLAG] = False,
    json: Annotated[bool, _FLAG] = False,
) -> int:
    """Run attacks on simulated swarms, with defences and without, and report how they fared.

    Each cell of the matrix is one simulation and one file: cells that are there are not run again, Ctrl-C ends with a
    report on them, and the next call goes on.

    Parameters
    ----------
    list
        List the attacks with the outcome that is expected of each, and run nothing.
    json
        Print the result as one JSON object.
    """
    if list:
        list_attacks(as_json=json)
        return 0
    from shoal.node.redteam.matrix import chosen
    from shoal.node.redteam.run import Effort

    choice = choice_of(asked)
    require(means.workers >= 1, f"--workers {means.workers}: must be at least 1")
    require(means.budget >= 0, f"--budget {means.budget:g}: give seconds, or 0 to write the report and run nothing")
    cells = chosen(choice, core=asked.core, paper=asked.paper)
    check_sets(asked, choice, cells)
    tidings, finished = run_cells(cells, means.out, Effort(means.workers, means.budget), quiet=json)
    return report(cells, means.out, tidings, finished, as_json=json)


def choice_of(asked: Asked) -> "Choice":
    """Return what was asked for; raise `UsageError` for what there is not."""
    from shoal.node.redteam.matrix import Choice, check_choice

    shares, seeds = numbers("--shares", asked.shares), numbers("--seeds", asked.seeds)
    attacks, ablate = names(asked.attacks), names(asked.ablate)
    choice = Choice(attacks, shares, seeds, ablate, asked.rounds, asked.setting, asked.model)
    check_choice(choice)
    return choice


def check_sets(asked: Asked, choice: "Choice", cells: "Sequence[Cell]") -> None:
    """Raise `UsageError` for a model that is not there, and for what the sets of cells would pass over in silence."""
    default = choice.model == "default"
    require(
        default or Path(choice.model).is_dir(),
        f"--model {choice.model}: no such directory; give that of a model that transformers can load, or default",
    )
    if not (asked.core or asked.paper):
        return
    require(default or not asked.paper, "--paper is run with the default model: leave out --model, or --paper")
    require(choice.setting == "vertical", f"--setting {choice.setting}: --core and --paper have settings of their own")
    require(asked.core or not choice.ablate, "--ablate: --paper leaves no layer out; add --core, or leave out --paper")
    left = {cell.attack for cell in cells}
    for name in choice.attacks:
        require(name in left, f"--attacks {name}: not in that set at these shares; leave out --core and --paper")


def names(text: str) -> tuple[str, ...]:
    """Return the names in a text, which commas separate."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def numbers(option: str, text: str) -> tuple[int, ...]:
    """Return the whole numbers in a text, which commas separate; raise `UsageError` for anything else."""
    try:
        return tuple(int(part) for part in names(text))
    except ValueError:
        like = "0,25" if option == "--shares" else "0,1"
        raise UsageError(f"{option} {text!r}: write whole numbers separated by commas, e.g. {like}") from None


def list_attacks(*, as_json: bool) -> None:
    """Print every attack with what is expected of it."""
    from shoal.defenses.attacks import ATTACKS
    from shoal.node.redteam.cells import learnable

    if as_json:
        print_json(
            {
                name: {"layer": attack.expected.layer, "why": attack.expected.why, "plants": learnable(name)}
                for name, attack in ATTACKS.items()
            }
        )
        return
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in ("attack", "expected", "why", "plants"):
        made.add_column(head)
    for name, attack in ATTACKS.items():
        said = attack.expected
        made.add_row(*map(styled, (name, said.layer, said.why, "a behaviour" if learnable(name) else "")))
    console().print(made)
    console().print(EXPECTED, soft_wrap=True)


def run_cells(cells: "Sequence[Cell]", out: Path, effort: "Effort", *, quiet: bool = False) -> "tuple[Tidings, bool]":
    """Run the cells that are missing; return how it went, and False when it was interrupted."""
    from shoal.node.redteam.run import Runner, Store

    store = Store(out)
    with store.open():
        missing = [cell for cell in cells if not store.has(cell)]
        with shown_progress(len(cells), len(missing), effort, quiet=quiet) as look:
            runner = Runner(store, effort, look)
            try:
                return runner.run(missing), True
            except KeyboardInterrupt:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would only spoil the report
                return runner.tidings, False


@contextmanager
def shown_progress(total: int, missing: int, effort: "Effort", *, quiet: bool) -> "Iterator[Look]":
    """Yield what shows how far the matrix is: a bar in a terminal, a line for each cell elsewhere."""
    from rich.progress import BarColumn, Progress, TextColumn

    from shoal.node.progress import duration

    bar = Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"), console=console())
    told = -1
    plain = not quiet and not sys.stdout.isatty()

    def look(tidings: "Tidings") -> None:
        nonlocal told
        left = tidings.remaining(effort.workers)
        said = f"{total - missing + len(tidings.done)} of {total} cells"
        said += f", about {duration(left)} left" if left is not None else ""
        said += f", {len(tidings.failed)} failed" if tidings.failed else ""
        running = sum(tidings.running.values())
        bar.update(task, completed=total - missing + len(tidings.done) + len(tidings.failed) + running, said=said)
        if plain and told < 0:
            console().print(f"{total - missing} of {total} cells are there, {missing} to run", soft_wrap=True)
        for cell, seconds in tidings.done[max(0, told) :] if plain else ():
            console().print(f"{cell.name}: {duration(seconds)}; {said}", soft_wrap=True)
        told = len(tidings.done)

    task = bar.add_task("red team", total=max(1, total), completed=total - missing, said=f"{total} cells")
    if quiet or not sys.stdout.isatty():
        yield look
    else:
        with bar:
            yield look


def report(cells: "Sequence[Cell]", out: Path, tidings: "Tidings", finished: bool, *, as_json: bool) -> int:
    """Write the report, say what came out, and return the exit code."""
    from shoal.node.redteam.page import write_report
    from shoal.node.redteam.results import read_results

    results = read_results(out, cells)
    page = write_report(results, out)
    if as_json:
        print_json(summary(results, page, tidings, finished))
    else:
        say(results, page, tidings, finished)
    return INTERRUPTED if not finished else FAILED if tidings.failed else 0


def summary(results: "Results", page: Path, tidings: "Tidings", finished: bool) -> dict[str, Any]:
    """Return the result as plain data."""
    from shoal.node.redteam.targets import targets

    return {
        "cells": len(results.planned),
        "run": len(results.results),
        "missing": [cell.name for cell in results.missing],
        "failed": tidings.failed,
        "interrupted": not finished,
        "targets": {
            model: [
                {"target": one.what, "limit": one.limit, "measured": one.measured, "verdict": one.verdict.value}
                for one in targets(results.narrowed(model=model))
            ]
            for model in results.values("model")
        },
        "report": str(page),
    }


def say(results: "Results", page: Path, tidings: "Tidings", finished: bool) -> None:
    """Print the targets, what is missing, and where the report is."""
    from shoal.node.redteam.results import Verdict
    from shoal.node.redteam.targets import targets

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in ("target", "limit", "measured", "verdict"):
        made.add_column(head)
    unsure = False
    for model in results.values("model"):
        for one in targets(results.narrowed(model=model)):
            if one.verdict:
                unsure |= one.verdict is Verdict.UNKNOWN
                look = {"met": "green", "missed": "bold red"}.get(one.verdict.value, "yellow")
                cells = [styled(text) for text in (one.what, one.limit, one.measured)]
                made.add_row(*cells, styled(one.verdict.value, look))
    out = console()
    if made.row_count:
        out.print(made)
    if unsure:
        out.print(UNSURE, soft_wrap=True)
    missing = results.missing
    out.print(
        f"{len(results.results)} of {len(results.planned)} cells run" + (", the rest is missing" if missing else "")
    )
    for name, why in tidings.failed.items():
        out.print(styled(f"failed: {name}: {shown(why, 300)}", "red", 400), soft_wrap=True)
    out.print(f"report: {page}", soft_wrap=True)
    if not finished:
        out.print("interrupted: the same command goes on with the cells that are missing")
