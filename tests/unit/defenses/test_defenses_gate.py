"""The admission gate: what it lets in, what it refuses and why, and who pays for it."""

import hashlib
from dataclasses import replace

import msgpack
import msgspec
import pytest

from shoal.defenses.attacks.base import Outgoing
from shoal.defenses.attacks.identity import FITS_ANYTHING, weak_keys
from shoal.defenses.attacks.lab import Laboratory
from shoal.defenses.config import DefenseConfig
from shoal.defenses.gate import Gate
from shoal.defenses.pointer import Held, Pointer
from shoal.defenses.reputation import key_subject, sender_subject
from shoal.defenses.verdict import Verdict
from shoal.protocol.envelope import Announcement, Kind
from shoal.protocol.identity import GROUP_ORDER, Identity
from shoal.protocol.invite import Token, bind, issue_invite
from shoal.protocol.manifest import Admission, SwarmLimits

BLOB = b"any bytes: the gate never opens them"


def announce(lab: Laboratory, peer: int = 0, **changes) -> bytes:
    return lab.sign(peer, lab.header(peer, BLOB, **changes))


def admit(lab: Laboratory, data: bytes, sender: bytes = b"neighbour") -> Pointer | Held | Verdict:
    return lab.gate.admit(data, sender)


def refusal(lab: Laboratory, data: bytes, sender: bytes = b"neighbour") -> str:
    """The counter of a refusal, which must have been counted once more."""
    before = lab.counters.state()
    verdict = admit(lab, data, sender)
    assert isinstance(verdict, Verdict)
    assert not verdict.usable
    name = f"{verdict.layer}/{verdict.reason}"
    assert lab.counters.get(name) == before.get(name, 0) + 1
    return name


def accepted(lab: Laboratory, data: bytes, sender: bytes = b"neighbour") -> Pointer:
    pointer = admit(lab, data, sender)
    assert isinstance(pointer, Pointer), pointer
    return pointer


def test_a_valid_announcement_becomes_a_pointer():
    lab = Laboratory()
    data = announce(lab, 1)
    pointer = accepted(lab, data)
    assert pointer.announcement.encode() == data
    assert (pointer.key, pointer.operator) == (lab.identities[1].key, "operator 1")
    assert (pointer.round, pointer.received_round, pointer.arrival, pointer.sequence) == (100, 100, 1, 1)
    assert pointer.digest == hashlib.sha256(BLOB).digest()
    assert lab.counters.get("gate/accepted") == 1


def test_arrivals_count_up():
    lab = Laboratory()
    assert [accepted(lab, announce(lab, peer)).arrival for peer in (2, 0, 1)] == [1, 2, 3]


def test_a_pointer_survives_its_checkpoint():
    pointer = accepted(lab := Laboratory(), announce(lab))
    assert Pointer.from_state(msgpack.unpackb(msgpack.packb(pointer.state()))) == pointer


@pytest.mark.parametrize("data", [b"", b"x", b"\x00" * 238, b"\xff" * 300])
def test_bytes_that_are_no_announcement_are_malformed(data: bytes):
    lab = Laboratory()
    assert refusal(lab, data).startswith("header/")
    assert lab.gate.reputation.score(sender_subject(b"neighbour")) == 1.0


def test_size_is_judged_before_parsing():
    assert refusal(Laboratory(), b"x" * 2049) == "header/announcement_too_large"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"swarm_id": b"s" * 32}, "header/wrong_swarm"),
        ({"kind": Kind.RECORD}, "header/wrong_kind"),
        ({"round": 95}, "header/stale"),
        ({"round": 102}, "header/ahead"),
        ({"round": 2**62}, "header/ahead"),
        ({"payload_length": 9 << 20}, "quota/blob_bytes"),
    ],
)
def test_what_a_header_may_not_say(changes: dict, name: str):
    lab = Laboratory()
    assert refusal(lab, announce(lab, **changes)) == name


@pytest.mark.parametrize("size", [238, 100, 1000])
def test_other_versions_are_ignored_and_nobody_is_blamed(size: int):
    lab = Laboratory()
    data = announce(lab, version=2)
    data = (data + b"later fields" * 100)[:size]
    for _ in range(20):
        assert refusal(lab, data) == "header/unknown_version"
    assert lab.gate.reputation.score(sender_subject(b"neighbour")) == 0.0


