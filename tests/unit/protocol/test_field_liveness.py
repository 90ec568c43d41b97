"""Ghosts are not counted and not courted for ever: a peer lives by its record and its answers, retries are bounded."""

from collections import Counter

import msgspec
import pytest

from shoal.protocol.identity import Identity
from shoal.protocol.libp2p.backoff import MAX_REMEMBERED, Backoff
from shoal.protocol.libp2p.known import MAX_KNOWN, KnownPeers
from shoal.protocol.records import GOSSIP, TRANSPORT, PeerRecord, prove, seal_record

SWARM, TTL, START = bytes([7]) * 32, 300.0, 1_700_000_000.0
PEER = Identity.from_seed(bytes([1]) * 32)


class Clock:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counts() -> Counter[str]:
    return Counter()


@pytest.fixture
def known(clock: Clock, counts: Counter[str]) -> KnownPeers:
    return KnownPeers(SWARM, bytes([9]) * 32, TTL, lambda reason: counts.update([reason]), clock)


def record(peer: Identity = PEER, **changes: object) -> PeerRecord:
    transport, gossip = prove(peer, TRANSPORT), prove(peer, GOSSIP)
    plain = PeerRecord(
        swarm_id=SWARM,
        key=peer.key,
        sequence=1,
        expires=int(START + TTL),
        lineage=bytes(32),
        tokenizer=bytes(32),
        policy_version=0,
        capabilities=(),
        addresses=("/ip4/10.0.0.1/tcp/4001",),
        transport_key=transport[0],
        transport_proof=transport[1],
        gossip_key=gossip[0],
        gossip_proof=gossip[1],
        revision=0,
        invite=b"",
    )
    return msgspec.structs.replace(plain, **changes)


def take(known: KnownPeers, peer: Identity = PEER, proven: bool = False, **changes: object) -> bool:
    return known.take(seal_record(peer, record(peer, **changes)), peer.key, proven) is not None


def test_a_peer_is_forgotten_when_its_record_has_run_out(known: KnownPeers, clock: Clock) -> None:
    assert take(known)
    clock.now = START + TTL - 1
    assert [peer.key for peer in known.alive()] == [PEER.key]
    clock.now = START + TTL
    assert known.all() == []
    assert not take(known), "and the record that has run out brings nobody back"


def test_a_record_that_claims_a_day_makes_no_ghost_of_a_day(known: KnownPeers, clock: Clock) -> None:
    assert take(known, expires=int(START) + 20 * 3600)
    clock.now = START + 2 * TTL
    assert known.all() == []


def test_who_does_not_answer_twice_in_a_row_is_down_whatever_its_record_says(
    known: KnownPeers, counts: Counter[str]
) -> None:
    take(known)
    known.failed(PEER.key)
    known.heard(PEER.key)
    known.failed(PEER.key)
    assert len(known.alive()) == 1, "not twice in a row"
    known.failed(PEER.key)
    known.failed(PEER.key)
    assert (known.alive(), len(known.all()), counts["peer_down"]) == ([], 1, 1)
    take(known)
    assert known.alive() == [], "the record that it left behind is no sign of life"
    known.heard(PEER.key)
    assert len(known.alive()) == 1


def test_a_later_record_is_a_sign_of_life_and_an_earlier_one_changes_nothing(known: KnownPeers) -> None:
    take(known, sequence=5)
    known.failed(PEER.key, times=2)
    take(known, sequence=4, addresses=("/ip4/10.0.0.9/tcp/1",))
    assert known.alive() == []
    take(known, sequence=6)
    assert [peer.addresses for peer in known.alive()] == [("/ip4/10.0.0.1/tcp/4001",)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"swarm_id": bytes(32)}, "record_other_swarm"),
        ({"transport_proof": bytes(64)}, "record_unbound_key"),
        ({"expires": int(START)}, "record_record_expired"),
        ({"expires": int(START) + 25 * 3600}, "record_record_expires_too_late"),
    ],
)
def test_what_is_wrong_with_a_record_is_counted(
    known: KnownPeers, counts: Counter[str], changes: dict[str, object], reason: str
) -> None:
    assert not take(known, **changes)
    assert counts == {reason: 1}


def test_nobody_takes_over_the_hosts_of_another(known: KnownPeers, counts: Counter[str]) -> None:
    take(known)
    other = Identity.from_seed(bytes([2]) * 32)
    stolen = record(other, transport_key=record().transport_key, transport_proof=record().transport_proof)
    assert known.take(seal_record(other, stolen), other.key) is None
    assert known.take(seal_record(other, record(other)), PEER.key) is None
    assert counts == {"record_unbound_key": 1, "record_other_owner": 1}


def test_the_number_of_known_peers_is_bounded(
    known: KnownPeers, counts: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.protocol.libp2p.known.MAX_KNOWN", 3)
    assert MAX_KNOWN == 4096
    peers = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 6)]
    taken = [take(known, peer) for peer in peers[:4]]
    assert taken == [True, True, True, False]
    assert counts["record_no_room"] == 1
    assert take(known, peers[4], proven=True), "who has answered takes the place of one that never has"
    assert len(known) == 3


def test_waits_grow_and_end_in_giving_up() -> None:
    tries, now, waits = Backoff(first=1.0, last=8.0, patience=5), 0.0, []
    while tries.due("peer", now) and len(waits) < 10:
        tries.failed("peer", now)
        began = now
        while not tries.due("peer", now) and now - began < 20.0:
            now += 0.05
        waits.append(now - began)
    assert len(waits) == 5
    assert all(low <= wait <= 1.25 * low + 0.1 for low, wait in zip((1, 2, 4, 8), waits, strict=False))
    assert not tries.due("peer", now + 1e9)
    tries.relent("peer")
    assert tries.due("peer", now + 10.0), "a later record grants one more try"
    tries.failed("peer", now + 10.0)
    assert not tries.due("peer", now + 1e9)


def test_bootstraps_are_never_given_up() -> None:
    tries = Backoff(first=1.0, last=8.0)
    for attempt in range(1000):
        tries.failed("bootstrap", 100.0 * attempt)
        assert tries.due("bootstrap", 100.0 * attempt + 10.0)
    tries.failed("bootstrap", 1e6)
    tries.hurry(1e6 + 0.5)
    assert tries.due("bootstrap", 1e6 + 0.5)


def test_what_failed_is_remembered_within_bounds() -> None:
    tries = Backoff(first=1.0, last=8.0)
    for number in range(MAX_REMEMBERED + 1):
        tries.failed(str(number), 0.0)
    assert tries.due("0", 0.0)
    assert not tries.due(str(MAX_REMEMBERED), 0.0)
