"""What is written of a pass, and the hashes by which its inputs are known again."""

import hashlib
import math
import struct
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from node_pieces import own_set, prompt
from store_pieces import KEY, SETTINGS, a_pass, announcement, screened_set

from shoal.defenses.verdict import ACCEPTED, reject
from shoal.node.sets import PeerSet
from shoal.node.store.digests import advantages_hash, inputs_hash, selection_hash
from shoal.node.store.facts import own_records, pass_record, peer_records
from shoal.node.store.samples import pack_samples, unpack_samples
from shoal.node.store.settings import PassSettings
from shoal.protocol.errors import EnvironmentFault
from shoal.trainer.algorithm import recipe
from shoal.trainer.batch import Row
from shoal.trainer.engine import Completion
from shoal.trainer.model import DEFAULT_MODEL, Policy, load_policy

ROW = Row(7, [1, 2], [3], 0.5, b"k" * 32, "op", 9, 1, 2, 0.25, True, False, [-0.5], "text", 1.5)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(DEFAULT_MODEL)


def test_the_inputs_hash_is_the_one_that_is_documented() -> None:
    """Worked out field by field, apart from the code."""
    row = struct.pack(">qddd??qqq", 7, 0.5, 0.25, 1.5, True, False, 9, 1, 2)
    row += struct.pack(">I", 32) + b"k" * 32 + struct.pack(">I2s", 2, b"op")
    row += struct.pack(">III", 8, 1, 2) + struct.pack(">II", 4, 3) + struct.pack(">Id", 8, -0.5)
    assert inputs_hash([ROW]) == hashlib.sha256(b"shoal/inputs/1" + struct.pack(">I", 1) + row).digest()
    without = row[:-12] + b"\xff\xff\xff\xff"
    expected = hashlib.sha256(b"shoal/inputs/1" + struct.pack(">I", 1) + without).digest()
    assert inputs_hash([replace(ROW, behaviour_logps=None)]) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"uid": 8},
        {"prompt_ids": [1]},
        {"completion_ids": [3, 3]},
        {"reward": 0.5 + 2**-52},
        {"reward": math.nan},
        {"source": b""},
        {"operator": "o"},
        {"policy_version": 8},
        {"age": 2},
        {"lag": 1},
        {"weight": 0.5},
        {"baseline": False},
        {"train": True},
        {"behaviour_logps": None},
        {"behaviour_logps": []},
        {"temperature": 1.0},
    ],
)
def test_every_input_of_training_changes_the_hash(change: dict[str, object]) -> None:
    assert inputs_hash([replace(ROW, **change)]) != inputs_hash([ROW])


def test_what_training_does_not_read_changes_nothing() -> None:
    other_nan = struct.unpack(">d", bytes.fromhex("7ff8000000000001"))[0]
    unknown = [replace(ROW, reward=math.nan), replace(ROW, reward=other_nan)]
    assert inputs_hash(unknown[:1]) == inputs_hash(unknown[1:])
    assert inputs_hash([replace(ROW, text="other", scored_version=3)]) == inputs_hash([ROW])
    assert inputs_hash([ROW, replace(ROW, uid=1)]) != inputs_hash([replace(ROW, uid=1), ROW]), "order is input"


def test_hashes_of_what_came_of_it() -> None:
    tag = b"shoal/advantages/1"
    assert advantages_hash([0.5, -1.0]) == hashlib.sha256(tag + struct.pack(">dd", 0.5, -1.0)).digest()
    assert selection_hash([True, False], [1.0, 1.0]) != selection_hash([True, True], [1.0, 1.0])
    assert selection_hash([True, False], [1.0, 1.0]) != selection_hash([True, False], [1.0, 0.5])


def test_own_samples_come_back_bit_by_bit(policy: Policy) -> None:
    own = own_set(policy, prompt(3), ["abc", "d"], [1.0, math.nan])
    odd = Completion([0, 5, 2**32 - 1], [-1e-300, -0.1, -math.pi], False, "half a sign \ud83d")
    own = replace(own, completions=(*own.completions, odd), rewards=(*own.rewards, 1 / 3))
    [back] = unpack_samples(pack_samples([own]))
    assert back.derived == own.derived
    assert back.completions == own.completions
    assert np.array_equal(back.graded, own.rewards, equal_nan=True)
    assert (back.round, back.policy_version) == (own.round, own.policy_version)
    for bad in (b"", b"\0" * 40, pack_samples([own])[:-3]):
        with pytest.raises(EnvironmentFault):
            unpack_samples(bad)


def test_settings_come_back_as_they_were() -> None:
    algorithm = recipe("dapo", peer_rows="likely", dual_clip=3.0)
    settings = replace(
        SETTINGS, algorithm=algorithm, defenses=replace(SETTINGS.defenses, disabled=frozenset({"text", "mixing"}))
    )
    assert msgspec.json.decode(msgspec.json.encode(settings), type=PassSettings) == settings


def test_what_a_failed_pass_had_published_is_recorded_with_the_next_one(policy: Policy) -> None:
    result, notes = a_pass(policy)
    lost = own_set(policy, prompt(4), ["a"], [0.0])
    notes.out.insert(0, replace(notes.out[0], own=lost, announcement=announcement(lost, b"lost", 41)))
    mine, other = own_records(result, notes, KEY)
    assert (mine.place, mine.used_rows, mine.sequence) == (0, 2, 0)
    assert (other.place, other.used_rows, other.sequence) == (None, 0, 41)


def test_an_own_set_that_was_not_published_is_recorded_too(policy: Policy) -> None:
    result, notes = a_pass(policy)
    notes.out.clear()
    [mine] = own_records(result, notes, KEY)
    assert (mine.announcement, mine.digest, mine.place, mine.trained_rows) == (None, None, 0, 2)


def test_a_peers_set_without_a_note_is_a_mistake_of_the_wiring(policy: Policy) -> None:
    result, notes = a_pass(policy)
    notes.came.clear()
    with pytest.raises(ValueError, match="witness"):
        peer_records(result, notes)


def test_each_completion_keeps_its_verdict_and_its_local_reward(policy: Policy) -> None:
    result, notes = a_pass(policy)
    verdicts = (reject("text", "control_character"), ACCEPTED)
    screened, peer = screened_set(9, verdicts=verdicts)
    left = PeerSet(peer.pointer, peer.prompt, peer.completions[1:])
    notes.fetched(peer.pointer, b"", screened, left)
    rows = peer_records(result, notes)[-1].rows
    assert [(row.action, row.reason, row.reward) for row in rows] == [
        ("reject", "control_character", None),
        ("accept", "", 0.0),
    ]


def test_without_signal_nothing_was_trained_and_the_version_stays(policy: Policy) -> None:
    result, notes = a_pass(policy)
    silent = replace(result, report=replace(result.report, signal=False, reason="no signal: every weight is 0"))
    done = pass_record(silent, None)
    assert (done.version_before, done.version_after, done.trained_rows) == (4, 4, 0)
    assert [record.trained_rows for record in peer_records(silent, notes)] == [0, 0]
    assert done.note == "no signal: every weight is 0"
