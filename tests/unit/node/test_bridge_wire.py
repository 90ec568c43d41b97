"""The decoder of the other client's values: what it takes, and that everything else is a reason."""

import msgpack
import pytest
from bridge_pieces import environment, malformed_values, md5, packed, payload, plain_payload, value_of, world

from shoal.node.bridge.wire import MOST_SETS, VALUE_BYTES, ForeignSet, SharedSet, decode_value, encode_value, unwrap
from shoal.protocol.errors import ProtocolError, TooLarge

MATRIX = malformed_values("reverse abc=", 4)


def reason_of(data: bytes) -> str:
    with pytest.raises(ProtocolError) as caught:
        decode_value(data)
    return caught.value.reason


def test_a_value_gives_its_questions_and_completions() -> None:
    value = value_of({"reverse abc=": ["cba", "abc"], "1 + 1": ["2"]})
    assert decode_value(value) == [
        ForeignSet("reverse abc=", ("cba", "abc")),
        ForeignSet("1 + 1", ("2",)),
    ]


def test_the_older_field_names_are_read_too() -> None:
    states = {"question": "1 + 1", "answer": "2", "metadata": {"source_dataset": "chain_sum", "difficulty": {"a": 0.5}}}
    value = packed({md5("1 + 1"): [payload(world(states), ["2", "3"])]})
    assert decode_value(value) == [ForeignSet("1 + 1", ("2", "3"))]


def test_states_of_others_and_of_the_person_may_be_anything_within_the_caps() -> None:
    states = {**world(environment("q")), "personal_states": "a proposal", "opponent_states": [None, 1.5, True]}
    assert decode_value(packed({md5("q"): [payload(states, ["x"])]})) == [ForeignSet("q", ("x",))]


def test_two_payloads_of_one_question_are_two_sets() -> None:
    value = packed({md5("q"): [plain_payload("q", ["a"]), plain_payload("q", ["b"])]})
    assert [foreign.completions for foreign in decode_value(value)] == [("a",), ("b",)]


@pytest.mark.parametrize("name", MATRIX)
def test_a_malformed_value_has_its_reason(name: str) -> None:
    value, reason = MATRIX[name]
    assert reason_of(value) == reason


def test_what_a_peer_says_of_answers_and_scorers_goes_no_further() -> None:
    states = {"question": "q", "test": "import os", "answer": "evil", "metadata": {"source_dataset": "codeio"}}
    [foreign] = decode_value(packed({md5("q"): [payload(world(states), ["x"])]}))
    assert foreign == ForeignSet("q", ("x",))


def test_own_sets_come_back_as_they_were() -> None:
    shared = [SharedSet("q1", "a", "strings/reverse", ("x", "y")), SharedSet("q2", "b", "strings/sort", ("z", "é"))]
    assert decode_value(encode_value(shared)) == [ForeignSet("q1", ("x", "y")), ForeignSet("q2", ("z", "é"))]


def test_own_sets_have_the_fields_of_both_ages_of_the_format() -> None:
    value = msgpack.unpackb(encode_value([SharedSet("q", "a", "rg/gcd", ("x",))]))
    [found] = value[md5("q")]
    assert found["__type__"] == "Payload"
    assert found["world_state"]["__type__"] == "WorldState"
    assert found["world_state"]["environment_states"] == {
        "question": "q",
        "test": "a",
        "answer": "a",
        "metadata": {"dataset": "rg/gcd", "source_dataset": "rg/gcd"},
    }


def test_no_more_own_sets_are_written_than_the_caps_allow() -> None:
    assert len(decode_value(encode_value([SharedSet(f"{n}", "", "t", ("x",)) for n in range(MOST_SETS + 5)]))) == (
        MOST_SETS
    )
    with pytest.raises(TooLarge):
        encode_value([SharedSet("q", "", "t", ("x" * VALUE_BYTES,))])


def test_a_stored_value_is_one_byte_string() -> None:
    assert unwrap(packed(b"inner")) == b"inner"
    for stored, reason in (
        (packed("text"), "value_not_bytes"),
        (packed([b"inner"]), "too_many_values"),
        (packed(b"a") + b"\x00", "trailing_bytes"),
        (b"\xc1junk", "never_used_on_wire"),
        (b"", "truncated"),
        (packed(b"x" * (VALUE_BYTES + 10)), "value_too_large"),
    ):
        with pytest.raises(ProtocolError) as caught:
            unwrap(stored)
        assert caught.value.reason == reason
