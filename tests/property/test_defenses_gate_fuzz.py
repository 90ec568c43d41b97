"""The gate and the screen under arbitrary bytes: they never raise, stay bounded, and let no victim pay."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from shoal.defenses.attacks.base import Outgoing
from shoal.defenses.attacks.lab import Laboratory
from shoal.defenses.config import DefenseConfig
from shoal.defenses.pointer import Held, Pointer
from shoal.defenses.screen import Screened
from shoal.defenses.verdict import LAYERS, Verdict
from shoal.protocol.envelope import ANNOUNCEMENT_SIZE, HEADER_SIZE, Announcement
from shoal.protocol.manifest import SwarmLimits
from shoal.protocol.staleness import Freshness, freshness

BLOB = b"never opened"
QUOTA = 3
SMALL = DefenseConfig(
    seen=16,
    senders=4,
    quota_entries=16,
    held=4,
    held_per_key=2,
    subjects=8,
    sender_bytes_per_round=1 << 16,
    first_sights=8,
    witnessed=16,
    proofs=2,
)


def laboratory(config: DefenseConfig = SMALL) -> Laboratory:
    return Laboratory(peers=3, config=config, limits=SwarmLimits(rollouts_per_key_per_round=QUOTA, max_age_rounds=2))


def valid(lab: Laboratory, peer: int, age: int) -> bytes:
    return lab.sign(peer, lab.header(peer, BLOB, round=lab.round - age))


mutations = st.lists(st.tuples(st.integers(0, ANNOUNCEMENT_SIZE - 1), st.integers(1, 255)), max_size=4)
junk = st.one_of(st.binary(max_size=400), st.binary(min_size=ANNOUNCEMENT_SIZE, max_size=ANNOUNCEMENT_SIZE))
senders = st.binary(max_size=80)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("junk"), junk, senders),
        st.tuples(st.just("mutated"), st.tuples(st.integers(0, 2), st.integers(-2, 4), mutations), senders),
        st.tuples(st.just("time"), st.integers(-15, 40), senders),
    ),
    max_size=60,
)


def mutate(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    changed = bytearray(data)
    for place, mask in changes:
        changed[place] ^= mask
    return bytes(changed)


def bounded(lab: Laboratory) -> None:
    state, config = lab.gate.state(), lab.config
    assert len(state["seen"]) <= config.seen
    assert len(state["senders"]) <= config.senders + 1  # and the shared account
    assert len(state["keys"]) <= config.quota_entries
    assert len(state["held"]) <= config.held
    assert len(state["newcomers"]) <= config.first_sights
    assert len(state["equivocations"]["witnessed"]) <= config.witnessed
    assert len(state["equivocations"]["proofs"]) <= config.proofs
    assert len(lab.gate.reputation.state()["records"]) <= 2 * config.subjects  # the muted have places of their own
    assert len(lab.counters.state()) < 100


@given(steps)
def test_the_gate_never_raises_stays_bounded_and_admits_nothing_beyond_the_bounds(script):
    lab = laboratory()
    for kind, argument, sender in script:
        if kind == "time":
            lab.now = max(500.0, lab.now + argument)
            lab.lag = argument % 12
            outcomes = lab.gate.release(lab.round)
        elif kind == "junk":
            outcomes = [lab.gate.admit(argument, sender)]
        else:
            peer, age, changes = argument
            outcomes = [lab.gate.admit(mutate(valid(lab, peer, age), changes), sender)]
        for outcome in outcomes:
            assert isinstance(outcome, Pointer | Held | Verdict)
            if isinstance(outcome, Pointer):
                assert freshness(lab.round, outcome.round, 2) is Freshness.FRESH
                assert lab.lag <= 8
                header = outcome.announcement.header
                signed = lab.sign([i.key for i in lab.identities].index(header.key), header)
                assert signed == outcome.announcement.encode()
    bounded(lab)


@given(st.lists(st.tuples(st.integers(0, 2), mutations.filter(bool), senders), max_size=40))
def test_no_forgery_burns_a_victims_quota_sequence_or_name(forgeries):
    lab = laboratory(replace(SMALL, senders=1000, seen=1000))
    honest = [valid(lab, peer, 0) for peer in range(3) for _ in range(QUOTA)]
    for peer, changes, sender in forgeries:
        forged = mutate(honest[peer * QUOTA], changes)
        if forged not in honest:  # two changes may undo each other
            assert not isinstance(lab.gate.admit(forged, b"forger" + sender), Pointer)
    assert all(isinstance(lab.gate.admit(data, b"honest"), Pointer) for data in honest)


@given(junk)
def test_bytes_alone_never_become_a_pointer(data: bytes):
    lab = laboratory()
    outcome = lab.gate.admit(data, b"")
    assert isinstance(outcome, Verdict)
    assert not outcome.usable
    assert outcome.layer in LAYERS


@given(st.binary(max_size=300), st.booleans())
def test_the_screen_never_raises_for_any_payload(payload: bytes, signed: bool):
    lab = laboratory()
    good = lab.sealed(0, lab.rollout(("a", "b")))
    blob = payload if signed else good.blob[: len(payload) % len(good.blob)]
    outcome = lab.receive(0, Outgoing(lab.sign(0, lab.header(0, blob)), blob))
    assert isinstance(outcome, Verdict)
    assert outcome.layer == "schema"


@given(st.lists(st.text(max_size=60), min_size=2, max_size=8))
def test_the_screen_never_raises_for_any_text_and_keeps_what_it_does_not_refuse(texts: list[str]):
    lab = laboratory()
    outcome = lab.receive(0, lab.sealed(0, lab.rollout(texts)))
    if isinstance(outcome, Screened):
        assert 2 * len(outcome.kept) >= len(texts)
        assert [i for i, verdict in enumerate(outcome.verdicts) if verdict.usable] == list(outcome.kept)
    else:
        assert outcome.layer == "text"


@given(st.integers(0, HEADER_SIZE * 8 - 1))
def test_every_bit_of_the_header_is_signed(bit: int):
    lab = laboratory()
    data = bytearray(valid(lab, 0, 0))
    data[bit // 8] ^= 1 << bit % 8
    assert isinstance(lab.gate.admit(bytes(data), b"n"), Verdict)
    assert len(Announcement.decode(valid(lab, 0, 0)).signature) == 64
