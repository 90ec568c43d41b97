"""Where things are kept: a node's home and the user's cache, by the XDG base directory specification."""

import os
from pathlib import Path

from shoal.protocol.errors import EnvironmentFault


def cache_dir() -> Path:
    """Return the folder for what can be made again, e.g. tuned starting weights. Raises EnvironmentFault."""
    return (_xdg("XDG_CACHE_HOME") or _user() / ".cache") / "shoal"


def home_dir(named: Path | None = None) -> Path:
    """Return the folder of a node, absolute: as named, as $SHOAL_HOME says, or the user's own.

    Raises EnvironmentFault when none is named and the user has none.
    """
    chosen = named or os.environ.get("SHOAL_HOME")
    if chosen:
        return Path(os.path.expanduser(chosen)).absolute()
    return (_xdg("XDG_DATA_HOME") or _user() / ".local" / "share") / "shoal"


def _xdg(variable: str) -> Path | None:
    """Return the folder that a variable names; a relative one is ignored, as the specification demands."""
    folder = Path(os.environ.get(variable) or ".")
    return folder if folder.is_absolute() else None


def _user() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:  # e.g. in a container, under a user id that has no name
        raise EnvironmentFault("this user has no home folder: name the node's with --home or SHOAL_HOME") from error
