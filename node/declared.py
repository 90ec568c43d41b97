"""Every setting of a node as the dataclasses of `options` declare it: its names, type, default and help text."""

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from shoal.node.options import RunConfig

PREFIX = "SHOAL_"


@dataclass(frozen=True, slots=True)
class Option:
    """One setting: its group ("" for the top level), the name of its field, type, default and help text."""

    group: str
    name: str
    kind: Any
    default: Any
    doc: str

    @property
    def key(self) -> str:
        """The name within its group, which need not be repeated: health_port of [health] is `port`."""
        return self.name.removeprefix(f"{self.group}_")

    @property
    def path(self) -> str:
        """The name in config.toml, with its table."""
        return f"{self.group}.{self.key}" if self.group else self.key

    @property
    def variable(self) -> str:
        """The name in the environment."""
        return PREFIX + self.path.replace(".", "_").upper()

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def is_list(self) -> bool:
        """Whether it takes several values."""
        return get_origin(self.kind) is tuple


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


def value_of(config: RunConfig, option: Option) -> Any:
    """Return one setting of a configuration."""
    return getattr(getattr(config, option.group) if option.group else config, option.name)


def kind_text(option: Option) -> str:
    """Return in words what a setting takes."""
    kind = option.kind
    if get_origin(kind) in (Union, UnionType):
        [kind] = [part for part in get_args(kind) if part is not type(None)]
    if option.is_list:
        return "a list of text"
    choices = get_args(kind)
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}
    return f"one of {', '.join(choices)}" if choices else names[kind]


def toml_text(value: Any) -> str:
    """Return a value as it is written in config.toml; "" for one that is left out."""
    if value is None:
        return ""
    if isinstance(value, Path):
        value = str(value)
    # as it is, not escaped: JSON writes some characters as two halves, which TOML refuses
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False).replace("\x7f", "\\u007f")
