"""Charts of the report as inline SVG: drawn by matplotlib, coloured and lettered by the page that holds them."""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from shoal.node.report.figures import Curve
from shoal.node.report.intervals import Interval

# Colours stand for variables of the page, so that one drawing serves its light and its dark dress. The values here
# never show; they only have to be distinct.
TOKENS = {
    "swarm": "#0000a1",
    "isolated": "#0000a2",
    "isolated_total": "#0000a3",
    "off": "#0000a4",
    "full": "#0000a5",
    "control": "#0000a6",
    "ablated": "#0000a7",
    "ink": "#0000b1",
    "soft": "#0000b2",
    "grid": "#0000b3",
}
# A second sign beside colour: for eyes that do not tell the colours apart, and for print.
DASHES = {"swarm": "-", "isolated": (0, (5, 2)), "isolated_total": (0, (1.2, 1.6))}
DASHES |= {"off": (0, (5, 2)), "full": "-", "control": (0, (1.2, 1.6)), "ablated": (0, (5, 2, 1.2, 2))}
LOWEST_TOP = 0.1  # of the vertical axis of a line chart
THIN, FAINT, MANY = 0.3, 0.16, 8  # opacity of single nodes, and of many
BAND = 0.14  # opacity of the interval along a curve
SIZE = (4.0, 2.7)  # inches at 100 points each: small enough that letters stay readable on a phone
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",  # only measured with: the page's own font takes its place
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "axes.edgecolor": TOKENS["grid"],
    "axes.labelcolor": TOKENS["soft"],
    "xtick.color": TOKENS["grid"],
    "xtick.labelcolor": TOKENS["soft"],
    "ytick.color": TOKENS["grid"],
    "ytick.labelcolor": TOKENS["soft"],
    "ytick.major.size": 0.0,
    "grid.color": TOKENS["grid"],
    "grid.linewidth": 0.7,
}


@dataclass(frozen=True, slots=True)
class Series:
    """One arm in a line chart: thin curves of its nodes, the thick mean, the interval at its end or all along."""

    arm: str
    mean: Curve
    nodes: Sequence[Curve] = ()
    end: Interval | None = None
    bounds: Sequence[tuple[int, float, float]] = ()


@contextmanager
def _canvas(name: str) -> Iterator[tuple[Figure, Axes]]:
    """Yield an empty chart under the settings above; `name` keeps its ids apart from those of other charts."""
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": f"shoal/{name}"}):
        figure = Figure(figsize=SIZE, layout="constrained")
        figure.patch.set_visible(False)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        axes.grid(axis="y")
        yield figure, axes


def _svg(figure: Figure, label: str) -> str:
    """Return the chart as an SVG element; the same figures give the same bytes."""
    out = io.StringIO()
    FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)  # its one rule is for every element of the page
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    # Ids that nothing refers to would stand twice in a page with two charts.
    text = re.sub(r' id="[A-Za-z][A-Za-z0-9.]*_\d+"', "", text)
    text = re.sub(
        r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", rf'<svg \1 role="img" aria-label="{escape(label)}">', text, count=1
    )
    for token, colour in TOKENS.items():
        text = text.replace(colour, f"var(--{token.replace('_', '-')})")
    return text.replace("'DejaVu Sans'", "var(--font)").strip()


def _smooth(curve: Curve, width: int) -> Curve:
    """Return the running mean over the last `width` points."""
    values = [value for _, value in curve]
    means = (sum(part) / len(part) for end in range(1, len(values) + 1) if (part := values[max(0, end - width) : end]))
    return tuple(zip((round_ for round_, _ in curve), means, strict=True))


def _draw(axes: Axes, entry: Series, width: int) -> None:
    colour, faint = TOKENS[entry.arm], FAINT if len(entry.nodes) > MANY else THIN
    if entry.bounds:
        rounds, low, high = zip(*entry.bounds, strict=True)
        axes.fill_between(rounds, low, high, color=colour, alpha=BAND, linewidth=0)
    for curve in entry.nodes:
        axes.plot(*_points(_smooth(curve, width)), color=colour, linewidth=0.8, alpha=faint)
    axes.plot(*_points(_smooth(entry.mean, width)), color=colour, linewidth=2.4, linestyle=DASHES[entry.arm])
    if entry.end and entry.mean:
        bounds = [[entry.end.mean - entry.end.low], [entry.end.high - entry.end.mean]]
        last = [entry.mean[-1][0]], [entry.end.mean]
        axes.errorbar(*last, yerr=bounds, color=colour, linewidth=1.4, capsize=3, fmt="o", markersize=4)


def line_chart(name: str, label: str, series: Sequence[Series], width: int = 1) -> str:
    """Return curves over rounds, shares in percent; `width` is the span of the running mean (1: as measured)."""
    with _canvas(name) as (figure, axes):
        for entry in reversed(series):  # the first arm lies on top
            _draw(axes, entry, width)
        axes.set_xlabel("round")
        # A chart of almost nothing must not look like one of much.
        axes.set_ylim(0, max(LOWEST_TOP, axes.get_ylim()[1]))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.margins(x=0.02)
        return _svg(figure, label)


def _points(curve: Curve) -> tuple[list[int], list[float]]:
    return [round_ for round_, _ in curve], [value for _, value in curve]


def bar_chart(name: str, label: str, counts: Mapping[int, int], unit: str) -> str:
    """Return a histogram over whole numbers: the share of all in percent."""
    total = sum(counts.values())
    with _canvas(name) as (figure, axes):
        values = range(min(counts, default=0), max(counts, default=0) + 1)
        shares = [counts.get(value, 0) / total if total else 0.0 for value in values]
        bars = axes.bar(list(values), shares, color=TOKENS["swarm"], width=0.72)
        texts = [f"{100 * share:.0f} %" if share >= 0.005 else "" for share in shares]
        axes.bar_label(bars, labels=texts, padding=2, color=TOKENS["ink"], fontsize=8.5)
        axes.set_xlabel(unit)
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        axes.margins(y=0.12)
        return _svg(figure, label)
