"""How commands print: JSON for programs, escaped text for people."""

import json
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from shoal.defenses.text import safe
from shoal.node.progress import duration

MISSING = "–"


def print_json(value: Any) -> None:
    """Print one JSON document; whatever is not plain ASCII is escaped."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def console() -> Console:
    """Return the console on standard output, without markup or guessing at what text means."""
    return Console(markup=False, highlight=False, emoji=False)


def shown(value: object, limit: int = 80) -> str:
    """Return anything as one harmless line; a dash for what is not known."""
    return MISSING if value is None or value == "" else safe(str(value), limit)


def styled(value: object, style: str = "", limit: int = 200) -> Text:
    """Return `shown` text for a console."""
    return Text(shown(value, limit), style=style)


def count(value: object) -> str:
    """Return a whole number with separators."""
    return f"{value:,.0f}" if isinstance(value, int | float) else MISSING


def decimal(value: object, digits: int = 2, unit: str = "") -> str:
    """Return a number with so many digits, and its unit."""
    return f"{value:.{digits}f}{unit}" if isinstance(value, int | float) else MISSING


def span(seconds: object) -> str:
    """Return a time span in words."""
    return duration(max(0.0, float(seconds))) if isinstance(seconds, int | float) else MISSING
