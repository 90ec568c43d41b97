"""A flood before gate, pool and choice: what honest peers publish arrives, and a loud peer is drawn like any other."""

import random
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.defenses.attacks.lab import Laboratory
from shoal.defenses.config import DefenseConfig
from shoal.defenses.mixing import choose
from shoal.defenses.pointer import Pointer
from shoal.node.pool import Pool
from shoal.protocol.envelope import ANNOUNCEMENT_SIZE, Announcement

HONEST, SHARED, TIMES, ROUNDS = 50, 8, 20, 3
LOUD = HONEST  # the number of the one that floods
BLOB = b"blob"


def one(lab: Laboratory, peer: int) -> bytes:
    return lab.sign(peer, lab.header(peer, BLOB))


def of_the_loud(lab: Laboratory, kind: str, rng: random.Random, honest: bytes) -> tuple[bytes, bytes]:
    """One message of the flood, and the name under which it is handed on."""
    if kind == "useless":  # valid, of its own key
        return one(lab, LOUD), b"loud"
    if kind == "junk":
        return rng.randbytes(ANNOUNCEMENT_SIZE), b"loud %d" % rng.randrange(10_000)
    if kind == "replay":
        return honest, b"loud"
    header = Announcement.decode(honest).header  # in honest names
    return Announcement(header, rng.randbytes(64)).encode(), b"loud %d" % rng.randrange(10_000)


def flooded(kinds: tuple[str, ...], rng: random.Random, config: DefenseConfig | None = None, mode="allow-list"):
    """Three rounds in which each honest peer shares eight rollouts, twenty other messages before each of them; returns
    the laboratory, what honest peers published in the last round, and the pool."""
    lab = Laboratory(HONEST + 1, config=config, mode=mode)
    pool = Pool(lab.counters)
    delivered = sent = 0
    for _ in range(ROUNDS):
        lab.now += 10.0
        pool.expire(lambda pointer: lab.gate.recheck(pointer).usable)
        for peer in [p for p in range(HONEST) for _ in range(SHARED)]:
            message = one(lab, peer)
            for _ in range(TIMES):
                data, sender = of_the_loud(lab, rng.choice(kinds), rng, message)
                outcome = lab.gate.admit(data, sender)
                if isinstance(outcome, Pointer):
                    pool.add(outcome)
            outcome = lab.gate.admit(message, lab.identities[peer].key)
            if isinstance(outcome, Pointer):
                pool.add(outcome)
            sent += 1
    ours = {identity.key for identity in lab.identities[:HONEST]}
    delivered = sum(pointer.key in ours for pointer in pool.where(lambda _: True))
    return lab, pool, delivered / sent


@pytest.mark.parametrize("kinds", [("useless",), ("junk",), ("forged",), ("useless", "junk", "forged")], ids="+".join)
@pytest.mark.parametrize("mode", ["allow-list", "open"])
def test_honest_delivery_under_twenty_times_the_traffic(kinds: tuple[str, ...], mode: str):
    lab, pool, delivery = flooded(kinds, random.Random(1), mode=mode)
    assert delivery == 1.0  # at least 95 % are asked for
    rng, draws = random.Random(2), Counter()
    for _ in range(300):
        pointers = pool.where(lambda _: True)
        draws.update(pointer.key for pointer in islice(choose(pointers, rng), 4))
    # An equal share of 1,200 draws is 23.5; four standard deviations above it are 43.
    assert draws[lab.identities[LOUD].key] <= 43


def test_without_turns_by_operator_the_loud_one_has_more_than_its_share():
    lab, pool, _ = flooded(("useless",), random.Random(1))
    pointers = pool.where(lambda _: True)
    loud = lab.identities[LOUD].key
    drawn = [p for seed in range(300) for p in islice(choose(pointers, random.Random(seed), fair=False), 4)]
    assert sum(p.key == loud for p in drawn) > 100


def test_without_quotas_the_flood_is_in_the_pool():
    lab, pool, delivery = flooded(("useless",), random.Random(1), DefenseConfig.without(["quota"]))
    assert len([p for p in pool.where(lambda _: True) if p.key == lab.identities[LOUD].key]) > 2000
    assert delivery == 1.0  # a full pool takes from the loudest


@settings(max_examples=25)
@given(st.randoms(use_true_random=False), st.sets(st.sampled_from(["useless", "junk", "forged", "replay"]), min_size=1))
def test_whatever_the_flood_is_made_of_each_quiet_peer_is_heard(rng: random.Random, kinds: set[str]):
    """Small bounds, five quiet peers: a replay comes before its original at times, and then stands for it."""
    lab = Laboratory(6, config=DefenseConfig(seen=256, senders=8, quota_entries=64, subjects=16, held=8))
    honest = list(range(5))
    arrived: set[bytes] = set()
    messages = [one(lab, peer) for peer in honest for _ in range(3)]
    rng.shuffle(messages)
    for message in messages:
        for _ in range(TIMES):
            header = lab.header(5, BLOB)
            kind = rng.choice(sorted(kinds))
            loud = {
                "useless": lambda header=header: lab.sign(5, header),
                "junk": lambda: rng.randbytes(ANNOUNCEMENT_SIZE),
                "replay": lambda message=message: message,
                "forged": lambda message=message: message[:-1] + bytes([message[-1] ^ 1]),
            }[kind]()
            outcome = lab.gate.admit(loud, b"loud")
            if isinstance(outcome, Pointer):
                arrived.add(outcome.announcement.encode())
        outcome = lab.gate.admit(message, Announcement.decode(message).header.key)
        if isinstance(outcome, Pointer):
            arrived.add(outcome.announcement.encode())
    assert set(messages) <= arrived