def test_bounds_on_age_and_lag_are_exact():
    lab = Laboratory()
    accepted(lab, announce(lab, round=96))  # age 4, the bound
    lab.lag = 8
    accepted(lab, announce(lab))
    lab.lag = 9
    assert refusal(lab, announce(lab)) == "header/lag"


def test_bound_zero_lets_only_the_current_round_in():
    lab = Laboratory(limits=SwarmLimits(max_age_rounds=0))
    accepted(lab, announce(lab))
    assert refusal(lab, announce(lab, round=99)) == "header/stale"


def test_own_announcements_do_not_come_back_in():
    lab = Laboratory()
    header = lab.header(0, BLOB, key=lab.own.key)
    assert refusal(lab, Announcement(header, lab.own.sign(header.encode())).encode()) == "header/own_key"


def test_strangers_and_revoked_keys_stay_out():
    lab = Laboratory()
    stranger = Identity.from_seed(b"s" * 32)
    header = lab.header(0, BLOB, key=stranger.key)
    assert refusal(lab, Announcement(header, stranger.sign(header.encode())).encode()) == "admission/not_admitted"
    lab.gate.adopt(msgspec.structs.replace(lab.manifest, revoked=[lab.identities[0].key.hex()]))
    assert refusal(lab, announce(lab, 0)) == "admission/revoked"
    accepted(lab, announce(lab, 1))


def by_invite(lab: Laboratory, **fields) -> Token:
    """Make the laboratory an invite swarm without listed keys; returns an invite of its founder."""
    lab.gate.adopt(msgspec.structs.replace(lab.manifest, admission=Admission(mode="invite"), **fields))
    return issue_invite(lab.own, lab.manifest.swarm_id, "ada", 102, bytes([9]) * 32)


def test_an_invited_key_is_a_stranger_until_its_record_was_seen():
    lab = Laboratory()
    token = by_invite(lab)
    data = announce(lab, 0)
    assert refusal(lab, data) == "admission/not_admitted"
    for peer in (0, 1):
        key = lab.identities[peer].key
        lab.gate.admissions.learn(key, bind(token, key))
    assert accepted(lab, data).operator == "ada"  # being refused has cost it nothing
    assert accepted(lab, announce(lab, 1)).operator == "ada"  # two keys of one invite are one operator
    assert refusal(lab, announce(lab, 2)) == "admission/not_admitted"


def test_the_end_of_an_invite_also_ends_what_is_pooled_and_held():
    lab = Laboratory()
    token = by_invite(lab)
    key = lab.identities[0].key
    lab.gate.admissions.learn(key, bind(token, key))
    pointer = accepted(lab, announce(lab, 0))
    lab.now += 20.0
    assert lab.gate.recheck(pointer).usable  # round 102, the invite's last
    assert admit(lab, announce(lab, 0, round=103)) == Held(103)
    lab.now += 10.0
    assert lab.gate.recheck(pointer).reason == "invite_expired"
    assert lab.gate.release(103) == []
    assert lab.counters.get("admission/invite_expired_held") == 1
    assert refusal(lab, announce(lab, 0)) == "admission/invite_expired"


def test_revoking_an_invite_revokes_its_keys_at_the_gate():
    lab = Laboratory()
    token = by_invite(lab)
    key = lab.identities[0].key
    lab.gate.admissions.learn(key, bind(token, key))
    pointer = accepted(lab, announce(lab, 0))
    by_invite(lab, revoked=[token.invite.key.hex()])
    assert lab.gate.recheck(pointer).reason == "revoked"
    assert refusal(lab, announce(lab, 0)) == "admission/revoked"


def test_a_restored_gate_knows_who_was_invited():
    lab = Laboratory()
    token = by_invite(lab)
    key = lab.identities[0].key
    lab.gate.admissions.learn(key, bind(token, key))
    again = Gate(lab.gate.context, lab.gate._clock, lambda _: lab.lag)
    state = msgpack.unpackb(msgpack.packb(lab.gate.state()))
    again.restore(state)
    assert isinstance(again.admit(announce(lab, 0), b"n"), Pointer)
    del state["admissions"]  # as a checkpoint of version 0.1.0 had it
    again.restore(state)
    assert again.admissions.state() == []


