"""Manifests as TOML text. People write decimal numbers; inside, sampler ranges are integers in millionths."""

from __future__ import annotations

import copy
import tomllib
from typing import Any, TypeVar, cast

import msgspec
import tomli_w

from shoal.protocol.errors import UsageError
from shoal.protocol.limits import KIB
from shoal.protocol.wire import MILLION

MAX_TEXT = 128 * KIB  # characters; a manifest may come from a URL
MAX_DOTS = 100  # in one line: the parser takes quadratic time on a key of many parts (60,000: minutes)
_DECIMAL = ("temperature", "top_p")
_Schema = TypeVar("_Schema", bound=msgspec.Struct)


def dump(fields: dict[str, Any]) -> str:
    """TOML of a manifest's plain fields."""
    fields = copy.deepcopy(fields)
    for name in _DECIMAL:
        fields["limits"][name] = [value / MILLION for value in fields["limits"][name]]
    return tomli_w.dumps(fields)


def load(text: str, schema: type[_Schema]) -> _Schema:
    """Parse TOML into the schema. Raises UsageError that names the line or the field; unknown keys are errors."""
    if len(text) > MAX_TEXT:
        raise UsageError(f"manifest: more than {MAX_TEXT} characters")
    for number, line in enumerate(text.splitlines(), start=1):
        if line.count(".") > MAX_DOTS:
            raise UsageError(f"manifest: line {number} has more than {MAX_DOTS} dots: break it up")
    try:
        fields = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"manifest: not valid TOML: {_shown(error)}") from error
    limits: Any = fields.get("limits")
    for name in _DECIMAL:
        if isinstance(limits, dict) and name in limits:
            limits[name] = _millionths(cast(object, limits[name]), name)
    try:
        return msgspec.convert(fields, schema)
    except (msgspec.ValidationError, RecursionError) as error:  # dotted keys nest without the parser's recursion
        raise UsageError(f"manifest: {_shown(error)}") from error


def _shown(error: Exception) -> str:
    """A parser's message without control characters: it quotes keys of a text that may be anyone's."""
    return "".join(character if character.isprintable() else "?" for character in str(error)[:400])


def _millionths(values: object, name: str) -> list[int]:
    if not isinstance(values, list):
        raise UsageError(f"manifest: limits.{name} is a list of two numbers")
    result: list[int] = []
    for value in cast("list[object]", values):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1000:
            raise UsageError(f"manifest: limits.{name} holds numbers between 0 and 1000")
        result.append(round(value * MILLION))
    return result
