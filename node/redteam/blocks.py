"""What a report is made of: sections of text, tables and curves, and how figures are put into words."""

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.node.redteam.cells import POSITIVE
from shoal.node.redteam.results import Change, Point
from shoal.node.report.intervals import Interval, percent

NOTHING = ""
NAMED = 3  # reasons in one cell of a table


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the first column names the row."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One curve with its bounds; `kind` is off, full, control or ablated."""

    kind: str
    words: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves over rounds, kept under a name."""

    name: str
    label: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A heading (level 2 or 3) and what stands below it."""

    title: str
    level: int
    blocks: tuple[str | Table | Chart, ...]


def share(found: Interval | None) -> str:
    """Return a share with its bounds; of none seen, the upper bound is what was shown."""
    if found is None:
        return NOTHING
    if found.mean == 0.0:
        return f"0 of {found.items:,} (at most {percent(found.high, 2)})"
    return f"{percent(found.mean)} ({100 * found.low:.1f}–{100 * found.high:.1f})"


def points_of(found: Change | None) -> str:
    """Return a difference of accuracies in points."""
    if found is None:
        return NOTHING
    error = "" if found.error is None else f" ± {100 * found.error:.1f}"
    return f"{100 * found.mean:+.1f}{error} ({found.seeds} seed{'s' * (found.seeds > 1)})"


def some(counts: Mapping[str, int]) -> str:
    """Return the most frequent counts in words."""
    named = [f"{name} {count:,}" for name, count in list(counts.items())[:NAMED]]
    return ", ".join([*named, "…"] if len(counts) > NAMED else named)


def in_words(defenses: str) -> str:
    """Return which layers are on, in words."""
    kind, _, layer = defenses.partition("-")
    return {
        "off": "nothing on",
        "full": "all layers on",
        "no": f"all but {'those that judge rewarded rows' if layer == 'appraisal' else layer}",
        "only": "positive rows alone" if layer == POSITIVE else f"{layer} alone",
    }[kind]
