"""Attacks on the decoder: what each would do to a reader without caps, and that it stops at the layer that it names."""

import io
import pickle  # noqa: TID251 (to show that the payload is live: nothing else here may read it)
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import msgpack
import msgspec
import pytest
import zstandard

from shoal.defenses.attacks import ATTACKS, Outgoing
from shoal.defenses.attacks.lab import Laboratory
from shoal.defenses.attacks.wire import (
    GIB,
    Bombs,
    ForgedTests,
    LengthLies,
    Pickle,
    count_bomb,
    depth_bomb,
    frame,
    lying_payloads,
    other_encodings,
    other_types,
    pickled_command,
    zstd_bomb,
)
from shoal.defenses.config import DefenseConfig
from shoal.defenses.reputation import key_subject
from shoal.defenses.screen import Screened
from shoal.protocol.compression import decompress
from shoal.protocol.envelope import payload_hash
from shoal.protocol.limits import DEFAULT_LIMITS, MIB
from shoal.protocol.wire import Rollout, decode_rollout

GROUP = ("cba", "?", "abc", "cba")
PATIENT = DefenseConfig(mute_after=10**6)  # no message is refused for the ones before it


def launched(lab: Laboratory, name: str, **settings) -> list[Outgoing]:
    """What peer 0 sends in one round."""
    attack = ATTACKS[name](**settings)
    attack.arm(lambda header: lab.sign(0, header))
    return attack.messages(lab.sealed(0, lab.rollout(GROUP)), Random(0))


def reasons(lab: Laboratory, messages: Sequence[Outgoing]) -> list[str]:
    """The counter of each message; "" for one that was opened."""
    outcomes = [lab.receive(0, message) for message in messages]
    return ["" if isinstance(outcome, Screened) else f"{outcome.layer}/{outcome.reason}" for outcome in outcomes]


