"""`shoal run`: the node as a long-lived process. Flags lie over the environment, and both over config.toml."""

import os
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, ArgumentCollection, Group, Parameter

from shoal.node.bridge.options import BridgeOptions
from shoal.node.config import CanaryOptions, Learning, Mixing
from shoal.node.defense_options import DefenseOptions
from shoal.node.engine_options import EngineOptions
from shoal.node.options import HealthOptions, LifeOptions, NetworkOptions

FLAT = Parameter(name="*", negative="", consume_multiple=True)
Flag = Annotated[bool, Parameter(negative="")]

_given: set[str] = set()  # names of the flags of this command line; a process reads one


def _note_given(_app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Note which flags were given: a flag at its default still lies over config.toml."""
    _given.clear()
    _given.update(name for argument in arguments if argument.tokens for name in argument.names)


app = App(name="run", help_epilogue="", config=(_note_given,), result_action="return_value")


@app.default
def run(
    *,
    home: Path | None = None,
    swarm: str | None = None,
    bootstrap_only: Flag = False,
    rollouts_only: Flag = False,
    observe: Flag = False,
    mixing: Annotated[Mixing, FLAT, Parameter(group=Group("Mixing", sort_key=2))] = Mixing(),
    learning: Annotated[Learning, FLAT, Parameter(group=Group("Learning", sort_key=3))] = Learning(),
    network: Annotated[NetworkOptions, FLAT, Parameter(group=Group("Network", sort_key=4))] = NetworkOptions(),
    health: Annotated[HealthOptions, FLAT, Parameter(group=Group("Health", sort_key=5))] = HealthOptions(),
    life: Annotated[LifeOptions, FLAT, Parameter(group=Group("Life", sort_key=6))] = LifeOptions(),
    bridge: Annotated[BridgeOptions, FLAT, Parameter(group=Group("Bridge", sort_key=7))] = BridgeOptions(),
    canary: Annotated[CanaryOptions, FLAT, Parameter(group=Group("Canary", sort_key=8))] = CanaryOptions(),
    defenses: Annotated[DefenseOptions, FLAT, Parameter(group=Group("Judge", sort_key=9))] = DefenseOptions(),
    engine: Annotated[EngineOptions, FLAT, Parameter(group=Group("Engine", sort_key=10))] = EngineOptions(),
) -> int:
    """Run this machine's node in a swarm, until it is told to stop.

    SIGTERM or Ctrl-C finishes the step in hand, saves and leaves; a second one ends at once. Exit codes: 0 stopped on
    request, 1 too many passes failed in a row (the state is saved), 2 wrong settings or a taken port, 3 the machine
    refuses.

    Parameters
    ----------
    home
        Folder of the node ($SHOAL_HOME, else ~/.local/share/shoal); `shoal init` makes it.
    swarm
        The swarm: a manifest FILE, a URL or shoal://ID@MULTIADDR (the one this home has joined when left out).
    bootstrap_only
        Only relay and tell nodes of each other: no model, no tasks.
    rollouts_only
        Sample and publish, never update the model.
    observe
        Look on: fetch, screen and grade what peers publish; publish and update nothing.
    """
    groups: dict[str, Any] = {
        "": {"swarm": swarm, "bootstrap_only": bootstrap_only, "rollouts_only": rollouts_only, "observe": observe},
        "mixing": mixing,
        "learning": learning,
        "network": network,
        "health": health,
        "life": life,
        "bridge": bridge,
        "canary": canary,
        "defenses": defenses,
        "engine": engine,
    }
    from shoal.node.home import Home
    from shoal.node.layers import checked, load

    place = Home.find(home)
    place.require_identity()
    config = checked(load(place.config, os.environ, flags_of(groups)))
    from shoal.node.launch import run_node

    return run_node(place, config)


def flags_of(groups: dict[str, Any]) -> dict[str, Any]:
    """Return the flags that were given, by their path in config.toml."""
    from shoal.node.declared import options

    given = [option for option in options() if option.flag in _given]
    return {o.path: groups[""][o.name] if o.group == "" else getattr(groups[o.group], o.name) for o in given}
