"""`shoal pause | resume | export`: steering a running node. Exit code 3 when one is needed and none runs."""

from collections.abc import Callable
from pathlib import Path

from shoal.node.commands.output import console, shown
from shoal.node.commands.status import control_of
from shoal.node.control import NoNode
from shoal.node.home import Home
from shoal.node.paths import home_dir

OfflineExport = Callable[[Home, Path], str]
"""Writes the model of a home's newest checkpoint to a folder and returns the path; raises EnvironmentFault for none."""


def pause(*, home: Path | None = None) -> int:
    """Let the running node take no further step; it stays in the swarm.

    Parameters
    ----------
    home
        Folder of the node.
    """
    control_of(home).pause()
    console().print("paused: no step begins until `shoal resume`")
    return 0


def resume(*, home: Path | None = None) -> int:
    """Let a paused node go on.

    Parameters
    ----------
    home
        Folder of the node.
    """
    control_of(home).resume()
    console().print("resumed")
    return 0


def export_model(folder: Path, home: Path | None, offline: OfflineExport) -> int:
    """Write the model as a Hugging Face directory: the running node's, else that of the newest checkpoint."""
    try:
        path, source = control_of(home).export(folder), "the running node"
    except NoNode:
        place = Home(home_dir(home))
        path, source = offline(place, folder.absolute()), "the newest checkpoint (no node runs)"
    console().print(f"exported from {source}: {shown(path, 1000)}", soft_wrap=True)
    return 0
