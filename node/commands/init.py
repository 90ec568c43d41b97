"""`shoal init`: a home with an identity and a file of settings; it asks nothing and never replaces anything."""

import sys
from pathlib import Path

from shoal.node.declared import toml_text
from shoal.node.home import Home
from shoal.node.layers import load
from shoal.node.settings_page import LEFT_OUT, template
from shoal.node.shelf import write_whole
from shoal.node.sources import check_source, is_link, is_url
from shoal.protocol.identity import Identity


def init(*, home: Path | None = None, swarm: str | None = None) -> int:
    """Make the home of a node: keys, settings, folders. A second call changes nothing.

    Parameters
    ----------
    home
        Folder of the node ($SHOAL_HOME, else ~/.local/share/shoal).
    swarm
        The swarm to live in: a manifest FILE, a URL or shoal://ID@MULTIADDR; noted in config.toml.
    """
    source = None if swarm is None else _settled(swarm)
    place = Home.make(home)
    made: list[str] = []
    if not (place.identity.exists() and place.config.exists()):  # else a node may be running here, and that is well
        with place.lock():
            made = _make(place, source)
    key = Identity.load(place.identity).key.hex()
    done = f"made {' and '.join(made)}" if made else "nothing to do: identity.key and config.toml are there"
    sys.stdout.write(f"{place.path}: {done}\nkey {key}\n")
    if source is not None and "config.toml" not in made and load(place.config, {}, {}).config.swarm != source:
        sys.stderr.write(f"shoal: {place.config} was left as it is: set `swarm = {toml_text(source)}` there\n")
    return 0


def _settled(swarm: str) -> str:
    """Return where a swarm is found, the same from any folder; raises UsageError for what can be none."""
    check_source(swarm)
    return swarm if is_link(swarm) or is_url(swarm) else str(Path(swarm).expanduser().absolute())


def _make(place: Home, source: str | None) -> list[str]:
    """Make what is missing, and return its names."""
    made: list[str] = []
    if not place.identity.exists():
        Identity.generate().save(place.identity)
        made.append("identity.key")
    if not place.config.exists():
        _write_config(place.config, source)
        made.append("config.toml")
    return made


def _write_config(path: Path, source: str | None) -> None:
    text = template()
    if source is not None:
        text = text.replace(f"# swarm = {LEFT_OUT}", f"swarm = {toml_text(source)}", 1)
    write_whole(path, text.encode())
