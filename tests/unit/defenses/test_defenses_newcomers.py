"""Whom a key of an open swarm counts for, and that a hundred keys of one place or of one day count as one."""

import random
from collections import Counter
from itertools import islice

import msgpack
import msgspec
import pytest

from shoal.defenses.attacks.lab import Laboratory
from shoal.defenses.config import DefenseConfig
from shoal.defenses.gate import Gate, GateContext
from shoal.defenses.mixing import choose, operator_factors
from shoal.defenses.newcomers import NEWCOMERS, Newcomers, address_prefix
from shoal.defenses.pointer import Pointer
from shoal.defenses.verdict import Counters
from shoal.protocol.manifest import Admission

N = 32  # rounds


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def book(counters: Counters | None = None, prefix_of=lambda _: None, **changes) -> Newcomers:
    return Newcomers(DefenseConfig(**changes), counters or Counters(), prefix_of)


@pytest.mark.parametrize(
    ("host", "prefix"),
    [
        ("8.8.8.8", "8.8.8.0/24"),
        ("8.8.8.255", "8.8.8.0/24"),
        ("8.8.9.8", "8.8.9.0/24"),
        ("2a00:1450:4001:82a::200e", "2a00:1450:4001::/48"),
        ("2a00:1450:4001:ffff::1", "2a00:1450:4001::/48"),
        ("2a00:1450:4002::1", "2a00:1450:4002::/48"),
        ("::ffff:8.8.8.8", "8.8.8.0/24"),
        ("2002:808:808::1", "8.8.8.0/24"),
        ("2002:7f00:1::1", None),  # 6to4 of 127.0.0.1
        ("127.0.0.1", None),
        ("10.1.2.3", None),
        ("192.168.1.1", None),
        ("100.64.0.1", None),
        ("169.254.1.1", None),
        ("0.0.0.0", None),
        ("224.0.0.1", None),
        ("255.255.255.255", None),
        ("203.0.113.5", None),
        ("::1", None),
        ("::", None),
        ("fe80::1", None),
        ("fd00::1", None),
        ("ff0e::1", None),
        ("example.org", None),
        ("", None),
        ("8.8.8.8/24", None),
        ("8.8.8", None),
    ],
)
def test_prefixes_are_of_public_addresses_only(host: str, prefix: str | None):
    assert address_prefix(host) == prefix


def test_a_key_counts_for_itself_from_its_nth_round_on():
    known = book()
    assert known.operator_of(key(1), 100) == NEWCOMERS
    known.meet(key(1), 100)
    assert known.operator_of(key(1), 100 + N - 1) == NEWCOMERS
    assert known.operator_of(key(1), 100 + N) == key(1).hex()
    assert known.operator_of(key(2), 100 + N) == NEWCOMERS


def test_keys_at_one_place_are_one_operator():
    where = {key(1): "8.8.8.0/24", key(2): "8.8.8.0/24", key(3): "8.8.9.0/24"}
    known = book(prefix_of=where.get)
    for number in (1, 2, 3, 4):
        known.meet(key(number), 0)
    operators = [known.operator_of(key(number), N) for number in (1, 2, 3, 4)]
    assert operators == ["prefix 8.8.8.0/24", "prefix 8.8.8.0/24", "prefix 8.8.9.0/24", key(4).hex()]
    where[key(4)] = "8.8.9.0/24"  # its address has become known since
    assert known.operator_of(key(4), N) == "prefix 8.8.9.0/24"


def test_a_thousand_fresh_keys_flush_no_first_sight():
    counters = Counters()
    known = book(counters, first_sights=8)
    for number in range(4):
        known.meet(key(number), 0)
    for number in range(100, 1100):
        known.meet(key(number), 1)
    assert [known.operator_of(key(number), N) for number in range(4)] == [key(number).hex() for number in range(4)]
    assert len(known.state()) == 8
    assert counters.get("admission/first_sight_not_kept") == 1004 - 8


