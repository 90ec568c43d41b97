"""Proof of equivocation: what counts as one, that it verifies, and that what is known of a key is bounded and safe."""

from dataclasses import replace

import msgpack
import pytest

from shoal.defenses.attacks.base import header_of
from shoal.defenses.attacks.identity import Equivocation
from shoal.defenses.attacks.lab import Laboratory
from shoal.defenses.config import DefenseConfig
from shoal.defenses.equivocation import Equivocations
from shoal.defenses.verdict import Counters
from shoal.protocol.envelope import Announcement, verify_announcement

LAB = Laboratory(peers=3)


def announcement(peer: int = 0, sequence: int = 1, **changes) -> Announcement:
    header = replace(LAB.header(peer, b"blob"), sequence=sequence, **changes)
    return Announcement.decode(LAB.sign(peer, header))


def book(**changes: int) -> Equivocations:
    return Equivocations(DefenseConfig(**changes), Counters())


def test_two_statements_under_one_number_are_a_proof_that_anybody_can_verify():
    kept, first, second = book(), announcement(), announcement(prompt_hash=b"p" * 32)
    assert not kept.witness(first, "a")
    assert kept.witness(second, "a")
    assert kept.banned(first.header.key)
    (proof,) = kept.proofs()
    for one in (proof.first, proof.second):
        verify_announcement(one)
    assert proof.key == proof.first.header.key == proof.second.header.key == LAB.identities[0].key
    assert proof.first.header.sequence == proof.second.header.sequence
    assert proof.first.header != proof.second.header


def test_the_same_statement_twice_is_none():
    kept, first = book(), announcement()
    malleable = Announcement(first.header, bytes(64))  # another signature of the same header
    assert [kept.witness(one, "a") for one in (first, first, malleable)] == [False] * 3
    assert not kept.proofs()


def test_numbers_of_other_keys_and_other_numbers_are_none():
    kept = book()
    for one in (announcement(0, 1), announcement(1, 1), announcement(0, 2)):
        assert not kept.witness(one, "one operator of two keys")
    assert not kept.proofs()


def test_a_third_statement_adds_no_second_proof():
    kept = book()
    for number in range(5):
        kept.witness(announcement(prompt_hash=bytes([number]) * 32), "a")
    assert len(kept.proofs()) == 1
    assert kept.proofs()[0].second.header.prompt_hash == bytes([1]) * 32


def test_a_flood_of_other_operators_flushes_nothing_of_a_key():
    counters = Counters()
    kept = Equivocations(DefenseConfig(witnessed=32), counters)
    kept.witness(announcement(0, 1), "calm")
    for sequence in range(1000):
        kept.witness(announcement(1, sequence), "loud")
    assert counters.get("reputation/evicted_witness") == 1001 - 32
    assert kept.witness(announcement(0, 1, prompt_hash=b"p" * 32), "calm")
    assert len(kept.state()["witnessed"]) == 32


def test_what_is_stale_is_forgotten_and_a_ban_is_not():
    kept = book()
    kept.witness(announcement(0, 1, round=100), "a")
    kept.witness(announcement(0, 1, round=101), "a")
    kept.witness(announcement(1, 1, round=100), "b")
    kept.expire(101)
    assert kept.state()["witnessed"] == []
    assert not kept.witness(announcement(1, 1, round=105), "b")
    assert kept.banned(LAB.identities[0].key)
    assert not kept.banned(LAB.identities[1].key)


def test_proofs_are_bounded_and_the_eviction_counted():
    counters = Counters()
    kept = Equivocations(DefenseConfig(proofs=2), counters)
    for peer in range(3):
        kept.witness(announcement(peer, 1), "a")
        kept.witness(announcement(peer, 1, payload_length=9), "a")
    assert [kept.banned(identity.key) for identity in LAB.identities] == [False, True, True]
    assert counters.state() == {"reputation/banned_key": 3, "reputation/evicted_proof": 1}


def test_state_comes_back():
    kept = book()
    for peer, sequence in ((0, 1), (0, 2), (1, 5)):
        kept.witness(announcement(peer, sequence), f"operator {peer}")
    kept.witness(announcement(1, 5, round=3), "operator 1")
    again = book()
    again.restore(msgpack.unpackb(msgpack.packb(kept.state())))
    assert again.state() == kept.state()
    assert again.proofs() == kept.proofs()
    assert again.witness(announcement(0, 2, round=7), "operator 0")


@pytest.mark.parametrize("turned", [False, True])
def test_every_node_finds_it_by_itself_in_whatever_order_gossip_brings_the_two(turned: bool):
    writer, attack = Laboratory(), Equivocation()
    attack.arm(lambda header: writer.sign(0, header))
    sent = writer.sealed(0, writer.rollout(("a", "b")))
    messages = [sent, attack.second(sent)]
    receiver = Laboratory()
    for message in reversed(messages) if turned else messages:
        receiver.gate.admit(message.announcement, b"whoever")
    assert [proof.key for proof in receiver.gate.equivocations.proofs()] == [header_of(sent).key]