def test_a_small_order_key_is_refused_in_an_open_swarm():
    lab = Laboratory()
    lab.gate.adopt(msgspec.structs.replace(lab.manifest, admission=Admission(mode="open")))
    header = lab.header(0, BLOB, key=(1).to_bytes(32, "little"))
    assert refusal(lab, Announcement(header, bytes(64)).encode()) == "admission/key_small_order"


@pytest.mark.parametrize("key", weak_keys(), ids=lambda key: key.hex()[:8] + key.hex()[-2:])
def test_no_key_that_anybody_could_speak_for_passes_an_open_gate(key: bytes):
    lab = Laboratory(mode="open")
    neutral = Announcement(lab.header(0, BLOB, key=key), FITS_ANYTHING)
    assert refusal(lab, neutral.encode()) in ("admission/key_small_order", "admission/key_not_canonical")


def test_replays_are_seen_for_as_long_as_they_are_fresh():
    lab = Laboratory()
    data = announce(lab)
    accepted(lab, data)
    for _ in range(5):
        assert refusal(lab, data) == "header/seen"
        lab.now += 10.0
    assert refusal(lab, data) == "header/stale"
    lab.now -= 20.0  # a clock that steps back opens no door
    assert refusal(lab, data) == "header/seen"


def test_a_second_signature_is_no_second_message():
    lab = Laboratory()
    data = announce(lab)
    accepted(lab, data)
    first = Announcement.decode(data)
    s = int.from_bytes(first.signature[32:], "little") + GROUP_ORDER
    malleable = first.signature[:32] + s.to_bytes(32, "little")
    assert refusal(lab, Announcement(first.header, malleable).encode()) == "header/seen"
    lab = Laboratory()
    assert refusal(lab, Announcement(first.header, malleable).encode()) == "header/bad_signature"


def test_policy_versions_never_fall_and_that_costs_the_key_no_name():
    lab = Laboratory()
    accepted(lab, announce(lab, sequence=7))
    assert refusal(lab, announce(lab, sequence=8, policy_version=3)[:-1] + b"\x00") == "header/bad_signature"
    accepted(lab, announce(lab, sequence=8, policy_version=3))
    assert refusal(lab, announce(lab, sequence=9, policy_version=2)) == "header/version_fell"
    assert lab.gate.reputation.score(key_subject(lab.identities[0].key)) == 0.0


@pytest.mark.parametrize(
    "changes",
    [{"prompt_hash": b"p" * 32}, {"payload_hash": b"p" * 32}, {"payload_length": 1}, {"round": 99}, {"round": 101}],
    ids=lambda changes: next(iter(changes)),
)
def test_two_headers_under_one_number_ban_their_key_for_good(changes: dict):
    lab = Laboratory()
    pointer = accepted(lab, first := announce(lab, sequence=7))
    second = announce(lab, sequence=7, **changes)
    assert refusal(lab, second) == "reputation/equivocated"
    assert lab.counters.get("reputation/banned_key") == 1
    assert [(p.first.encode(), p.second.encode()) for p in lab.gate.equivocations.proofs()] == [(first, second)]
    assert refusal(lab, announce(lab, sequence=8)) == "reputation/equivocated"
    assert lab.gate.recheck(pointer).reason == "equivocated"
    assert lab.counters.get("reputation/equivocated_pooled") == 1
    accepted(lab, announce(lab, 1, sequence=7))
    lab.now += 10_000.0
    assert refusal(lab, announce(lab, sequence=9)) == "reputation/equivocated"
    again = Gate(lab.gate.context, lab.gate._clock, lambda _: lab.lag)
    again.restore(msgpack.unpackb(msgpack.packb(lab.gate.state())))
    assert again.admit(announce(lab, sequence=10), b"n").reason == "equivocated"
    assert again.equivocations.proofs() == lab.gate.equivocations.proofs()


def test_what_is_held_for_the_coming_round_is_compared_as_well():
    lab = Laboratory()
    assert admit(lab, announce(lab, sequence=7, round=101)) == Held(101)
    assert refusal(lab, announce(lab, sequence=7)) == "reputation/equivocated"
    lab.now += 10.0
    assert lab.gate.release(101) == []
    assert lab.counters.get("reputation/equivocated_held") == 1


