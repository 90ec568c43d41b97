"""A ban follows from two signatures of its own key, and from nothing else, in whatever order and form things come."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from shoal.defenses.attacks.base import Outgoing
from shoal.defenses.attacks.identity import malleated
from shoal.defenses.attacks.lab import Laboratory
from shoal.protocol.envelope import Announcement, verify_announcement

PEERS = 3
statements = st.tuples(st.integers(0, PEERS - 1), st.integers(0, 5), st.integers(0, 2))  # peer, sequence, what it says
forms = st.sampled_from(["signed", "signed", "malleated", "another's signature", "of another number"])
scripts = st.lists(st.tuples(statements, forms, st.integers(-1, 2)), max_size=25)


def message(lab: Laboratory, peer: int, sequence: int, says: int) -> bytes:
    header = replace(lab.header(peer, b"blob"), sequence=sequence, prompt_hash=bytes([says]) * 32, round=100)
    return lab.sign(peer, header)


def formed(lab: Laboratory, statement: tuple[int, int, int], form: str) -> bytes:
    peer, sequence, says = statement
    data = message(lab, peer, sequence, says)
    if form == "malleated":
        return malleated(Outgoing(data, b"")).announcement
    if form == "another's signature":
        return data[:-64] + message(lab, (peer + 1) % PEERS, sequence, says)[-64:]
    if form == "of another number":
        return data[:-64] + message(lab, peer, sequence + 1, says)[-64:]
    return data


@given(scripts)
def test_a_key_is_banned_when_it_has_said_two_things_under_one_number_and_only_then(script):
    lab = Laboratory(PEERS)
    said: dict[tuple[int, int], int] = {}
    guilty: set[int] = set()
    for statement, form, steps in script:
        lab.now = min(1030.0, max(1000.0, lab.now + 10.0 * steps))  # the round of all of them stays fresh
        peer, sequence, says = statement
        lab.gate.admit(formed(lab, statement, form), b"n%d" % len(said))
        if form == "signed" and peer not in guilty and said.setdefault((peer, sequence), says) != says:
            guilty.add(peer)
        banned = {p for p in range(PEERS) if lab.gate.equivocations.banned(lab.identities[p].key)}
        assert banned == guilty
    for proof in lab.gate.equivocations.proofs():
        for announcement in (proof.first, proof.second):
            verify_announcement(Announcement.decode(announcement.encode()))
        one, other = proof.first.header, proof.second.header
        assert (one.key, one.sequence, one.swarm_id) == (other.key, other.sequence, other.swarm_id)
        assert one.encode() != other.encode()
