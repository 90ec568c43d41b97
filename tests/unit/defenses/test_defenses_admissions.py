"""Who stands behind a key, and that knowing it stays bounded."""

import random
from collections import Counter
from itertools import islice
from typing import Literal, NamedTuple

import msgpack
import msgspec
import pytest

from shoal.defenses.admissions import Admissions
from shoal.defenses.attacks.lab import Laboratory
from shoal.defenses.config import DefenseConfig
from shoal.defenses.mixing import choose, operator_factors, share_rows
from shoal.defenses.pointer import Pointer
from shoal.defenses.verdict import Counters
from shoal.protocol.identity import Identity
from shoal.protocol.invite import Token, bind, issue_invite
from shoal.protocol.manifest import Admission, Manifest, TaskEntry

FOUNDER = Identity.from_seed(b"f" * 32)
LISTED = Identity.from_seed(b"l" * 32)
MANIFEST = Manifest(
    name="invited",
    founder=FOUNDER.key.hex(),
    genesis=0,
    round_seconds=10,
    tasks=[TaskEntry(name="lab/name")],
    admission=Admission(mode="invite", operators={"lena": [LISTED.key.hex()]}),
)


def key(number: int) -> bytes:
    return Identity.from_seed(number.to_bytes(32, "big")).key


def invite(operator: str, expires: int = 100, number: int = 0) -> Token:
    return issue_invite(FOUNDER, MANIFEST.swarm_id, operator, expires, bytes([number]) * 32)


def book(**changes: int) -> Admissions:
    return Admissions(MANIFEST, DefenseConfig(**changes), Counters())


def known(admissions: Admissions, count: int) -> list[int]:
    return [number for number in range(count) if admissions.operator_of(key(number), 0)]


def test_a_key_belongs_to_nobody_until_its_invite_was_seen():
    admissions, token = book(), invite("ada")
    assert admissions.operator_of(key(1), 0) is None
    assert admissions.refusal(key(1), 0) == "not_admitted"
    admissions.learn(key(1), bind(token, key(1)))
    admissions.learn(key(2), bind(token, key(2)))
    assert [admissions.operator_of(key(n), 0) for n in (1, 2)] == ["ada", "ada"]
    assert admissions.refusal(key(1), 0) == ""
    assert admissions.operator_of(LISTED.key, 0) == "lena"


@pytest.mark.parametrize(
    ("chain", "reason"),
    [
        (bind(invite("ada"), key(2)), "invite_not_for_this_key"),
        (bind(issue_invite(LISTED, MANIFEST.swarm_id, "eve", 9, bytes(32)), key(1)), "invite_not_of_the_founder"),
        (bytes(600), "invite_too_large"),
    ],
)
def test_a_wrong_invite_is_counted_and_admits_nobody(chain: bytes, reason: str):
    admissions = book()
    admissions.learn(key(1), chain)
    assert admissions.operator_of(key(1), 5) is None
    assert admissions._counters.state() == {f"invite/{reason}": 1}


def test_an_invite_ends_after_its_last_round_and_can_be_renewed():
    admissions = book()
    admissions.learn(key(1), bind(invite("ada", expires=7), key(1)))
    assert admissions.operator_of(key(1), 7) == "ada"
    assert admissions.operator_of(key(1), 8) is None
    assert admissions.refusal(key(1), 8) == "invite_expired"
    admissions.learn(key(1), bind(invite("ada", expires=20, number=1), key(1)))
    assert admissions.operator_of(key(1), 8) == "ada"
    admissions.expire(21)
    assert admissions.state() == []
    assert admissions.refusal(key(1), 21) == "not_admitted"


def test_a_revision_revokes_an_invite_or_one_of_its_keys():
    admissions, token = book(), invite("ada")
    for number in (1, 2):
        admissions.learn(key(number), bind(token, key(number)))
    admissions.adopt(msgspec.structs.replace(MANIFEST, revoked=[key(1).hex()]))
    assert [admissions.operator_of(key(n), 0) for n in (1, 2)] == [None, "ada"]
    admissions.adopt(msgspec.structs.replace(MANIFEST, revoked=[token.invite.key.hex(), LISTED.key.hex()]))
    assert [admissions.operator_of(k, 0) for k in (key(2), LISTED.key)] == [None, None]
    assert [admissions.refusal(k, 0) for k in (key(2), LISTED.key)] == ["revoked", "revoked"]
    admissions.learn(key(3), bind(token, key(3)))
    assert admissions.refusal(key(3), 0) == "revoked"


