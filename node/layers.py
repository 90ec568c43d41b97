"""Where a node's settings come from: defaults, below config.toml, below the environment, below flags.

One declaration, the dataclasses of `options`, serves all of them. In config.toml a group is a table. In the environment
[mixing] local is SHOAL_MIXING_LOCAL, and lists are separated by commas. On the command line it is --local. A name that
is not known is an error wherever it stands, and every value knows where it came from.
"""

import ast
import difflib
import inspect
import json
import os
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from shoal.node.home import Home
from shoal.node.options import RunConfig
from shoal.protocol.errors import EnvironmentFault, UsageError

PREFIX = "SHOAL_"
NOT_SETTINGS = frozenset({"SHOAL_HOME", "SHOAL_PASSPHRASE", "SHOAL_STRICT_SKIPS", "SHOAL_TEST_START_DELAY"})
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Option:
    """One setting: its group ("" for the top level), name, type, default and help text."""

    group: str
    name: str
    kind: Any
    default: Any
    doc: str

    @property
    def path(self) -> str:
        """The name in config.toml, with its table."""
        return f"{self.group}.{self.name}" if self.group else self.name

    @property
    def variable(self) -> str:
        """The name in the environment."""
        return PREFIX + self.path.replace(".", "_").upper()

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return "--" + self.name.replace("_", "-")


@cache
def options() -> tuple[Option, ...]:
    """Return every setting, in the order of declaration."""
    return tuple(_options(RunConfig, ""))


def _options(declared: type, group: str) -> Iterator[Option]:
    kinds, docs = get_type_hints(declared), _docs(declared)
    for item in fields(declared):
        kind = kinds[item.name]
        if is_dataclass(kind):
            yield from _options(kind, item.name)  # type: ignore[arg-type]
        else:
            default = item.default if item.default is not MISSING else None
            yield Option(group, item.name, kind, default, docs[item.name])


def _docs(declared: type) -> dict[str, str]:
    """Return the help text below each field of a class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(declared))).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for before, node in zip(body.body, body.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name):
            doc = node.value.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) else ""
            found[before.target.id] = " ".join(str(doc).split())
    return {item.name: found.get(item.name, "") for item in fields(declared)}


@dataclass(frozen=True, slots=True)
class Layered:
    """A configuration, and for each setting by its path where it came from."""

    config: RunConfig
    origins: dict[str, str]


def load(path: Path, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Layered:
    """Lay the settings over one another: those of the file at `path`, of the environment, and flags by their path.

    Raises UsageError that names the place of what is unknown or of a wrong type. It does not judge the whole: see
    options.check.
    """
    given: dict[str, tuple[Any, str]] = {}
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


def value_of(config: RunConfig, option: Option) -> Any:
    """Return one setting of a configuration."""
    return getattr(getattr(config, option.group) if option.group else config, option.name)


def _with(config: RunConfig, option: Option, value: Any) -> RunConfig:
    if not option.group:
        return replace(config, **{option.name: value})
    return replace(config, **{option.group: replace(getattr(config, option.group), **{option.name: value})})


def _from_file(path: Path) -> dict[str, tuple[Any, str]]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise EnvironmentFault(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    known = {option.path: option for option in options()}
    groups = {option.group for option in options()}
    given: dict[str, tuple[Any, str]] = {}
    for name, value in tables.items():
        inside = value.items() if name in groups and isinstance(value, dict) else ((None, value),)
        for key, item in inside:
            where = name if key is None else f"{name}.{key}"
            if where not in known:
                raise UsageError(f"{path}: unknown setting {where}{_nearest(where, known)}")
            given[where] = (_converted(item, known[where], str(path), strict=True), str(path))
    return given


def _from_environment(environment: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    known = {option.variable: option for option in options()}
    given: dict[str, tuple[Any, str]] = {}
    for name, text in environment.items():
        if not name.startswith(PREFIX) or name in NOT_SETTINGS:
            continue
        if name not in known:
            raise UsageError(f"environment: unknown setting {name}{_nearest(name, known)}")
        option = known[name]
        value: Any = [part.strip() for part in text.split(",") if part.strip()] if _is_list(option.kind) else text
        given[option.path] = (_converted(value, option, f"environment {name}", strict=False), f"environment {name}")
    return given


def _from_flags(flags: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    known = {option.path: option for option in options()}
    return {path: (value, f"flag {known[path].flag}") for path, value in flags.items()}


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is tuple


def _converted(value: Any, option: Option, where: str, strict: bool) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and option.kind is float:
        value = float(value)
    if not strict and option.kind is bool and isinstance(value, str):
        value = {"yes": "true", "no": "false", "on": "true", "off": "false"}.get(value.lower(), value.lower())
    try:
        return msgspec.convert(value, option.kind, strict=strict, dec_hook=lambda kind, text: kind(text))
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {option.path} = {value!r}: {error}; it takes {kind_text(option)}") from error


def _nearest(name: str, known: Mapping[str, Option]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else "; `shoal config show` lists all"


def kind_text(option: Option) -> str:
    """Return the type of a setting in words."""
    kind = option.kind
    if get_origin(kind) in (Union, UnionType):
        [kind] = [part for part in get_args(kind) if part is not type(None)]
    if _is_list(kind):
        return "list of text"
    choices = get_args(kind)
    names = {bool: "true or false", int: "integer", float: "number", str: "text", Path: "path"}
    return ", ".join(choices) if choices else names[kind]


def toml_text(value: Any) -> str:
    """Return a value as it is written in config.toml; "" for one that is left out."""
    if value is None:
        return ""
    if isinstance(value, Path):
        value = str(value)
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def template() -> str:
    """Return a config.toml in which every setting stands at its default, commented out."""
    lines = [
        "# Settings of this node. A line without # overrides the default; the environment and flags override both."
    ]
    group = ""
    for option in options():
        if option.group != group:
            group = option.group
            lines += ["", f"[{group}]"]
        shown = toml_text(option.default) or "…"
        lines += [
            "",
            *textwrap.wrap(option.doc, 100, initial_indent="# ", subsequent_indent="# "),
            f"# {option.name} = {shown}",
        ]
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return docs/configuration.md: every setting with its names and its default."""
    lines = _PAGE_HEAD.splitlines()
    group = None
    for option in options():
        if option.group != group:
            group = option.group
            lines += [
                f"## {f'[{group}]' if group else 'Top level'}",
                "",
                "| setting | flag | environment | default | |",
            ]
            lines += ["|---|---|---|---|---|"]
        default = toml_text(option.default) or "–"
        doc = option.doc.replace("|", "\\|")
        lines.append(
            f"| `{option.name}` | `{option.flag}` | `{option.variable}` | `{default}` | {doc} ({kind_text(option)}) |"
        )
    return "\n".join(lines) + "\n"


_PAGE_HEAD = """# Configuration

`shoal run` takes each setting from the highest layer that names it: a flag, the environment, `config.toml` in the home,
the default. `shoal config show --origin` says for every value which one that was. `shoal init` writes a `config.toml`
in which everything stands at its default, commented out. A name that is not known is an error in every layer.

Lists are repeated flags (`--bootstrap A --bootstrap B`), comma-separated in the environment, arrays in TOML. Some flags
have a negative form, such as `--no-relays`. The home itself is chosen by `--home` or `SHOAL_HOME`.

This page is made by `python -m shoal.node.layers > docs/configuration.md`; a test fails when it is stale."""


if __name__ == "__main__":
    import sys

    sys.stdout.write(page())
