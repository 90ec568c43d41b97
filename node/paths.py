"""Where things are kept: a node's home and the user's cache, by the XDG base directory specification."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """Return the folder for what can be made again, e.g. tuned starting weights."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal"


def home_dir(named: Path | None = None) -> Path:
    """Return the folder of a node, absolute: as named, as $SHOAL_HOME says, or the user's own."""
    chosen = named or os.environ.get("SHOAL_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return (Path(data) / "shoal").absolute()