def test_who_comes_from_elsewhere_finds_a_place_in_a_crowd():
    where = {key(5000): "8.8.8.0/24"}
    known = book(prefix_of=where.get, first_sights=8)
    for number in range(100):
        known.meet(key(number), 0)
    known.meet(key(5000), 0)
    assert known.operator_of(key(5000), N) == "prefix 8.8.8.0/24"
    assert len(known.state()) == 8


def test_keys_that_were_shown_once_leave_soon_and_others_may_be_away_for_as_long_as_they_were_here():
    known = book(newcomer_rounds=10, longest_absence=100)
    known.meet(key(1), 0)  # once
    for round_number in range(51):
        known.meet(key(2), round_number)  # fifty rounds
        known.meet(key(3), round_number)
    for round_number in range(1000):
        known.meet(key(4), round_number)

    def remembered(round_number: int) -> set[int]:
        known.expire(round_number)
        return {int.from_bytes(row[1], "big") for row in known.state()}

    assert remembered(10) == {1, 2, 3, 4}
    assert remembered(11) == {2, 3, 4}
    assert remembered(100) == {2, 3, 4}
    known.meet(key(3), 100)
    assert remembered(101) == {3, 4}
    assert remembered(1099) == {4}
    assert remembered(1100) == set()


def test_a_clock_that_ran_ahead_makes_nobody_old():
    known = book()
    known.meet(key(1), 10**6)
    assert known.operator_of(key(1), 5) == NEWCOMERS
    known.meet(key(1), 5)
    assert known.operator_of(key(1), 5 + N) == key(1).hex()


def test_state_comes_back():
    known = book(prefix_of={key(2): "8.8.8.0/24"}.get)
    for number, round_number in ((1, 3), (2, 4), (1, 9)):
        known.meet(key(number), round_number)
    again = book()
    again.restore(msgpack.unpackb(msgpack.packb(known.state())))
    assert again.state() == known.state()
    assert again.operator_of(key(1), 3 + N) == key(1).hex()


# -- at the gate ------------------------------------------------------------------------------------------------------


def publish(lab: Laboratory, *peers: int) -> list[Pointer]:
    outcomes = [lab.gate.admit(lab.sign(peer, lab.header(peer, b"blob")), b"n%d" % peer) for peer in peers]
    assert all(isinstance(outcome, Pointer) for outcome in outcomes)
    return [outcome for outcome in outcomes if isinstance(outcome, Pointer)]


def settled(peers: int, sybils: int, config: DefenseConfig | None = None) -> Laboratory:
    """An open swarm in which the first `peers` have been for N rounds, and `sybils` more keys come now."""
    lab = Laboratory(peers + sybils, mode="open", config=config)
    for _ in range(N + 1):
        publish(lab, *range(peers))
        lab.now += 10.0
    return lab


def test_in_an_open_swarm_all_new_keys_together_are_drawn_like_one_peer():
    lab = settled(4, 100)
    pool = publish(lab, *range(104))
    assert Counter(p.operator for p in pool) == {NEWCOMERS: 100} | {i.key.hex(): 1 for i in lab.identities[:4]}
    fresh = 0
    for seed in range(1000):
        first = list(islice(choose(pool, random.Random(seed)), 5))
        assert sum(p.operator == NEWCOMERS for p in first) == 1, "one of them a pass, like anybody"
        fresh += first[0].operator == NEWCOMERS
    assert 200 - 51 < fresh < 200 + 51  # one in five; four standard deviations


def test_one_who_drips_under_a_hundred_new_keys_costs_one_turn_of_a_pass():
    """With five operators and sixteen draws of a pass, four at most are theirs."""
    lab = settled(4, 100)
    pool = publish(lab, *range(104), *range(4), *range(4), *range(4))
    for seed in range(50):
        drawn = list(islice(choose(pool, random.Random(seed)), 16))
        assert sum(p.operator == NEWCOMERS for p in drawn) <= 4


