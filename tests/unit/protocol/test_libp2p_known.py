from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from shoal.protocol.identity import Identity
from shoal.protocol.libp2p import known
from shoal.protocol.libp2p.keys import peer_id
from shoal.protocol.libp2p.known import DOWN, SKEW, KnownPeers, record_shard
from shoal.protocol.libp2p.own_record import OwnRecord
from shoal.protocol.libp2p.place import Place
from shoal.protocol.libp2p.settings import Libp2pSettings, RecordFacts
from shoal.protocol.records import GOSSIP, PeerRecord, open_record, prove, seal_record

SWARM = bytes([7]) * 32
TTL = 300.0
ADDRESS = "/ip4/203.0.113.5/tcp/4001"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counts() -> Counter[str]:
    return Counter()


@pytest.fixture
def peers(clock: Clock, counts: Counter[str]) -> KnownPeers:
    return KnownPeers(SWARM, identity(0).key, TTL, lambda reason: counts.update([reason]), clock)


@pytest.fixture
def sealed(clock: Clock) -> Callable[..., bytes]:
    """A peer's record as it would publish it now."""

    def seal(number: int, addresses: tuple[str, ...] = (ADDRESS,), swarm_id: bytes = SWARM, **facts: object) -> bytes:
        place = Place(identity(number), swarm_id, Libp2pSettings(), lambda reason: None)
        about = RecordFacts(bytes(32), bytes(32), 1)._replace(**facts)
        return OwnRecord(place, lambda: about).renew(addresses, clock())

    return seal


def identity(number: int) -> Identity:
    return Identity.from_seed(number.to_bytes(32, "big"))


def alive(peers: KnownPeers) -> set[bytes]:
    return {peer.key for peer in peers.alive()}


def test_a_record_makes_a_peer_known(peers: KnownPeers, sealed: Callable[..., bytes]):
    key = identity(1).key
    peer = peers.take(sealed(1), key)
    assert peer is not None
    assert (peer.key, peer.addresses, peer.failures) == (key, (ADDRESS,), 0)
    assert peers.get(key) is peers.by_transport(peer.transport_id) is peers.by_gossip(peer.gossip_id) is peer
    assert peer.gossip_id == peer_id(prove(identity(1), GOSSIP)[0])
    assert peers.by_gossip("unknown") is None


def test_what_is_refused_is_counted(peers: KnownPeers, counts: Counter[str], sealed: Callable[..., bytes]):
    key = identity(1).key
    assert peers.take(sealed(1)[:-1] + b"\1", key) is None
    assert peers.take(b"nonsense", key) is None
    assert peers.take(sealed(1), identity(2).key) is None
    assert peers.take(sealed(1, swarm_id=bytes(32)), key) is None
    assert counts == {
        "record_payload_hash": 1,
        "record_announcement_size": 1,
        "record_other_owner": 1,
        "record_other_swarm": 1,
    }
    assert peers.take(sealed(0), identity(0).key) is None  # one's own comes back from the DHT: no peer, and no fault
    assert len(peers) == 0


def test_an_unbound_key_is_refused(peers: KnownPeers, counts: Counter[str], sealed: Callable[..., bytes], clock: Clock):
    """Whoever names another node's gossip key as his own has no proof of it."""
    record = open_record(sealed(1), clock())
    key, proof = prove(identity(2), GOSSIP)
    forged = seal_record(identity(1), msgspec.structs.replace(record, gossip_key=key, gossip_proof=proof))
    assert peers.take(forged, record.key) is None
    assert counts == {"record_unbound_key": 1}


def test_one_derived_key_serves_one_root(peers: KnownPeers, counts: Counter[str], sealed: Callable[..., bytes]):
    """Nobody takes a known peer's place by binding its transport key to a second root key, even if he owns both."""
    first = peers.take(sealed(1), identity(1).key)
    assert first is not None
    record: PeerRecord = open_record(sealed(2), 1_000_000.0)
    transport = Identity.from_seed(identity(1).derive("libp2p/transport/1"))
    shared = {"transport_key": transport.key, "transport_proof": transport.sign(b"shoal/bind/1" + record.key)}
    assert peers.take(seal_record(identity(2), msgspec.structs.replace(record, **shared)), record.key) is None
    assert counts == {"record_shared_key": 1}
    assert peers.by_transport(first.transport_id) is first


