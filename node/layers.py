"""Where a node's settings come from: defaults, below config.toml, below the environment, below flags.

One declaration, the dataclasses of `options`, serves all of them. In config.toml a group is a table. In the environment
[mixing] local is SHOAL_MIXING_LOCAL, and lists are separated by commas. On the command line it is --local. A name that
is not known is an error wherever it stands, and every value knows where it came from.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from shoal.node.declared import PREFIX, Option, kind_text, options
from shoal.node.defense_options import JUDGE_KEY, NO_JUDGE
from shoal.node.home import Home
from shoal.node.options import RunConfig, check
from shoal.protocol.errors import EnvironmentFault, UsageError

NOT_SETTINGS = frozenset({"SHOAL_HOME", "SHOAL_PASSPHRASE", JUDGE_KEY, "SHOAL_STRICT_SKIPS"})
DEFAULT = "default"

# What Kubernetes and Docker set in every container for a service named shoal; SHOAL_PORT then holds tcp://ADDRESS.
_SERVICE = re.compile(r"SHOAL_(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_SERVICE_VALUE = ("tcp://", "udp://", "sctp://")

# Settings that may name a file or a folder: in config.toml they count from its folder, whatever the working directory.
_PLACES = frozenset({"swarm", "learning.model", "bridge.data", "defenses.judge"})

_SPOKEN = {"yes": "true", "no": "false", "on": "true", "off": "false"}

Given = dict[str, tuple[Any, str]]


@dataclass(frozen=True, slots=True)
class Layered:
    """A configuration, and for each setting by its path where it came from."""

    config: RunConfig
    origins: dict[str, str]


def load(path: Path, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Layered:
    """Lay the settings over one another: those of the file at `path`, of the environment, and flags by their path.

    Raises UsageError that names the place of what is unknown or of a wrong type. It does not judge the whole: see
    `checked`.
    """
    given: Given = {}
    for layer in (_from_file(path), _from_environment(environment), _from_flags(flags)):
        given |= layer
    config = RunConfig()
    for option in options():
        if option.path in given:
            config = _with(config, option, given[option.path][0])
    return Layered(config, {o.path: given[o.path][1] if o.path in given else DEFAULT for o in options()})


def load_config(home: Home) -> RunConfig:
    """Return what a node of this home runs with when no flags are given."""
    return load(home.config, os.environ, {}).config


def checked(layered: Layered) -> RunConfig:
    """Return the configuration when it is good as a whole.

    Else raises UsageError with what to do, and where the settings that it names were set when that was no flag.
    """
    try:
        check(layered.config)
    except UsageError as error:
        named = set(re.findall(r"--[a-z0-9-]+", str(error)))
        origins = {o.path: layered.origins[o.path] for o in options() if o.flag in named}
        places = [
            f"{path} is set in {origin}"
            for path, origin in origins.items()
            if origin != DEFAULT and not origin.startswith("flag ")
        ]
        raise UsageError(f"{error} ({'; '.join(places)})" if places else str(error)) from error
    return layered.config


def _with(config: RunConfig, option: Option, value: Any) -> RunConfig:
    if not option.group:
        return replace(config, **{option.name: value})
    return replace(config, **{option.group: replace(getattr(config, option.group), **{option.name: value})})


def _from_file(path: Path) -> Given:
    known = {option.path: option for option in options()}
    groups = {option.group for option in options()}
    given: Given = {}
    for name, value in _tables(path).items():
        inside = value.items() if name in groups and isinstance(value, dict) else ((None, value),)
        for key, item in inside:
            where = name if key is None else f"{name}.{key}"
            if where not in known:
                near = _nearest(where)
                raise UsageError(f"{path}: unknown setting {where}; {_hint(near.path if near else '')}")
            setting = _converted(item, known[where], str(path), strict=True)
            given[where] = (_anchored(setting, path.parent) if where in _PLACES else setting, str(path))
    return given


def _tables(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise EnvironmentFault(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from error


def _anchored(text: str, folder: Path) -> str:
    """Return a path as it counts from a folder; links, web addresses and the words that are no path as they are."""
    if text in ("", "default", NO_JUDGE) or ":" in text.split("/")[0]:
        return text
    return os.path.join(folder, os.path.expanduser(text))


def _from_environment(environment: Mapping[str, str]) -> Given:
    known = {option.variable: option for option in options()}
    given: Given = {}
    for name, text in environment.items():
        if not name.startswith(PREFIX) or name in NOT_SETTINGS or _is_of_a_service(name, text):
            continue
        if name not in known:
            near = _nearest(name.removeprefix(PREFIX).lower())
            raise UsageError(f"environment: unknown setting {name}; {_hint(near.variable if near else '')}")
        if not text:
            continue  # as compose files and units leave it when there is nothing to say
        option = known[name]
        value: Any = [part.strip() for part in text.split(",") if part.strip()] if option.is_list else text
        given[option.path] = (_converted(value, option, f"environment {name}", strict=False), f"environment {name}")
    return given


def _is_of_a_service(name: str, text: str) -> bool:
    return _SERVICE.fullmatch(name) is not None or (name.endswith("_PORT") and text.startswith(_SERVICE_VALUE))


def _from_flags(flags: Mapping[str, Any]) -> Given:
    known = {option.path: option for option in options()}
    return {path: (value, f"flag {known[path].flag}") for path, value in flags.items()}


def _converted(value: Any, option: Option, where: str, strict: bool) -> Any:
    if not strict and option.kind is bool and isinstance(value, str):
        value = _SPOKEN.get(value.lower(), value.lower())
    try:
        return msgspec.convert(value, option.kind, strict=strict, dec_hook=lambda kind, text: kind(text))
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {option.path} = {value!r}: it takes {kind_text(option)}") from error


def _nearest(path: str) -> Option | None:
    """Return the setting that an unknown name most likely means: of the same name in another group, else a similar one.

    `path` is the name as in config.toml; in one from the environment all dots are underscores.
    """
    wanted = re.sub(r"[^a-z0-9]", "_", path.lower())
    alike = {option.path.replace(".", "_"): option for option in options()}
    elsewhere = [o for o in options() if wanted in (o.key, o.name) or wanted.endswith((f"_{o.key}", f"_{o.name}"))]
    if wanted not in alike and elsewhere:
        return min(elsewhere, key=lambda option: not wanted.startswith(f"{option.group}_"))
    near = difflib.get_close_matches(wanted, alike, n=1)
    return alike[near[0]] if near else None


def _hint(near: str) -> str:
    return f"did you mean {near}?" if near else "`shoal config show` lists all"