def test_a_second_signature_of_one_header_contradicts_nothing():
    lab = Laboratory(config=DefenseConfig(seen=1))
    first = announce(lab, sequence=7)
    accepted(lab, first)
    accepted(lab, announce(lab, 0, sequence=8))  # and the seen-set has forgotten the first
    assert refusal(lab, first) == "header/replayed_sequence"
    assert lab.gate.equivocations.proofs() == []


def test_nobody_but_its_holder_can_have_a_key_banned():
    lab = Laboratory()
    accepted(lab, first := announce(lab, 0, sequence=7))
    header = Announcement.decode(first).header
    other = replace(header, prompt_hash=b"p" * 32)
    by_another = lab.identities[1].sign(other.encode())
    s = int.from_bytes(first[-32:], "little") + GROUP_ORDER
    forged = [
        Announcement(other, Announcement.decode(first).signature),
        Announcement(other, by_another),
        Announcement(header, first[-64:-32] + s.to_bytes(32, "little")),
        Announcement(replace(other, swarm_id=b"s" * 32), lab.identities[0].sign(other.encode())),
    ]
    elsewhere = replace(other, swarm_id=b"s" * 32)  # numbers are counted by swarm: two swarms may see the same one
    forged.append(Announcement(elsewhere, lab.identities[0].sign(elsewhere.encode())))
    for announcement in forged:
        refusal(lab, announcement.encode())
    assert lab.gate.equivocations.proofs() == []
    accepted(lab, announce(lab, 0, sequence=8))


@pytest.mark.parametrize(
    ("off", "name"), [(["reputation"], "header/replayed_sequence"), (["header", "reputation"], "")], ids=str
)
def test_without_reputation_a_number_still_serves_once(off: list[str], name: str):
    lab = Laboratory(config=DefenseConfig.without(off))
    accepted(lab, announce(lab, sequence=7))
    second = announce(lab, sequence=7, prompt_hash=b"p" * 32)
    if name:
        assert refusal(lab, second) == name
    else:
        accepted(lab, second)


def test_without_signatures_nothing_is_proved():
    lab = Laboratory(config=DefenseConfig.without(["header"]))
    accepted(lab, announce(lab, sequence=7))
    forged = lab.header(0, BLOB, sequence=7, prompt_hash=b"p" * 32)
    accepted(lab, Announcement(forged, bytes(64)).encode())
    assert lab.gate.equivocations.proofs() == []


def test_forged_headers_cost_their_victim_nothing():
    lab = Laboratory(limits=SwarmLimits(rollouts_per_key_per_round=2, bytes_per_key_per_round=2 * len(BLOB)))
    honest = [announce(lab), announce(lab)]
    for number in range(50):
        forged = replace(Announcement.decode(honest[0]).header, prompt_hash=number.to_bytes(32, "big"))
        admit(lab, Announcement(forged, bytes(64)).encode(), b"forger %d" % number)
    assert lab.counters.get("header/bad_signature") == 50
    for data in honest:
        accepted(lab, data)
    assert refusal(lab, announce(lab)) == "quota/rollouts_per_key"


def test_quotas_count_rollouts_and_bytes_by_key_and_round():
    lab = Laboratory(limits=SwarmLimits(rollouts_per_key_per_round=3, bytes_per_key_per_round=100))
    accepted(lab, announce(lab, payload_length=60))
    assert refusal(lab, announce(lab, payload_length=41)) == "quota/bytes_per_key"
    accepted(lab, announce(lab, payload_length=40))
    accepted(lab, announce(lab, payload_length=0))
    assert refusal(lab, announce(lab, payload_length=0)) == "quota/rollouts_per_key"
    accepted(lab, announce(lab, payload_length=60, round=99))
    accepted(lab, announce(lab, 1, payload_length=60))
    lab.now += 10.0
    accepted(lab, announce(lab, payload_length=60))


def test_a_sender_pays_for_bytes_before_they_are_parsed():
    lab = Laboratory(config=DefenseConfig(sender_bytes_per_round=1000, mute_after=10**6))
    for _ in range(4):
        assert refusal(lab, bytes(238)) == "header/unknown_kind"
    assert refusal(lab, bytes(238)) == "quota/bytes_per_sender"
    assert refusal(lab, announce(lab)) == "quota/bytes_per_sender"
    accepted(lab, announce(lab), b"another neighbour")
    lab.now += 10.0
    accepted(lab, announce(lab))