@pytest.mark.parametrize(("mode", "operator"), [("open", key(1).hex()), ("allow-list", None)])
def test_invites_mean_nothing_in_other_swarms(mode, operator):
    admissions = book()
    admissions.learn(key(1), bind(invite("ada"), key(1)))
    admissions.adopt(msgspec.structs.replace(MANIFEST, admission=Admission(mode=mode)))
    assert admissions.operator_of(key(1), 0) == operator
    admissions.learn(key(2), bind(invite("ada"), key(2)))
    assert len(admissions.state()) == 1


def test_a_chain_that_is_known_is_not_verified_again():
    admissions, chain = book(), bind(invite("ada"), key(1))
    for _ in range(3):
        admissions.learn(key(1), chain)
    assert admissions._counters.state() == {"invite/learned": 1}


def test_a_listed_key_needs_no_place():
    admissions = book()
    admissions.learn(LISTED.key, bind(invite("ada"), LISTED.key))
    assert (admissions.operator_of(LISTED.key, 0), admissions.state()) == ("lena", [])


def test_an_invite_keeps_its_latest_keys_and_costs_no_other_invite_a_place():
    admissions, mine, theirs = book(members_per_invite=3), invite("ada"), invite("eve", number=1)
    admissions.learn(key(0), bind(mine, key(0)))
    for number in (1, 2, 3):
        admissions.learn(key(number), bind(theirs, key(number)))
    admissions.learn(key(1), bind(theirs, key(1)))  # its record came again: it is alive
    for number in (4, 5):
        admissions.learn(key(number), bind(theirs, key(number)))
    assert known(admissions, 6) == [0, 1, 4, 5]
    assert admissions._counters.get("invite/evicted_key") == 2


def test_when_all_places_are_taken_the_invite_with_most_keys_gives_way():
    admissions, mine, theirs = book(members=4), invite("ada"), invite("eve", number=1)
    admissions.learn(key(0), bind(mine, key(0)))
    for number in (1, 2, 3, 4, 5):
        admissions.learn(key(number), bind(theirs, key(number)))
    assert known(admissions, 6) == [0, 3, 4, 5]


def test_state_comes_back_without_verifying_again():
    admissions, token = book(), invite("ada")
    for number in (2, 1):
        admissions.learn(key(number), bind(token, key(number)))
    again = book()
    again.restore(msgpack.unpackb(msgpack.packb(admissions.state())))
    assert again.state() == admissions.state()
    assert again.operator_of(key(1), 0) == "ada"
    again.learn(key(1), bind(token, key(1)))
    assert again._counters.state() == {}


class Row(NamedTuple):
    prompt_hash: bytes
    operator: str
    key: bytes
    sequence: int
    row: int


@pytest.mark.parametrize("mode", ["allow-list", "invite"])
def test_a_hundred_keys_of_one_operator_weigh_as_one(mode: Literal["allow-list", "invite"]):
    """From the gate on: in choice, in the rows that join a prompt, and in what rows weigh."""
    names = ["sybil"] * 100 + ["ada", "ben", "eve"]
    lab = Laboratory(103, names)
    if mode == "invite":
        lab.gate.adopt(msgspec.structs.replace(lab.manifest, admission=Admission(mode="invite")))
        tokens = {
            name: issue_invite(lab.own, lab.manifest.swarm_id, name, 200, name.encode().ljust(32))
            for name in set(names)
        }
        config = lab.gate.admissions._config
        assert config.members_per_invite < 100, "an invite keeps its latest keys"
        for name, identity in zip(names, lab.identities, strict=True):
            lab.gate.admissions.learn(identity.key, bind(tokens[name], identity.key))
    outcomes = [lab.gate.admit(lab.sign(peer, lab.header(peer, b"blob")), b"n%d" % peer) for peer in range(103)]
    pool = [outcome for outcome in outcomes if isinstance(outcome, Pointer)]
    assert Counter(p.operator for p in pool) == {
        "sybil": 100 if mode == "allow-list" else 64,
        "ada": 1,
        "ben": 1,
        "eve": 1,
    }
    for seed in range(100):
        assert {p.operator for p in islice(choose(pool, random.Random(seed)), 4)} == {"sybil", "ada", "ben", "eve"}
    rows = [Row(b"p", p.operator, p.key, p.sequence, row) for p in pool for row in range(8)]
    assert Counter(row.operator for row in share_rows(rows, 8)) == {"sybil": 2, "ada": 2, "ben": 2, "eve": 2}
    masses = Counter(row.operator for row in rows)
    assert {name: mass * operator_factors(masses)[name] for name, mass in masses.items()} == dict.fromkeys(masses, 8)
