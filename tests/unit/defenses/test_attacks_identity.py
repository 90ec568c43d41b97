"""Attacks on keys, signatures, swarms, clocks and versions, and those that need many keys or all neighbours."""

from dataclasses import replace
from random import Random

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from shoal.defenses.attacks import ATTACKS, Attack, Outgoing
from shoal.defenses.attacks.identity import FITS_ANYTHING, accusations, malleated, weak_keys
from shoal.defenses.attacks.lab import Laboratory, OtherLaboratory
from shoal.defenses.config import DefenseConfig
from shoal.defenses.mixing import choose, operator_factors
from shoal.defenses.pointer import Held, Pointer
from shoal.defenses.reputation import key_subject, sender_subject
from shoal.defenses.screen import Screened
from shoal.protocol import canonical
from shoal.protocol.envelope import NO_HASH, PROTOCOL_VERSION, Header, Kind, payload_hash, seal, verify_announcement
from shoal.protocol.errors import ProtocolError
from shoal.protocol.identity import FIELD_PRIME, GROUP_ORDER, Identity
from shoal.protocol.records import GOSSIP, TRANSPORT, PeerRecord, open_record, prove, seal_record
from shoal.protocol.staleness import LagClock
from shoal.protocol.validity import forwardable

GROUP = ("cba", "?", "abc", "cba")
PATIENT = DefenseConfig(mute_after=10**6)


def armed(lab: Laboratory, name: str, peer: int = 0, **settings) -> Attack:
    attack = ATTACKS[name](**settings)
    attack.arm(lambda header: lab.sign(peer, header))
    return attack


def reasons(lab: Laboratory, messages: list[Outgoing], peer: int = 0) -> list[str]:
    """The counter of each message; "" for one that was opened, "held" for one of the coming round."""
    outcomes = [lab.receive(peer, message) for message in messages]
    return [
        "" if isinstance(one, Screened) else "held" if isinstance(one, Held) else f"{one.layer}/{one.reason}"
        for one in outcomes
    ]


def honest(lab: Laboratory, peer: int, **changes) -> Outgoing:
    return lab.sealed(peer, lab.rollout(GROUP, **changes))


def delivered(lab: Laboratory, peer: int) -> bool:
    return isinstance(lab.receive(peer, honest(lab, peer)), Screened)


# --- signatures and keys


def test_s_plus_l_is_the_same_equation_and_no_second_message():
    lab = Laboratory(config=PATIENT)
    attack = armed(lab, "malleable")
    heard = honest(lab, 1)
    attack.overhear(heard.announcement, heard.blob)
    sent, *copies = attack.messages(honest(lab, 0), Random(0))
    first, second = (int.from_bytes(message.announcement[-32:], "little") for message in (sent, copies[0]))
    assert second == first + GROUP_ORDER  # S*B and (S+L)*B are one point
    assert copies[0].announcement[:-32] == sent.announcement[:-32]
    assert reasons(lab, copies) == ["header/bad_signature"] * 2
    assert reasons(lab, [sent, heard]) == ["", ""]
    assert reasons(lab, copies) == ["header/seen"] * 2  # not even judged: the name of a message is not its signature


def test_with_the_header_layer_off_each_copy_is_one_more_rollout():
    lab = Laboratory(config=DefenseConfig.without(["header", "duplicates"]))
    sent, copy = armed(lab, "malleable").messages(honest(lab, 0), Random(0))
    assert reasons(lab, [sent, copy]) == ["", ""]