def test_senders_beyond_the_bound_share_one_account():
    lab = Laboratory(config=DefenseConfig(sender_bytes_per_round=500, senders=2, mute_after=10**6))
    for number in range(20):
        admit(lab, bytes(238), b"sender %d" % number)
    assert lab.counters.get("quota/bytes_per_sender") == 20 - 2 - 2
    assert lab.counters.get("quota/shared_account") == 18


def test_a_malformed_storm_mutes_its_sender_and_nobody_else():
    lab = Laboratory()
    for _ in range(8):
        assert refusal(lab, b"junk", b"storm") == "header/announcement_size"
    assert refusal(lab, b"junk", b"storm") == "reputation/muted_sender"
    assert refusal(lab, announce(lab), b"storm") == "reputation/muted_sender"
    accepted(lab, announce(lab), b"calm")
    lab.now += 16 * 10.0
    accepted(lab, announce(lab), b"storm")  # parole


def test_a_muted_key_is_refused_whoever_hands_it_on():
    lab = Laboratory()
    accepted(lab, announce(lab, 0))
    for _ in range(8):
        lab.gate.reputation.offend(key_subject(lab.identities[0].key))
    assert refusal(lab, announce(lab, 0)) == "reputation/muted_key"
    accepted(lab, announce(lab, 1))


def test_an_early_announcement_is_held_until_its_round_begins():
    lab = Laboratory()
    data = announce(lab, round=101)
    assert admit(lab, data, b"n") == Held(101)
    assert refusal(lab, data) == "header/seen"
    assert lab.gate.release(100) == []
    assert lab.gate.release(101) == []  # who asks is not believed: by the gate's own clock it is round 100
    lab.now += 10.0
    (pointer,) = lab.gate.release(101)
    assert pointer.announcement.encode() == data
    assert (pointer.round, pointer.received_round) == (101, 101)
    assert lab.gate.release(101) == []
    assert refusal(lab, data) == "header/seen"


def test_what_was_held_is_neither_charged_nor_counted_twice():
    lab = Laboratory(config=DefenseConfig(sender_bytes_per_round=300, mute_after=1))
    assert admit(lab, announce(lab, round=101), b"n") == Held(101)
    lab.now += 10.0
    accepted(lab, announce(lab, 1), b"n")  # the sender's account of this round is spent: 238 of 300 bytes
    lab.gate.reputation.offend(sender_subject(b"n"))  # and muted: it handed on nothing wrong
    assert len(lab.gate.release(101)) == 1
    assert lab.counters.state() == {
        "gate/accepted": 1,
        "gate/held": 1,
        "gate/released": 1,
        "reputation/muted": 1,
    }


def test_what_was_held_meets_the_rules_of_the_round_in_which_it_is_released():
    lab = Laboratory(limits=SwarmLimits(rollouts_per_key_per_round=1, max_age_rounds=1))
    keys = [identity.key.hex() for identity in lab.identities]
    for peer in (0, 1, 1, 2, 3):
        assert admit(lab, announce(lab, peer, round=101)) == Held(101)
    lab.gate.adopt(msgspec.structs.replace(lab.manifest, revoked=[keys[0]]))
    for _ in range(8):
        lab.gate.reputation.offend(key_subject(lab.identities[2].key))
    lab.now += 10.0
    assert [pointer.key for pointer in lab.gate.release(101)] == [lab.identities[1].key, lab.identities[3].key]
    assert lab.counters.get("admission/revoked_held") == 1
    assert lab.counters.get("quota/rollouts_per_key_held") == 1
    assert lab.counters.get("reputation/muted_key_held") == 1
    assert admit(lab, announce(lab, 3, round=102)) == Held(102)
    lab.now += 30.0  # slept through its rounds
    assert lab.gate.release(104) == []
    assert lab.counters.get("header/stale_held") == 1


