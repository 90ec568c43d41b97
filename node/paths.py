"""Where things are kept: the user's cache, by the XDG base directory specification."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """Return the folder for what can be made again, e.g. tuned starting weights."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal"