def library_verifies(key: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(FITS_ANYTHING, message)
    except Exception:  # noqa: BLE001 - of whatever kind: it refuses
        return False
    return True


def test_the_library_takes_one_signature_for_every_message_under_these_keys():
    always = [key for key in weak_keys() if all(library_verifies(key, bytes([number])) for number in range(20))]
    assert (1).to_bytes(32, "little") in always
    assert (FIELD_PRIME + 1).to_bytes(32, "little") in always, "and under a second spelling of the same point"
    sometimes = [key for key in weak_keys() if any(library_verifies(key, bytes([number])) for number in range(200))]
    assert len(sometimes) > len(always), "under the others it fits every second, fourth or eighth message"


def test_weak_keys_are_refused_at_admission():
    lab = Laboratory(config=PATIENT, mode="open")
    found = reasons(lab, armed(lab, "weak-keys").messages(honest(lab, 0), Random(0)))
    assert set(found) == {"admission/key_small_order", "admission/key_not_canonical"}
    assert lab.counters.get("admission/key_small_order") == 10
    assert delivered(lab, 1)
    closed = Laboratory(config=PATIENT)
    found = reasons(closed, armed(closed, "weak-keys").messages(honest(closed, 0), Random(0)))
    assert set(found) == {"admission/not_admitted"}


def test_without_that_judgement_weak_keys_would_be_peers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shoal.protocol.identity.check_key", lambda key: None)
    monkeypatch.setattr("shoal.protocol.envelope.check_key", lambda key: None)
    lab = Laboratory(config=DefenseConfig.without(["duplicates"]), mode="open")
    found = reasons(lab, armed(lab, "weak-keys").messages(honest(lab, 0), Random(0)))
    assert found.count("") >= 2, "nobody holds these keys, and their messages are opened"


# --- other swarms, other times


def test_what_was_signed_for_another_swarm_stays_there():
    here, there = Laboratory(config=PATIENT), OtherLaboratory()
    assert here.identities[1].key == there.identities[1].key
    elsewhere = honest(there, 1)
    assert isinstance(there.receive(1, elsewhere), Screened)
    assert reasons(here, [elsewhere]) == ["header/wrong_swarm"]
    assert here.gate.reputation.score(sender_subject(here.identities[0].key)) == 0.0, "who passed it on is not blamed"
    found = reasons(here, armed(here, "cross-swarm").messages(honest(here, 0), Random(0)))
    assert found == ["header/wrong_swarm", "header/bad_signature"]


def test_with_the_header_layer_off_it_comes_in_and_only_the_prompt_gives_it_away():
    off = ["header"]
    here, there = Laboratory(config=DefenseConfig.without(off)), OtherLaboratory()
    assert reasons(here, [honest(there, 1)]) == ["provenance/other_prompt"]
    bare = Laboratory(config=DefenseConfig.without([*off, "provenance"]))
    assert reasons(bare, [honest(there, 1)]) == [""]


def test_an_hour_ahead_and_an_hour_back_are_refused_and_pass_with_the_layer_off():
    lab = Laboratory(config=PATIENT)
    lab.now = 10_000.0
    found = reasons(lab, armed(lab, "clock-skew").messages(honest(lab, 0), Random(0)))
    assert found == ["header/stale", "header/stale", "header/ahead", "header/ahead"]
    off = Laboratory(config=DefenseConfig.without(["header", "provenance", "duplicates"]))
    off.now = 10_000.0
    assert reasons(off, armed(off, "clock-skew").messages(honest(off, 0), Random(0))) == [""] * 4


@pytest.mark.parametrize("hour", [3600.0, -3600.0])
def test_a_node_whose_own_clock_is_wrong_by_an_hour_takes_nothing_and_recovers(hour: float):
    lab = Laboratory()
    lab.now = 10_000.0
    assert delivered(lab, 1)
    right = lab.now
    for step in range(3):
        lab.now = right + step * 10.0
        messages = [honest(lab, 1)]
        lab.now += hour
        assert reasons(lab, messages) == ["header/stale" if hour > 0 else "header/ahead"]
    lab.now = right + 40.0
    assert [delivered(lab, peer) for peer in (0, 1, 2)] == [True] * 3, "nobody was muted for the node's own mistake"


def test_versions_that_fall_are_refused_and_the_highest_shuts_its_sender_out():
    lab = Laboratory(config=PATIENT)
    attack = armed(lab, "false-version")
    sent = honest(lab, 0, policy_version=5)
    assert reasons(lab, attack.messages(sent, Random(0))) == ["", "header/version_fell", "header/version_fell"]
    lab.now += 10.0
    later = attack.messages(honest(lab, 0, policy_version=6), Random(0))
    assert reasons(lab, later[1:]) == ["header/version_fell"] * 2, "its true versions count no more"
    assert delivered(lab, 1)
    off = Laboratory(config=DefenseConfig.without(["header", "duplicates"]))
    assert reasons(off, armed(off, "false-version").messages(sent, Random(0))) == [""] * 3


def test_a_claimed_version_moves_no_bound_of_the_receiver():
    """Lag counts the receiver's own updates, so a version says nothing that a stranger can use."""
    lag = LagClock()
    lag.began(100, 7)
    assert lag.lag(100, 9) == 2
    lab = Laboratory(config=PATIENT)
    lab.lag = lab.manifest.limits.max_lag + 1
    huge = honest(lab, 0, policy_version=2**63 - 1)
    assert reasons(lab, [huge]) == ["header/lag"]


# --- two payloads under one number


def test_two_payloads_under_one_number_prove_themselves_and_ban_their_key():
    lab = Laboratory(config=PATIENT)
    assert ATTACKS["equivocation"].expected.layer == "reputation"
    attack = armed(lab, "equivocation")
    assert reasons(lab, attack.messages(honest(lab, 0), Random(0))) == ["", "reputation/equivocated"]
    assert lab.counters.get("reputation/banned_key") == 1
    [proof] = lab.gate.equivocations.proofs()
    assert proof.first.header.sequence == proof.second.header.sequence
    assert proof.first.header.payload_hash != proof.second.header.payload_hash
    for one in (proof.first, proof.second):
        verify_announcement(one)
    lab.now += 500.0
    assert reasons(lab, [honest(lab, 0)]) == ["reputation/equivocated"], "and no parole"
    assert delivered(lab, 1)


@pytest.mark.parametrize(("off", "second"), [(["reputation"], "header/replayed_sequence"), (["header"], "")])
def test_without_the_proof_only_the_number_is_refused_and_without_both_each_half_of_the_swarm_gets_its_own(
    off: list[str], second: str
):
    lab = Laboratory(config=DefenseConfig.without(off))
    attack = armed(lab, "equivocation")
    assert reasons(lab, attack.messages(honest(lab, 0), Random(0))) == ["", second]
    lab.now += 10.0
    assert delivered(lab, 0)


# --- accusations


def test_no_forged_evidence_reaches_the_name_of_an_honest_key():
    lab = Laboratory(config=PATIENT)
    attack = armed(lab, "false-accusation")
    for peer in (1, 2):
        heard = honest(lab, peer)
        assert isinstance(lab.receive(peer, heard), Screened)
        attack.overhear(heard.announcement, heard.blob)
    sent, *forged = attack.messages(honest(lab, 0), Random(0))
    found = reasons(lab, forged)
    assert set(found) == {"header/bad_signature", "header/seen"}
    for peer in (1, 2):
        assert lab.gate.reputation.score(key_subject(lab.identities[peer].key)) == 0.0
        assert delivered(lab, peer)
    assert reasons(lab, [sent]) == [""]


def test_another_blob_than_was_signed_is_its_carriers_fault():
    lab = Laboratory(config=PATIENT)
    *_, swapped, _ = accusations(honest(lab, 1), b"other")
    assert reasons(lab, [swapped]) == ["header/payload_hash"]
    assert lab.gate.reputation.score(key_subject(lab.identities[1].key)) == 0.0


def test_with_signatures_not_judged_the_accused_is_muted():
    lab = Laboratory(config=DefenseConfig.without(["header"]))
    victim = 1
    forged = list(accusations(honest(lab, victim), b"other"))
    reasons(lab, forged)
    assert lab.gate.reputation.muted(key_subject(lab.identities[victim].key))
    assert not delivered(lab, victim)


def test_an_honest_neighbour_cannot_be_made_to_pass_on_what_it_is_blamed_for():
    """Whatever gossip's rule forwards costs nobody at the gate, so nobody is muted for what others have written."""
    rule = forwardable(Laboratory().manifest.swarm_id)
    forwarded = 0
    for name in ATTACKS:
        lab = Laboratory(mode="open")
        attack = armed(lab, name)
        for peer in (1, 2):
            heard = honest(lab, peer)
            attack.overhear(heard.announcement, heard.blob)
        for message in attack.messages(honest(lab, 0), Random(0)):
            if rule(message.announcement):
                forwarded += 1
                lab.gate.admit(message.announcement, b"an honest neighbour")
        assert lab.gate.reputation.score(sender_subject(b"an honest neighbour")) == 0.0, name
    assert forwarded > 100


# --- stolen and squatted keys


def test_two_holders_of_one_key_are_one_key_until_it_is_revoked():
    """Partial: a stolen key is that key. Its one share bounds it; a collision of numbers, or the founder, ends it."""
    lab = Laboratory(config=PATIENT)
    thief = Laboratory()  # the same keys, its own count of sequence numbers
    mine, theirs = honest(lab, 0), thief.sealed(0, thief.rollout(("zx cba", "?", "?", "zx cba")))
    assert reasons(lab, [mine]) == [""]
    assert reasons(lab, [theirs]) == ["reputation/equivocated"], "the numbers of two holders collide"
    later = [lab.gate.admit(honest(holder, 0).announcement, b"n") for _ in range(9) for holder in (lab, thief)]
    assert not any(isinstance(outcome, Pointer) for outcome in later), "which ends the key, for both of them"
    apart = Laboratory(config=DefenseConfig.without(["reputation"]))
    outcomes = [apart.gate.admit(honest(holder, 0).announcement, b"n") for _ in range(9) for holder in (apart, thief)]
    drawn = [outcome.operator for outcome in outcomes if isinstance(outcome, Pointer)]
    assert len(drawn) == 18, "a thief who keeps away from the owner's numbers is not told from him"
    assert set(drawn) == {"operator 0"}, "and never has more than one operator's share"
    revised = msgspec.structs.replace(lab.manifest, revision=1, revoked=[lab.identities[0].key.hex()])
    lab.gate.adopt(revised)
    assert not isinstance(lab.gate.admit(honest(thief, 0).announcement, b"n"), Pointer)
    assert delivered(lab, 1)


def record(identity: Identity, **changes) -> PeerRecord:
    transport, gossip = prove(identity, TRANSPORT), prove(identity, GOSSIP)
    own = PeerRecord(
        *(bytes(32), identity.key, 1, 2000, bytes(32), bytes(32), 0, (), ("/ip4/10.0.0.1/tcp/1",)),
        *(*transport, *gossip, 0, b""),
    )
    return msgspec.structs.replace(own, **changes)


def test_nobody_passes_off_anothers_network_key_or_name_as_his_own():
    victim, squatter = Identity.from_seed(bytes([1]) * 32), Identity.from_seed(bytes([2]) * 32)
    theirs = record(victim)
    assert open_record(seal_record(victim, theirs), 0.0) == theirs
    transport = {"transport_key": theirs.transport_key, "transport_proof": theirs.transport_proof}
    gossip = {"gossip_key": theirs.gossip_key, "gossip_proof": theirs.gossip_proof}
    for claim in (transport, gossip):
        with pytest.raises(ProtocolError, match="unbound_key"):
            open_record(seal_record(squatter, record(squatter, **claim)), 0.0)
    with pytest.raises(ValueError, match="names"):
        seal_record(squatter, theirs)
    payload = canonical.encode(theirs)
    named = Header(
        *(Kind.RECORD, PROTOCOL_VERSION, bytes(32), squatter.key, 0, 0, NO_HASH, 1, len(payload), payload_hash(payload))
    )
    with pytest.raises(ProtocolError, match="header_mismatch"):
        open_record(seal(squatter, named).encode() + payload, 0.0)
    victims_name = replace(named, key=victim.key).encode() + seal(squatter, named).signature
    with pytest.raises(ProtocolError, match="bad_signature"):
        open_record(victims_name + payload, 0.0)


def test_with_the_binding_not_checked_a_squatter_gets_the_victims_traffic(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shoal.protocol.records.bound", lambda *_: True)
    victim, squatter = Identity.from_seed(bytes([1]) * 32), Identity.from_seed(bytes([2]) * 32)
    claim = record(squatter, transport_key=record(victim).transport_key)
    assert open_record(seal_record(squatter, claim), 0.0).transport_key == record(victim).transport_key


# --- many keys, and all of the neighbours

HONEST = 4


def crowd(
    mode: str, operators: list[str] | None, config: DefenseConfig | None = None
) -> tuple[Laboratory, list[Pointer]]:
    """HONEST peers, and a hundred keys of one person; each publishes once."""
    lab = Laboratory(HONEST + 100, operators, config, mode=mode)
    pointers = [
        lab.gate.admit(honest(lab, peer).announcement, lab.identities[peer].key) for peer in range(HONEST + 100)
    ]
    return lab, [pointer for pointer in pointers if isinstance(pointer, Pointer)]


def share(lab: Laboratory, pointers: list[Pointer], fetches: int = 10, fair: bool = True) -> float:
    """The share of the hundred among the first pointers that are drawn, over a hundred draws."""
    ours = {identity.key for identity in lab.identities[:HONEST]}
    drawn = [p for seed in range(100) for p in list(choose(pointers, Random(seed), fair))[:fetches]]
    return sum(pointer.key not in ours for pointer in drawn) / len(drawn)


NAMES = [f"operator {number}" for number in range(HONEST)] + ["the sybil"] * 100


def test_a_hundred_keys_of_one_operator_weigh_as_one():
    lab, pointers = crowd("allow-list", NAMES)
    assert len(pointers) == HONEST + 100
    assert len({pointer.operator for pointer in pointers}) == HONEST + 1
    assert share(lab, pointers, fetches=HONEST + 1) == 1 / (HONEST + 1)
    assert share(lab, pointers, fetches=1) == pytest.approx(1 / (HONEST + 1), abs=0.12)
    masses = dict.fromkeys(NAMES[:HONEST], 1.0) | {"the sybil": 100.0}
    assert operator_factors(masses)["the sybil"] * 100.0 == 1.0, "nor do they weigh more when all are used"


@pytest.mark.parametrize("off", ["admission", "mixing"])
def test_without_operators_or_turns_they_have_nearly_all(off: str):
    lab, pointers = crowd("allow-list", NAMES, DefenseConfig.without([off]))
    assert share(lab, pointers, fair=off != "mixing") > 0.9


def test_a_hundred_fresh_keys_of_an_open_swarm_share_one_newcomers_place_until_they_have_waited():
    """Partial: keys cost nothing there. New ones weigh as one operator, those that waited long enough each as one."""
    _, pointers = crowd("open", None)
    assert {pointer.operator for pointer in pointers} == {"newcomers"}, "in the first rounds all are new"
    lab = Laboratory(HONEST + 100, config=DefenseConfig(newcomer_rounds=3), mode="open")
    for _ in range(lab.config.newcomer_rounds + 1):
        admitted = [lab.gate.admit(honest(lab, peer).announcement, b"n") for peer in range(HONEST)]
        lab.now += 10.0
    fresh = [lab.gate.admit(honest(lab, HONEST + number).announcement, b"n") for number in range(100)]
    pointers = [pointer for pointer in (*admitted, *fresh) if isinstance(pointer, Pointer)]
    assert len(pointers) == HONEST + 100
    assert len({pointer.operator for pointer in pointers}) == HONEST + 1
    assert share(lab, pointers, fetches=HONEST + 1) == 1 / (HONEST + 1)
    for _ in range(lab.config.newcomer_rounds + 1):
        everyone = [lab.gate.admit(honest(lab, peer).announcement, b"n") for peer in range(HONEST + 100)]
        lab.now += 10.0
    pointers = [pointer for pointer in everyone if isinstance(pointer, Pointer)]
    assert share(lab, pointers) > 0.9, "who waits with a hundred keys has a hundred voices"


def test_a_useless_flood_costs_one_operators_turns():
    lab = Laboratory(config=PATIENT)
    attack = armed(lab, "useless")
    flood = attack.messages(honest(lab, 0), Random(0))
    messages = [*flood, *(honest(lab, peer) for peer in (1, 2, 3))]
    admitted = [lab.gate.admit(message.announcement, b"n") for message in messages]
    pointers = [pointer for pointer in admitted if isinstance(pointer, Pointer)]
    assert len(pointers) == 67
    useless = lab.identities[0].key
    fair = [pointer.key for pointer in list(choose(pointers, Random(1)))[:4]]
    loud = [pointer.key for pointer in list(choose(pointers, Random(1), fair=False))[:4]]
    assert fair.count(useless) == 1
    assert loud.count(useless) >= 3


def test_behind_malicious_neighbours_nothing_honest_and_nothing_forged_comes_in():
    """Partial: an eclipse starves its victim of honest peers. What it still takes is admitted and signed, and waits."""
    lab = Laboratory(6, ["ada", "bob", "eve", "eve", "eve", "eve"], PATIENT)
    kept_back = [honest(lab, peer) for peer in (0, 1)]
    forged = [Outgoing(message.announcement[:-1] + b"\0", message.blob) for message in kept_back]
    forged += [malleated(message) for message in kept_back]
    own = [honest(lab, peer) for peer in (2, 3, 4, 5)]
    pointers: list[Pointer] = []
    for message in [*forged, *own]:
        pointer = lab.gate.admit(message.announcement, lab.identities[2].key)
        pointers += [pointer] if isinstance(pointer, Pointer) else []
    assert {pointer.operator for pointer in pointers} == {"eve"}, "all that it has is of its enemy"
    assert len(pointers) == 4
    masses = dict.fromkeys([pointer.operator for pointer in pointers], 100.0)
    assert operator_factors(masses, asked=6.0)["eve"] * 100.0 == 6.0, "and counts as what was asked of peers, at most"
    lab.now += 10.0
    assert [delivered(lab, peer) for peer in (0, 1)] == [True, True], "one honest link, and it has them again"
