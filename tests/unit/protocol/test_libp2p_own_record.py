import pytest

from shoal.protocol.errors import TooLarge
from shoal.protocol.identity import Identity
from shoal.protocol.libp2p.own_record import OwnRecord
from shoal.protocol.libp2p.place import Place
from shoal.protocol.libp2p.settings import Libp2pSettings, RecordFacts
from shoal.protocol.records import open_record

ADDRESSES = ("/ip4/203.0.113.5/tcp/4001", "/ip4/203.0.113.5/udp/4001/quic-v1")


class About:
    def __init__(self) -> None:
        self.facts = RecordFacts(bytes([1]) * 32, bytes([2]) * 32, 3, ("train",), revision=4, invite=b"chain")

    def __call__(self) -> RecordFacts:
        return self.facts


@pytest.fixture
def about() -> About:
    return About()


@pytest.fixture
def own(about: About) -> OwnRecord:
    return OwnRecord(
        Place(Identity.from_seed(bytes(32)), bytes([7]) * 32, Libp2pSettings(), lambda reason: None), about
    )


def test_a_record_says_what_the_node_above_says(own: OwnRecord):
    record = open_record(own.renew(ADDRESSES, now=1000.5), 1000.5)
    assert (record.swarm_id, record.key) == (bytes([7]) * 32, Identity.from_seed(bytes(32)).key)
    assert (record.lineage, record.tokenizer, record.policy_version) == (bytes([1]) * 32, bytes([2]) * 32, 3)
    assert (record.capabilities, record.addresses) == (("train",), ADDRESSES)
    assert (record.revision, record.invite, record.expires) == (4, b"chain", 1300)


def test_each_record_is_later_than_the_one_before(own: OwnRecord, about: About):
    """Also when the clock is set back, and after a restart."""
    first = open_record(own.renew(ADDRESSES, now=1000.0), 1000.0).sequence
    second = open_record(own.renew(ADDRESSES, now=900.0), 900.0).sequence
    assert second > first
    again = OwnRecord(own._place, about)
    assert open_record(again.renew(ADDRESSES, now=1001.0), 1001.0).sequence > second


def test_what_others_act_on_is_told_at_once(own: OwnRecord, about: About):
    assert own.changed(ADDRESSES)
    own.renew(ADDRESSES)
    assert not own.changed(ADDRESSES)
    about.facts = about.facts._replace(policy_version=9)  # changes every few seconds: waits for the next refresh
    assert not own.changed(ADDRESSES)
    assert own.changed(ADDRESSES[:1])
    about.facts = about.facts._replace(revision=5)
    assert own.changed(ADDRESSES)


def test_addresses_give_way(own: OwnRecord, about: About):
    """2 KiB hold what must be said; of many long addresses the last ones are left out."""
    many = tuple(f"/dns4/{'a' * 200}{number}.example.org/tcp/4001" for number in range(8))
    record = open_record(own.renew(many, now=1000.0), 1000.0)
    assert 2 <= len(record.addresses) < 8
    assert record.addresses == many[: len(record.addresses)]
    about.facts = about.facts._replace(capabilities=("x" * 250,) * 9)
    with pytest.raises(TooLarge):
        own.renew(many)