def peak_of(action: Callable[[], object]) -> int:
    """The most memory that Python held for an action, in bytes."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def payload() -> bytes:
    lab = Laboratory()
    return decompress(lab.sealed(0, lab.rollout(GROUP)).blob, DEFAULT_LIMITS)


STOPPED = {  # attack → the reasons by which its messages are refused, each at least once
    "non-canonical": {
        *("schema/not_canonical", "schema/map_on_wire", "schema/nil_on_wire", "schema/boolean_on_wire"),
        *("schema/float_on_wire", "schema/ext_on_wire", "schema/never_used_on_wire"),
    },
    "length-lies": {
        *("header/payload_length", "quota/blob_bytes", "schema/truncated", "schema/trailing_bytes"),
        *("schema/too_many_values", "schema/text_too_long", "schema/bad_zstd", "schema/expanded_too_large"),
    },
    "bombs": {
        *("schema/expanded_too_large", "schema/no_content_size", "schema/too_deep", "schema/too_many_values"),
        "schema/text_too_long",
    },
    "pickle": {
        "header/unknown_kind",
        "schema/not_zstd",
        "schema/trailing_bytes",
        "schema/schema",
        "schema/column_length",
    },
    "not-finite": {"schema/not_finite"},
    "forged-tests": {"schema/schema"},
}


@pytest.mark.parametrize("name", STOPPED)
def test_every_message_is_refused_with_its_reason_and_honest_peers_go_on(name: str):
    lab = Laboratory(config=PATIENT)
    found = reasons(lab, launched(lab, name))
    assert set(found) == STOPPED[name]
    assert ATTACKS[name].expected.layer == "schema"
    assert any(reason.startswith("schema/") for reason in found)
    assert all(lab.counters.get(reason) == found.count(reason) for reason in STOPPED[name])
    assert isinstance(lab.receive(1, lab.sealed(1, lab.rollout(GROUP))), Screened)


@pytest.mark.parametrize("name", STOPPED)
def test_its_key_is_muted_once_it_has_shown_enough(name: str):
    lab = Laboratory(config=DefenseConfig(mute_after=2))
    reasons(lab, launched(lab, name))
    assert reasons(lab, launched(lab, name))[-1].startswith("reputation/muted")
    assert isinstance(lab.receive(1, lab.sealed(1, lab.rollout(GROUP))), Screened)


def test_other_encodings_are_one_value_to_a_decoder_that_does_not_look():
    honest = payload()
    others = other_encodings(honest)
    assert all(msgpack.unpackb(other) == msgpack.unpackb(honest) for other in others)
    assert len({payload_hash(other) for other in [honest, *others]}) == len(others) + 1, "one rollout under many names"
    five = [b"\x05", b"\xcc\x05", b"\xcd\0\x05", b"\xd3" + bytes(7) + b"\x05"]
    assert {msgpack.unpackb(form) for form in five} == {5}


def test_a_key_that_occurs_twice_says_two_things():
    twice = next(other for other in other_types(payload()) if b"\x82" in other[2:4])
    assert msgpack.unpackb(twice)[0][0] == {"a": 6}  # the last wins, silently
    assert msgspec.msgpack.decode(b"\x82\xa1a\x05\xa1a\x06") == {"a": 6}


def test_a_reader_that_believes_lengths_believes_these():
    honest = payload()
    unpacker = msgpack.Unpacker(io.BytesIO(lying_payloads(honest)[2]))
    assert unpacker.unpack() == msgpack.unpackb(honest), "what stands behind the value is not even seen"
    declared = frame(b"abc", 2**32 - 1)
    assert zstandard.get_frame_parameters(declared).content_size == 2**32 - 1


def test_thirty_two_kilobytes_declare_a_gibibyte():
    bomb = zstd_bomb(GIB)
    assert len(bomb) < 33_000
    assert zstandard.get_frame_parameters(bomb).content_size == GIB
    small = zstd_bomb(64 * MIB)
    ignored = zstandard.ZstdDecompressor().decompress(small, max_output_size=1024)
    assert ignored == bytes(64 * MIB), "the library's own cap does not hold where a frame declares its size"


def test_without_the_walk_before_it_a_decoder_pays_for_every_object():
    spent = peak_of(lambda: msgpack.unpackb(count_bomb(100_000)))
    assert spent > 5_000_000, "a hundred kilobytes of empty arrays"
    with pytest.raises((ValueError, RecursionError, msgpack.exceptions.StackError)):
        msgpack.unpackb(depth_bomb(100_000))


@pytest.mark.parametrize("name", ["bombs", "length-lies"])
def test_a_bomb_costs_its_reader_next_to_nothing(name: str):
    lab = Laboratory(config=PATIENT)
    messages = launched(lab, name)
    assert all(len(message.blob) <= 33_000 for message in messages)
    # the three that unpack to a mebibyte are unpacked: two copies at most
    assert peak_of(lambda: reasons(lab, messages)) < 3 * MIB


def test_the_bombs_are_of_every_kind():
    names = [blob[:4] for blob in Bombs().blobs(b"", Random(0))]
    assert names == [b"\x28\xb5\x2f\xfd"] * 7
    windows = [zstandard.get_frame_parameters(blob).window_size for blob in Bombs().blobs(b"", Random(0))]
    assert max(windows) >= GIB


def test_a_window_of_two_gibibytes_is_refused_for_itself():
    lab = Laboratory()
    blob = frame(b"\x90", 1, window=0xA8)
    assert reasons(lab, [Outgoing(lab.sign(0, lab.header(0, blob)), blob)]) == ["schema/window_too_large"]


def test_the_pickle_is_live_and_nothing_here_runs_it(tmp_path: Path):
    mark = tmp_path / "executed"
    command = f"touch {mark}"
    pickle.loads(pickled_command(command))
    assert mark.exists(), "read by an unpickler it writes a file"
    mark.unlink()
    lab = Laboratory(config=PATIENT)
    messages = launched(lab, "pickle", command=command)
    assert all(command.encode() in message.announcement + message.blob for message in messages[:2])
    reasons(lab, messages)
    text = pickled_command(command).decode()
    assert isinstance(lab.receive(1, lab.sealed(1, lab.rollout([text, *GROUP]))), Screened)  # as a text it is a text
    assert not mark.exists()


def test_no_module_of_ours_can_unpickle():
    repository = Path(__file__).parents[3]
    for package in ("protocol", "defenses", "trainer", "node"):
        for module in (repository / package).rglob("*.py"):
            assert "import pickle" not in module.read_text(encoding="utf-8"), module


def test_numbers_that_are_none_would_enter_the_mean():
    lab = Laboratory()
    column = next(iter(launched(lab, "not-finite")))
    with pytest.raises(Exception, match="not_finite"):
        decode_rollout(column.blob)
    values = msgpack.unpackb(decompress(column.blob, DEFAULT_LIMITS))[-1]
    assert values.endswith(b"\x00\x00\xc0\x7f")


def letters(ids: Sequence[int]) -> str:
    """A tokenizer of the laboratory: an id is a letter."""
    return "".join(chr(97 + token) for token in ids)


def test_ids_that_are_not_those_of_the_text_are_refused_and_pass_with_the_layer_off():
    lab = Laboratory(config=PATIENT)
    lab.context = replace(lab.context, decode_ids=letters, vocabulary=26)
    messages = launched(lab, "ids-differ")
    assert reasons(lab, messages) == ["text/ids_differ_from_text"] * 2 + ["text/token_out_of_range"]
    off = Laboratory(config=DefenseConfig.without(["text"]))
    off.context = replace(off.context, decode_ids=letters, vocabulary=26)
    assert reasons(off, launched(off, "ids-differ")) == [""] * 3
    honest = lab.rollout(["ab", "b"], token_ids=(bytes([0, 0, 0, 0, 1, 0, 0, 0]), bytes([1, 0, 0, 0])))
    assert isinstance(lab.receive(1, lab.sealed(1, honest)), Screened)


def test_there_is_no_field_for_tests_or_answers():
    names = set(Rollout.__struct_fields__)
    names |= {
        name for field in msgspec.structs.fields(Rollout) for name in getattr(field.type, "__struct_fields__", ())
    }
    assert not [name for name in names if "answer" in name or "test" in name or "gold" in name]
    honest = payload()
    more, named = (
        msgpack.unpackb(decompress(blob, DEFAULT_LIMITS))
        for blob in ForgedTests().blobs(zstandard.compress(honest), Random(0))
    )
    assert more[:-1] == msgpack.unpackb(honest)
    assert more[-1] == named[0][0] == "assert True", "both are well formed and carry the test"
    assert msgspec.convert(more, tuple)[-1] == "assert True", (
        "a decoder that ignored what it does not know would pass it"
    )


def test_lies_about_the_length_are_the_carriers_and_not_the_keys_offence():
    lab = Laboratory()
    lies = launched(lab, "length-lies")[:3]
    assert reasons(lab, lies) == ["header/payload_length"] * 3
    assert lab.gate.reputation.score(key_subject(lab.identities[0].key)) == 0.0


@pytest.mark.parametrize("attack", [LengthLies, Pickle])
def test_they_never_reuse_a_sequence_number(attack: type):
    lab = Laboratory(config=PATIENT)
    one = attack()
    one.arm(lambda header: lab.sign(0, header))
    found = [reasons(lab, one.messages(lab.sealed(0, lab.rollout(GROUP)), Random(0))) for _ in range(2)]
    assert not any("sequence" in reason for reason in [*found[0], *found[1]])
