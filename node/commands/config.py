"""`shoal config show | check | path`: what a node would run with, and where each value comes from."""

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from shoal.node.commands.output import print_json
from shoal.node.declared import options, toml_text, value_of
from shoal.node.home import Home
from shoal.node.layers import checked, load

Flag = Annotated[bool, Parameter(negative="")]

app = App(name="config", help="Show and check the settings of a node.")


@app.command
def show(*, home: Path | None = None, origin: Flag = False, json: Flag = False) -> int:
    """Print every setting with its value.

    Parameters
    ----------
    home
        Folder of the node.
    origin
        Say where each value comes from: default, config.toml, environment.
    json
        Print one JSON object instead of a list.
    """
    layered = load(Home.find(home).config, os.environ, {})
    values = {option.path: value_of(layered.config, option) for option in options()}
    if json:
        print_json({path: {"value": value, "origin": layered.origins[path]} for path, value in values.items()})
        return 0
    width = max(map(len, values))
    for path, value in values.items():
        line = f"{path:{width}}  {toml_text(value) or '–'}"
        sys.stdout.write(f"{line:{width + 24}}  {layered.origins[path]}\n" if origin else f"{line}\n")
    return 0


@app.command
def check(*, home: Path | None = None) -> int:
    """Check the settings whole, as `shoal run` does before it loads anything.

    Parameters
    ----------
    home
        Folder of the node.
    """
    place = Home.find(home)
    checked(load(place.config, os.environ, {}))
    missing = "" if place.config.exists() else " (no such file: defaults, and the environment)"
    sys.stdout.write(f"{place.config}: good{missing}\n")
    return 0


@app.command
def path(*, home: Path | None = None) -> int:
    """Print where the settings are kept.

    Parameters
    ----------
    home
        Folder of the node.
    """
    sys.stdout.write(f"{Home.find(home).config}\n")
    return 0
