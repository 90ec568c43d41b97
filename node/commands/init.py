"""`shoal init`: a home with an identity and a file of settings; it asks nothing and never replaces anything."""

import sys
from pathlib import Path

from shoal.node.declared import toml_text
from shoal.node.home import Home
from shoal.node.settings_page import template
from shoal.protocol.errors import EnvironmentFault
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
    place = Home.make(home)
    made: list[str] = []
    with place.lock():
        if not place.identity.exists():
            Identity.generate().save(place.identity)
            made.append("identity.key")
        if not place.config.exists():
            _write_config(place.config, swarm)
            made.append("config.toml")
    key = Identity.load(place.identity).key.hex()
    done = f"made {' and '.join(made)}" if made else "nothing to do: identity.key and config.toml are there"
    sys.stdout.write(f"{place.path}: {done}\nkey {key}\n")
    if swarm is not None and "config.toml" not in made:
        sys.stderr.write(f"shoal: {place.config} was left as it is: set `swarm = {toml_text(swarm)}` there\n")
    return 0


def _write_config(path: Path, swarm: str | None) -> None:
    text = template()
    if swarm is not None:
        place = swarm if "://" in swarm else str(Path(swarm).absolute())
        text = text.replace("# swarm = …", f"swarm = {toml_text(place)}", 1)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror}") from error