def test_after_n_rounds_keys_at_one_place_are_still_one():
    lab = Laboratory(20, mode="open")
    crowd = {identity.key for identity in lab.identities[10:]}
    context = GateContext(
        lab.manifest, lab.own.key, config=lab.config, prefix_of=lambda key: "8.8.8.0/24" if key in crowd else None
    )
    lab.gate = Gate(context, lab.gate._clock, lambda _: 0)
    for _ in range(N + 1):
        publish(lab, *range(20))
        lab.now += 10.0
    pool = publish(lab, *range(20))
    assert Counter(p.operator for p in pool)["prefix 8.8.8.0/24"] == 10
    assert len({p.operator for p in pool}) == 11
    factors = operator_factors(Counter(p.operator for p in pool))
    assert factors["prefix 8.8.8.0/24"] == 0.1


def test_operators_of_the_manifest_are_nobodys_newcomers():
    lab = Laboratory(2, mode="open")
    listed = lab.identities[0].key.hex()
    lab.gate.adopt(msgspec.structs.replace(lab.manifest, admission=Admission(mode="open", operators={"ada": [listed]})))
    assert [p.operator for p in publish(lab, 0, 1)] == ["ada", NEWCOMERS]
    assert [row[1] for row in lab.gate.state()["newcomers"]] == [lab.identities[1].key]
    assert lab.gate.operator_of(lab.identities[0].key) == "ada"


def test_in_other_swarms_nobody_is_new():
    lab = Laboratory(2)
    assert [p.operator for p in publish(lab, 0, 1)] == ["operator 0", "operator 1"]
    assert lab.gate.state()["newcomers"] == []
    assert lab.gate.operator_of(b"s" * 32) is None


def test_without_admission_every_key_counts_for_itself():
    lab = Laboratory(2, mode="open", config=DefenseConfig.without(["admission"]))
    assert [p.operator for p in publish(lab, 0)] == [lab.identities[0].key.hex()]


def test_a_forged_announcement_makes_nobody_older():
    lab = Laboratory(1, mode="open")
    lab.gate.admit(lab.sign(0, lab.header(0, b"blob"))[:-1] + b"\x00", b"n")
    assert lab.gate.state()["newcomers"] == []


def test_however_many_new_keys_come_no_known_keys_replay_gets_in():
    """More new keys than there are places for seen announcements and for the windows of sequences."""
    lab = settled(1, 300, DefenseConfig(seen=64, first_sights=64, witnessed=64))
    lab.gate.memory._sequences._max_keys = lab.gate.memory._new_sequences._max_keys = 16
    first = lab.gate.admit(lab.sign(0, lab.header(0, b"blob", policy_version=5)), b"n")
    assert isinstance(first, Pointer)
    publish(lab, *range(1, 301))
    assert lab.counters.get("header/evicted_seen") > 200
    assert lab.counters.get("header/evicted_sequences") > 200
    assert lab.gate.admit(first.announcement.encode(), b"n").reason == "seen"
    fallen = lab.header(0, b"later", policy_version=4)
    assert lab.gate.admit(lab.sign(0, fallen), b"n").reason == "version_fell"
    forked = lab.header(0, b"other", sequence=first.sequence)
    assert lab.gate.admit(lab.sign(0, forked), b"n").reason == "equivocated"


def test_a_restored_gate_knows_for_how_long_keys_have_been_there():
    lab = settled(2, 1)
    again = Gate(lab.gate.context, lab.gate._clock, lambda _: 0)
    state = msgpack.unpackb(msgpack.packb(lab.gate.state()))
    again.restore(state)
    assert again.operator_of(lab.identities[0].key) == lab.identities[0].key.hex()
    assert again.operator_of(lab.identities[2].key) == NEWCOMERS
    for part in ("newcomers", "new_sequences", "equivocations"):  # as a checkpoint of an earlier version had it
        del state[part]
    state["seen"] = [row[1:] for row in state["seen"]]
    again.restore(state)
    assert again.operator_of(lab.identities[0].key) == NEWCOMERS
    assert len(again.state()["seen"]) == len(state["seen"])
