"""What peers of gensyn-genrl put into a round: the one decoder of that format, and an encoder for own sets.

A value is msgpack: a map from md5hex(question) to a list of payloads, each a question with G completions as text.
Nothing in it is signed. Of all that a payload says, only its question and its completions are handed on: answers, tests
and the name of a data set are looked at for their type and forgotten.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import msgpack

from shoal.protocol.errors import Malformed, TooLarge
from shoal.protocol.limits import KIB, Limits
from shoal.protocol.prescan import FOREIGN_WIRE, prescan

VALUE_BYTES = 512 * KIB  # of one peer in one round: 64 sets of 8 completions of 1 KB
QUESTION_BYTES = 64 * KIB
MOST_SETS = 64
# Six containers a set and what metadata nests; 16 levels, where an ordinary value has nine.
LIMITS = Limits(containers=1024, values=4096, depth=16, completion_bytes=64 * KIB)

PAYLOAD = frozenset({"__type__", "world_state", "actions", "metadata"})
WORLD = frozenset({"__type__", "environment_states", "opponent_states", "personal_states"})
ENVIRONMENT = frozenset({"question", "test", "answer", "metadata"})  # `test` since 2025, `answer` before


@dataclass(frozen=True, slots=True)
class ForeignSet:
    """A question and the completions that a peer of the other client claims to have sampled for it."""

    question: str
    completions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SharedSet:
    """What is written of an own set: the format has a place for the reference answer and for the data set's name."""

    question: str
    answer: str
    dataset: str
    completions: tuple[str, ...]


def batch_id(question: str) -> str:
    """Return the name that the format gives to a question; md5 is theirs, and nothing here relies on it."""
    return hashlib.md5(question.encode("utf-8"), usedforsecurity=False).hexdigest()


def decode_value(data: bytes) -> list[ForeignSet]:
    """Return the sets of one peer's value, one for each payload. Raises ProtocolError, and nothing else.

    One payload that breaks a rule refuses the whole value: its reason is the counter.
    """
    if len(data) > VALUE_BYTES:
        raise TooLarge("value_too_large", f"{len(data)} bytes")
    prescan(data, LIMITS, FOREIGN_WIRE)
    value = _map(_unpack(data), "value")
    if sum(len(_list(payloads, "payloads")) for payloads in value.values()) > MOST_SETS:
        raise TooLarge("too_many_sets")
    return [_foreign_set(name, payload) for name, payloads in value.items() for payload in payloads]


def encode_value(sets: Sequence[SharedSet]) -> bytes:
    """Return own sets as a value, with newer and older field names. Raises TooLarge beyond the caps of the decoder."""
    value: dict[str, list[dict[str, Any]]] = {}
    for shared in sets[:MOST_SETS]:
        environment = {
            "question": shared.question,
            "test": shared.answer,
            "answer": shared.answer,
            "metadata": {"dataset": shared.dataset, "source_dataset": shared.dataset},
        }
        world = {
            "__type__": "WorldState",
            "environment_states": environment,
            "opponent_states": None,
            "personal_states": None,
        }
        payload = {"__type__": "Payload", "world_state": world, "actions": list(shared.completions), "metadata": None}
        value.setdefault(batch_id(shared.question), []).append(payload)
    data: bytes = msgpack.packb(value, use_bin_type=True)
    if len(data) > VALUE_BYTES:
        raise TooLarge("value_too_large", f"{len(data)} bytes")
    return data


def unwrap(stored: bytes) -> bytes:
    """Return the bytes inside a stored value: a msgpack byte string, and nothing else. Raises ProtocolError."""
    if len(stored) > VALUE_BYTES + 8:
        raise TooLarge("value_too_large", f"{len(stored)} bytes")
    prescan(stored, Limits(containers=0, values=0), FOREIGN_WIRE)
    inner = _unpack(stored)
    return inner if isinstance(inner, bytes) else _refuse("value_not_bytes")


def _unpack(data: bytes) -> Any:
    """Decode what the walk has let through."""
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False, object_pairs_hook=_plain_map)
    except UnicodeDecodeError as error:
        raise Malformed("not_utf8", str(error)) from error
    except (ValueError, msgpack.UnpackException) as error:
        raise Malformed("not_msgpack", str(error)) from error


def _plain_map(pairs: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    """Return a map with text keys; one that occurs twice is refused, where msgpack would take the last."""
    if not all(isinstance(key, str) for key, _ in pairs):
        raise Malformed("key_not_text")
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Malformed("duplicate_key")
    return found


def _foreign_set(name: str, payload: Any) -> ForeignSet:
    fields = _typed(payload, "Payload", PAYLOAD, "payload")
    world = _typed(fields.get("world_state"), "WorldState", WORLD, "world_state")
    environment = _map(world.get("environment_states"), "environment")
    _known(environment, ENVIRONMENT, "environment")
    question = _text(environment, "question")
    if len(question.encode("utf-8")) > QUESTION_BYTES:
        raise TooLarge("question_too_long")
    if "test" not in environment and "answer" not in environment:
        raise Malformed("missing_test")
    if "metadata" not in environment:
        raise Malformed("missing_metadata")
    _map(environment["metadata"], "metadata")
    if name != batch_id(question):
        raise Malformed("batch_id")
    return ForeignSet(question, _actions(fields.get("actions")))


def _actions(value: Any) -> tuple[str, ...]:
    actions = _list(value, "actions")
    if not actions:
        raise Malformed("no_actions")
    if len(actions) > LIMITS.completions:
        raise TooLarge("too_many_actions", f"{len(actions)} actions")
    if not all(isinstance(action, str) for action in actions):
        raise Malformed("action_not_text")
    return tuple(actions)


def _typed(value: Any, name: str, known: frozenset[str], what: str) -> Mapping[str, Any]:
    fields = _map(value, what)
    if fields.get("__type__") != name:
        raise Malformed(f"{what}_type")
    _known(fields, known, what)
    return fields


def _known(fields: Mapping[str, Any], known: frozenset[str], what: str) -> None:
    if not known.issuperset(fields):
        raise Malformed(f"{what}_unknown_field")


def _text(fields: Mapping[str, Any], name: str) -> str:
    if name not in fields:
        raise Malformed(f"missing_{name}")
    value = fields[name]
    return value if isinstance(value, str) and value else _refuse(f"{name}_not_text")


def _map(value: Any, what: str) -> dict[str, Any]:
    return value if isinstance(value, dict) else _refuse(f"{what}_not_map")


def _list(value: Any, what: str) -> list[Any]:
    return value if isinstance(value, list) else _refuse(f"{what}_not_list")


def _refuse(reason: str) -> NoReturn:
    raise Malformed(reason)
