"""`shoal pause | resume | export`: steering a running node. Exit code 3 when one is needed and none runs."""

from pathlib import Path

from shoal.node.commands.output import console, shown
from shoal.node.commands.status import control_of
from shoal.node.control import NoNode
from shoal.node.home import Home


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


def export(folder: Path, /, *, home: Path | None = None) -> int:
    """Write the model as a Hugging Face directory: the running node's, else that of the newest checkpoint.

    Parameters
    ----------
    folder
        Where to write it; it must not exist yet.
    home
        Folder of the node.
    """
    try:
        path, source = control_of(home).export(folder), "the running node"
    except NoNode:
        from shoal.node.commands.offline import export_newest

        path, source = export_newest(Home.find(home), folder.absolute()), "the newest checkpoint, since no node runs"
    console().print(f"{shown(path, 1000)}: the model of {source}", soft_wrap=True)
    return 0