def test_later_records_replace_and_older_ones_do_not(peers: KnownPeers, clock: Clock, sealed: Callable[..., bytes]):
    heard: list[int] = []
    peers.changed = lambda peer: heard.append(peer.record.policy_version)
    key = identity(1).key
    old = sealed(1, policy_version=1)
    clock.now += 10
    new = sealed(1, policy_version=2)
    for data in (new, old, new):
        peers.take(data, key)
    assert [peer.record.policy_version for peer in peers.all()] == [2]
    assert heard == [2]
    assert len(peers) == 1


def test_ghosts_expire(peers: KnownPeers, clock: Clock, sealed: Callable[..., bytes]):
    """Failures 26: a peer that renews its record no more is gone when it runs out, whatever time the record claims."""
    record = open_record(sealed(2), clock())
    eternal = seal_record(identity(2), msgspec.structs.replace(record, expires=round(clock()) + 80_000))
    peers.take(sealed(1), identity(1).key)
    peers.take(eternal, identity(2).key)
    clock.now += TTL - 1
    assert alive(peers) == {identity(1).key, identity(2).key}
    clock.now += 2
    assert alive(peers) == {identity(2).key}
    clock.now += SKEW
    assert alive(peers) == set()
    assert peers.get(identity(2).key) is None


def test_silent_peers_are_marked_down(
    peers: KnownPeers, counts: Counter[str], sealed: Callable[..., bytes], clock: Clock
):
    """Failures 27: a peer that answers no more counts as gone while its record still holds, until a sign of life."""
    key = identity(1).key
    peers.take(sealed(1), key)
    for _ in range(DOWN):
        assert alive(peers) == {key}
        peers.failed(key)
    assert alive(peers) == set()
    assert [peer.key for peer in peers.all()] == [key]
    peers.failed(key)
    assert counts == {"peer_down": 1}
    peers.heard(key)
    assert alive(peers) == {key}
    peers.failed(key, DOWN)
    clock.now += 5
    peers.take(sealed(1), key)  # it has published again
    assert alive(peers) == {key}
    peers.failed(identity(9).key)
    peers.heard(identity(9).key)


def test_an_old_record_is_no_new_sign_of_life(peers: KnownPeers, clock: Clock, sealed: Callable[..., bytes]):
    data = sealed(1)
    clock.now += 200
    peer = peers.take(data, identity(1).key)
    assert peer is not None
    assert clock.now - peer.heard == pytest.approx(200, abs=1)
    peers.failed(peer.key, DOWN)
    peers.take(data, peer.key)
    assert alive(peers) == set()
    peers.take(data, peer.key, proven=True)  # the peer itself has sent it
    assert alive(peers) == {peer.key}


def test_what_is_known_is_bounded(
    peers: KnownPeers, counts: Counter[str], sealed: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
):
    """A flood of keys cannot push out who has answered; who answers takes the place of one who never did."""
    monkeypatch.setattr(known, "MAX_KNOWN", 3)
    assert peers.take(sealed(1), identity(1).key, proven=True)
    for number in (2, 3, 4, 5):
        peers.take(sealed(number), identity(number).key)
    assert alive(peers) == {identity(number).key for number in (1, 2, 3)}
    assert counts == {"record_no_room": 2}
    for number in (6, 7, 8):
        peers.take(sealed(number), identity(number).key, proven=True)
    assert alive(peers) == {identity(number).key for number in (1, 6, 7)}
    peers.failed(identity(6).key, DOWN)
    assert peers.take(sealed(8), identity(8).key, proven=True)
    assert alive(peers) == {identity(number).key for number in (1, 7, 8)}


def test_addresses_of_the_gone_are_remembered(peers: KnownPeers, clock: Clock, sealed: Callable[..., bytes]):
    peers.take(sealed(1), identity(1).key, proven=True)
    peers.take(sealed(2), identity(2).key)
    clock.now += 2 * TTL
    peers.expire()
    assert list(peers.remembered.values()) == [(ADDRESS,)]
    peers.take(sealed(1), identity(1).key)
    assert not peers.remembered


def test_loopback_addresses_count_where_there_are_no_others(peers: KnownPeers, sealed: Callable[..., bytes]):
    told = ("/ip4/127.0.0.1/tcp/4001", ADDRESS)
    assert peers.take(sealed(1, told), identity(1).key).addresses == (ADDRESS,)
    peers.loopback = True
    assert peers.take(sealed(2, told), identity(2).key).addresses == told


def test_records_are_spread_over_64_keys():
    shards = Counter(record_shard(identity(number).key) for number in range(2000))
    assert set(shards) == set(range(64))
    assert max(shards.values()) < 64
