"""The red team's core set and the paper's setting, checked against the targets.

    python benchmarks/redteam.py                  # everything that is missing, with two workers
    python benchmarks/redteam.py --budget 600     # stop beginning new cells after ten minutes
    python benchmarks/redteam.py --render         # only write docs/results/redteam.md from the cells there are
    python benchmarks/redteam.py --quick          # two tiny cells, to see that it works; nothing is written

It is `shoal redteam --core --paper` with a page of results: what is missing is shown empty, and misses as they are.
"""

import os
import platform
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from cyclopts import App

from shoal.node.commands.redteam import run_cells, say
from shoal.node.redteam.cells import NO_ATTACK, Cell
from shoal.node.redteam.matrix import Choice, chosen
from shoal.node.redteam.page import as_markdown, write_curves, write_report
from shoal.node.redteam.results import Results, read_results
from shoal.node.redteam.run import Effort
from shoal.node.redteam.story import INTRO, tell

RESULTS = Path(__file__).parent.parent / "docs" / "results"
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"
COMMANDS = """\
    .venv/bin/python benchmarks/redteam.py    # this page: the core set and the paper's setting
    shoal redteam --core --out runs/redteam   # the core set alone; --budget SECONDS, --attacks, --shares, --seeds
    shoal redteam --list                      # every attack with the outcome expected of it
    shoal simulate --attack text:0.25         # one attack, watched"""

app = App(help=__doc__, result_action="return_value")


def write_results(results: Results) -> Path:
    """Write the curves and the generated part of docs/results/redteam.md; return its path."""
    sections = tell(results)
    page = RESULTS / "redteam.md"
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = page.read_text(encoding="utf-8") if page.exists() else f"# Red team\n\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    body = "\n\n".join([INTRO, made_by(), as_markdown(sections, "redteam").strip()])
    page.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{after}", encoding="utf-8")
    write_curves(sections, RESULTS / "redteam")
    return page


def made_by() -> str:
    """Return the commands that make the page, the kind of machine, and the day."""
    machine = f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}"
    day = datetime.now(tz=UTC).date().isoformat()
    return f"Made on {day} with Shoal {version('shoal-node')} on {machine}, one core for each cell, by\n\n{COMMANDS}"


def run_quick(workers: int) -> int:
    """Run two tiny cells and throw them away; return 1 when one fails."""
    cells = [Cell(NO_ATTACK, 0, 0, "full", rounds=3), Cell("text", 25, 0, "off", rounds=3)]
    with tempfile.TemporaryDirectory() as scratch:
        tidings, finished = run_cells(cells, Path(scratch), Effort(workers))
        write_report(read_results(Path(scratch), cells), Path(scratch))
    for name, why in tidings.failed.items():
        print(f"failed: {name}: {why}")
    return 0 if finished and not tidings.failed else 1


@app.default
def main(
    *,
    out: Path = Path("runs/redteam"),
    budget: float = float("inf"),
    workers: int = 2,
    render: bool = False,
    quick: bool = False,
) -> int:
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
        Run two tiny cells only, and write nothing.
    """
    if quick:
        return run_quick(workers)
    cells = chosen(Choice(), core=True, paper=True)
    tidings, finished = run_cells(cells, out, Effort(workers, 0 if render else budget))
    results = read_results(out, cells)
    say(results, write_report(results, out), tidings, finished)
    print(f"results: {write_results(results)}")
    return 1 if tidings.failed else 0


if __name__ == "__main__":
    sys.exit(app())
