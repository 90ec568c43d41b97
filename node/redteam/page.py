"""The report written: Markdown with its curves beside it, and one HTML page that is complete in itself."""

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from shoal.defenses.text import safe
from shoal.node.redteam.blocks import Chart, Section, Table
from shoal.node.redteam.results import Results
from shoal.node.redteam.story import INTRO, tell
from shoal.node.report.plots import Series, line_chart
from shoal.protocol.errors import EnvironmentFault

PAGE, MARKDOWN, CURVES = "redteam.html", "redteam.md", "curves"
COLOURS = {"off": "#c0392b", "full": "#0b66b5", "control": "#6b6f7b", "ablated": "#c58a00"}
COLOURS |= {"ink": "#1c2126", "soft": "#59626c", "grid": "#d4d7d6"}
"""What the variables of a chart stand for where no page colours it."""
LOOKS = {"off": "dashed red", "full": "solid blue", "control": "dotted grey", "ablated": "dash-dotted yellow"}
CELL_CHARACTERS = 300
NAMESPACE = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'


def svg_of(chart: Chart) -> str:
    """Return a chart's curves with their bounds, coloured by variables of a page."""
    series = [
        Series(
            line.kind,
            tuple((point.round, point.share.mean) for point in line.points),
            bounds=[(point.round, point.share.low, point.share.high) for point in line.points],
        )
        for line in chart.lines
    ]
    return line_chart(chart.name, chart.label, series)


def alone(svg: str) -> str:
    """Return an SVG that is a file of its own: with its colours, its font and its name space."""
    svg = re.sub(r"var\(--([a-z]+)\)", lambda found: COLOURS.get(found[1], "sans-serif"), svg)
    return svg.replace("<svg ", f"<svg {NAMESPACE} ", 1)


def inert(text: str) -> str:
    """Return text as one line that can do nothing to who looks at it."""
    return safe(text, CELL_CHARACTERS)


def plain_cell(text: str) -> str:
    """Return text as a cell of a Markdown table: a peer's words can neither leave the cell nor become markup."""
    shown = inert(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_|\[\]#~!])", r"\\\1", shown)


def as_markdown(sections: Sequence[Section], curves: str) -> str:
    """Return the report as Markdown; its curves lie in the folder `curves`."""
    lines: list[str] = []
    for section in sections:
        lines += [f"{'#' * section.level} {plain_cell(section.title)}", ""]
        for block in section.blocks:
            match block:
                case str():
                    lines += [block, ""]
                case Table():
                    rows = [block.head, ("---",) * len(block.head), *(map(plain_cell, row) for row in block.rows)]
                    lines += [*(f"| {' | '.join(row)} |" for row in rows), ""]
                case Chart():
                    lines += [f"![{plain_cell(block.label)}]({curves}/{block.name}.svg)", ""]
                    lines += ["; ".join(f"{line.words} ({LOOKS[line.kind]})" for line in block.lines) + ".", ""]
    return "\n".join(lines)


def as_page(sections: Sequence[Section]) -> str:
    """Return the report as one HTML page without a script or a foreign file."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["inert"] = inert
    source = files("shoal.node.redteam").joinpath("redteam.html.j2").read_text(encoding="utf-8")
    charts = {
        id(block): Markup(svg_of(block)) for section in sections for block in section.blocks if isinstance(block, Chart)
    }
    kinds = {"Table": Table, "Chart": Chart}
    return environment.from_string(source).render(
        intro=INTRO, sections=sections, charts=charts, kinds=kinds, id=id, isinstance=isinstance
    )


def write_curves(sections: Sequence[Section], folder: Path) -> None:
    """Write each chart as an SVG file, and remove those that no report shows any more."""
    charts = {
        f"{block.name}.svg": block for section in sections for block in section.blocks if isinstance(block, Chart)
    }
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.svg"):
        if old.name not in charts:
            old.unlink()
    for name, chart in charts.items():
        (folder / name).write_text(alone(svg_of(chart)) + "\n", encoding="utf-8")


def write_report(results: Results, folder: Path) -> Path:
    """Write the report in both forms and return the path of the page; raise `EnvironmentFault` when that fails."""
    sections = tell(results)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_curves(sections, folder / CURVES)
        (folder / MARKDOWN).write_text(f"# Red team\n\n{INTRO}\n\n{as_markdown(sections, CURVES)}", encoding="utf-8")
        (folder / PAGE).write_text(as_page(sections), encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(f"cannot write to {folder}: {error.strerror}; give another --out") from None
    return folder / PAGE