def test_what_is_held_is_bounded_by_key_and_forged_names_fill_no_places():
    lab = Laboratory(config=DefenseConfig(held_per_key=2, held=3))
    forged = lab.header(0, BLOB, round=101)
    for number in range(5):
        header = replace(forged, sequence=1000 + number)
        assert refusal(lab, Announcement(header, bytes(64)).encode()) == "header/bad_signature"
    assert [admit(lab, announce(lab, 0, round=101)) for _ in range(2)] == [Held(101)] * 2
    assert refusal(lab, announce(lab, 0, round=101)) == "quota/held"
    assert admit(lab, announce(lab, 1, round=101)) == Held(101)
    assert refusal(lab, announce(lab, 2, round=101)) == "quota/held"
    lab.now += 10.0
    assert len(lab.gate.release(101)) == 3
    assert admit(lab, announce(lab, 2, round=102)) == Held(102)


def test_a_pooled_pointer_is_judged_again_when_it_is_used():
    lab = Laboratory()
    pointer = accepted(lab, announce(lab))
    assert lab.gate.recheck(pointer).usable
    lab.lag = 9
    assert lab.gate.recheck(pointer).reason == "lag"
    lab.lag = 0
    lab.now += 40.0
    assert lab.gate.recheck(pointer).usable
    lab.now += 10.0
    assert lab.gate.recheck(pointer).reason == "stale"
    lab.now -= 60.0
    assert lab.gate.recheck(pointer).reason == "early"
    assert (lab.counters.get("header/stale_pooled"), lab.counters.get("header/stale")) == (1, 0)


def test_a_restored_gate_goes_on_as_if_nothing_had_happened():
    lab = Laboratory(config=DefenseConfig(mute_after=3))
    first, early = announce(lab), announce(lab, round=101)
    accepted(lab, first)
    assert admit(lab, early) == Held(101)
    state = msgpack.unpackb(msgpack.packb(lab.gate.state()))
    again = Gate(lab.gate.context, lab.gate._clock, lambda _: lab.lag)
    again.restore(state)
    assert again.state() == lab.gate.state()
    messages = [first, early, announce(lab, 1), b"junk", announce(lab, sequence=1), announce(lab, round=101)]
    assert [again.admit(data, b"n") for data in messages] == [lab.gate.admit(data, b"n") for data in messages]
    assert again.release(101) == lab.gate.release(101)
    assert again.state() == lab.gate.state()


def test_memory_stays_flat_over_a_thousand_rounds():
    lab = Laboratory(peers=2, limits=SwarmLimits(rollouts_per_key_per_round=1))
    sizes = []
    for _ in range(1000):
        lab.now += 10.0
        for peer in (0, 0, 1):
            admit(lab, announce(lab, peer), b"sender %d" % peer)
        admit(lab, announce(lab, 1, round=lab.round + 1))
        lab.gate.release(lab.round)
        state = lab.gate.state()
        sizes.append(sum(len(state[part]) for part in ("seen", "senders", "keys", "held")))
    assert max(sizes[20:]) == sizes[20]


def test_what_the_seen_set_forgets_is_counted_and_the_sequence_still_stops_the_replay():
    lab = Laboratory(config=DefenseConfig(seen=2))
    first = announce(lab)
    for data in (first, announce(lab), announce(lab)):
        accepted(lab, data)
    assert lab.counters.get("header/evicted_seen") == 1
    assert refusal(lab, first) == "header/replayed_sequence"


@pytest.mark.parametrize(
    ("layer", "changes"),
    [("header", {"round": 50}), ("header", {"swarm_id": b"s" * 32}), ("quota", {"payload_length": 9 << 20})],
)
def test_a_layer_that_is_off_refuses_nothing(layer: str, changes: dict):
    lab = Laboratory(config=DefenseConfig.without([layer]))
    accepted(lab, announce(lab, **changes))


def test_with_all_layers_off_only_what_cannot_be_read_or_is_not_meant_for_us_is_refused():
    lab = Laboratory(config=DefenseConfig.without(["admission", "quota", "header", "reputation"]))
    header = lab.header(0, BLOB, key=Identity.from_seed(b"s" * 32).key, round=1)
    unsigned = Announcement(header, bytes(64)).encode()
    assert accepted(lab, unsigned).operator == header.key.hex()
    accepted(lab, unsigned)
    for _ in range(20):
        assert refusal(lab, b"junk") == "header/announcement_size"


def test_the_message_of_the_laboratory_is_what_the_gate_admits():
    lab = Laboratory()
    message: Outgoing = lab.sealed(0, lab.rollout(["a", "b"]))
    assert accepted(lab, message.announcement).digest == hashlib.sha256(message.blob).digest()
