"""Pieces for tests of the bridge: values as the other client writes them, and a DHT in memory."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack

from shoal.node.bridge.holder import Entry

NEVER = 4e9  # an expiration; the tests' network does not look at it


def peer(number: int) -> str:
    """A peer id of the right form."""
    digits = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
    return "12D3KooW" + "".join(digits[byte % 58] for byte in hashlib.sha512(f"peer/{number}".encode()).digest()[:44])


def md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def environment(question: Any) -> dict[str, Any]:
    return {"question": question, "test": "assert f() == 1", "metadata": {"dataset": "mbpp"}}


def world(states: Any) -> dict[str, Any]:
    return {
        "__type__": "WorldState",
        "environment_states": states,
        "opponent_states": None,
        "personal_states": None,
    }


def payload(world_state: Any, actions: Any) -> dict[str, Any]:
    return {"__type__": "Payload", "world_state": world_state, "actions": actions, "metadata": None}


def plain_payload(question: str, actions: Any) -> dict[str, Any]:
    return payload(world(environment(question)), actions)


def packed(value: Any) -> bytes:
    return msgpack.packb(value, use_bin_type=True)


def value_of(sets: Mapping[str, Any]) -> bytes:
    """The value of a peer that answers these questions, one payload each."""
    return packed({md5(question): [plain_payload(question, actions)] for question, actions in sets.items()})


def entry(number: int, value: bytes) -> Entry:
    """What a holder keeps of a peer: the value as a msgpack byte string."""
    return Entry(peer(number), packed(value), NEVER)


class RoundsInMemory:
    """Rounds in memory; `peer_id` is ours."""

    def __init__(self) -> None:
        self.peer_id = peer(-1)
        self.rounds: dict[int, list[Entry]] = {}
        self.read_rounds: list[int] = []
        self.written: dict[int, bytes] = {}
        self.before_read: Callable[[int], None] = lambda _: None
        self.closed = False

    def put(self, round: int, entries: Sequence[Entry]) -> None:
        self.rounds.setdefault(round, []).extend(entries)

    async def read(self, round: int) -> list[Entry]:
        self.before_read(round)
        self.read_rounds.append(round)
        return list(self.rounds.get(round, []))

    async def write(self, round: int, value: bytes) -> int:
        self.written[round] = value
        return 1

    async def close(self) -> None:
        self.closed = True


def malformed_values(question: str, size: int) -> dict[str, tuple[bytes, str]]:
    """Values that end the other client's game loop, or its memory, and the reason for which each is refused here."""
    good = ["a"] * size
    states = environment(question)

    def one(value: Any) -> bytes:
        return packed({md5(question): [value]})

    def without(name: str) -> bytes:
        return one(payload(world({key: item for key, item in states.items() if key != name}), good))

    nested: Any = 1
    for _ in range(900):
        nested = [nested]
    big = 2**64 - 1
    text = one(plain_payload(question, ["a\xe9"] * size))
    return {
        "bad batch id": (packed({"0" * 32: [plain_payload(question, good)]}), "batch_id"),
        "missing question": (without("question"), "missing_question"),
        "missing test": (without("test"), "missing_test"),
        "missing metadata": (without("metadata"), "missing_metadata"),
        "world_state nil": (one(payload(None, good)), "world_state_not_map"),
        "environment nil": (one(payload(world(None), good)), "environment_not_map"),
        "question a number": (packed({md5("7"): [payload(world(environment(7)), good)]}), "question_not_text"),
        "no actions": (one(plain_payload(question, [])), "no_actions"),
        "actions nil": (one(plain_payload(question, None)), "actions_not_list"),
        "a million actions": (one(plain_payload(question, [""] * 1_000_000)), "value_too_large"),
        "5,000 declared actions": (one(plain_payload(question, [""] * 5_000)), "too_many_values"),
        "100 actions": (one(plain_payload(question, ["a"] * 100)), "too_many_actions"),
        "an action that is a number": (one(plain_payload(question, [*good[1:], 1])), "action_not_text"),
        "deep nesting": (one(payload(world({**states, "metadata": {"a": nested}}), good)), "too_deep"),
        "wrong __type__": (one({**plain_payload(question, good), "__type__": "GameState"}), "payload_type"),
        "wrong inner __type__": (one(payload({**world(states), "__type__": "Tree"}, good)), "world_state_type"),
        "unknown field": (one({**plain_payload(question, good), "reward": 1.0}), "payload_unknown_field"),
        "huge integer for a list": (one(plain_payload(question, big)), "actions_not_list"),
        "payloads no list": (packed({md5(question): plain_payload(question, good)}), "payloads_not_list"),
        "not UTF-8": (text.replace(b"a\xc3\xa9", b"a\xff\xfe", 1), "not_utf8"),
        "5,000 ids": (
            packed({md5(f"{question}{n}"): [plain_payload(f"{question}{n}", good)] for n in range(5_000)}),
            "value_too_large",
        ),
        "500 ids": (packed({md5(f"{n}"): [plain_payload(f"{n}", good)] for n in range(500)}), "too_many_values"),
        "100 empty ids": (packed({md5(f"{n}"): [plain_payload(f"{n}", ["a"])] for n in range(100)}), "too_many_sets"),
        "the same id twice": (b"\x82" + packed({md5(question): []})[1:] * 2, "duplicate_key"),
        "a list": (packed([1, 2, 3]), "value_not_map"),
        "number keys": (packed({1: []}), "key_not_text"),
        "an extension": (packed({md5(question): msgpack.ExtType(5, b"x")}), "ext_on_wire"),
        "cut off": (one(plain_payload(question, good))[:-3], "truncated"),
        "two values": (one(plain_payload(question, good)) * 2, "trailing_bytes"),
        "nothing": (b"", "truncated"),
    }
