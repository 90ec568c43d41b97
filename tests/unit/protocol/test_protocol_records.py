from collections.abc import Callable

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from shoal.protocol import canonical
from shoal.protocol.envelope import ANNOUNCEMENT_SIZE, NO_HASH, Header, Kind, payload_hash, seal
from shoal.protocol.errors import BadSignature, Malformed, ProtocolError, TooLarge, UnknownVersion
from shoal.protocol.identity import Identity
from shoal.protocol.records import BINDING, GOSSIP, MAX_TTL, TRANSPORT, PeerRecord, open_record, prove, seal_record

NOW = 1_000_000.0


@pytest.fixture
def record(founder: Identity) -> PeerRecord:
    (transport_key, transport_proof), (gossip_key, gossip_proof) = prove(founder, TRANSPORT), prove(founder, GOSSIP)
    return PeerRecord(
        swarm_id=bytes([1]) * 32,
        key=founder.key,
        sequence=3,
        expires=1_000_600,
        lineage=bytes([2]) * 32,
        tokenizer=bytes([3]) * 32,
        policy_version=4,
        capabilities=("rollout/1",),
        addresses=("/ip4/10.0.0.1/tcp/4001",),
        transport_key=transport_key,
        transport_proof=transport_proof,
        gossip_key=gossip_key,
        gossip_proof=gossip_proof,
        revision=5,
        invite=b"chain",
    )


@pytest.fixture
def sealed_as(record: PeerRecord, founder: Identity) -> Callable[..., bytes]:
    """A record whose header differs from what seal_record would write."""

    def seal_with(payload: bytes | None = None, **fields: object) -> bytes:
        payload = canonical.encode(record) if payload is None else payload
        header: dict[str, object] = {
            "kind": Kind.RECORD,
            "version": 1,
            "swarm_id": record.swarm_id,
            "key": founder.key,
            "round": 0,
            "policy_version": record.policy_version,
            "prompt_hash": NO_HASH,
            "sequence": record.sequence,
            "payload_length": len(payload),
            "payload_hash": payload_hash(payload),
        }
        return seal(founder, Header(**(header | fields))).encode() + payload  # type: ignore[arg-type]

    return seal_with


def test_round_trip(record: PeerRecord, founder: Identity, sealed_as: Callable[..., bytes]):
    data = seal_record(founder, record)
    assert open_record(data, NOW) == record
    assert sealed_as() == data


def test_every_flipped_bit_is_refused(record: PeerRecord, founder: Identity):
    data = seal_record(founder, record)
    for place in range(len(data)):
        broken = data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]
        with pytest.raises(ProtocolError):
            open_record(broken, NOW)


def test_the_header_binds_the_payload(sealed_as: Callable[..., bytes]):
    for fields in (
        {"swarm_id": bytes(32)},
        {"sequence": 4},
        {"policy_version": 5},
        {"round": 1},
        {"prompt_hash": bytes([1]) * 32},
    ):
        with pytest.raises(Malformed, match="header_mismatch"):
            open_record(sealed_as(**fields), NOW)


def test_kind_version_and_payload(sealed_as: Callable[..., bytes]):
    with pytest.raises(Malformed, match="not_a_record"):
        open_record(sealed_as(kind=Kind.ROLLOUT), NOW)
    with pytest.raises(UnknownVersion):
        open_record(sealed_as(version=2), NOW)
    with pytest.raises(Malformed, match="payload_length"):
        open_record(sealed_as() + b"\0", NOW)
    with pytest.raises(Malformed, match="map_on_wire"):
        open_record(sealed_as(payload=b"\x80"), NOW)
    with pytest.raises(Malformed, match="announcement_size"):
        open_record(sealed_as()[: ANNOUNCEMENT_SIZE - 1], NOW)
    with pytest.raises(BadSignature):
        open_record(sealed_as(payload_length=1)[:174] + sealed_as()[174:], NOW)


def test_a_record_lives_for_a_limited_time(record: PeerRecord, founder: Identity):
    """Failure 26: ghost peers."""
    with pytest.raises(Malformed, match="record_expired"):
        open_record(seal_record(founder, record), 1_000_600.0)
    eternal = msgspec.structs.replace(record, expires=int(NOW) + MAX_TTL + 1)
    with pytest.raises(Malformed, match="record_expires_too_late"):
        open_record(seal_record(founder, eternal), NOW)


def test_records_are_small(record: PeerRecord, founder: Identity):
    wide = msgspec.structs.replace(record, addresses=("/dns4/" + "a" * 100,) * 30)
    with pytest.raises(TooLarge, match="record_too_large"):
        seal_record(founder, wide)
    with pytest.raises(TooLarge, match="record_too_large"):
        open_record(bytes(2049), NOW)


def test_derived_keys_are_bound_both_ways(record: PeerRecord, founder: Identity):
    """A record that names another node's keys, with their proofs, is refused: those keys signed another root key."""
    stranger = Identity.from_seed(bytes([9]) * 32)
    key, proof = prove(stranger, TRANSPORT)
    forged = Identity.from_seed(bytes([8]) * 32).sign(BINDING + founder.key)
    for kind in ("transport", "gossip"):
        for taken in ({f"{kind}_key": key, f"{kind}_proof": proof}, {f"{kind}_proof": forged}):
            with pytest.raises(BadSignature, match="unbound_key"):
                open_record(seal_record(founder, msgspec.structs.replace(record, **taken)), NOW)


def test_what_a_derived_key_signs(founder: Identity):
    key, proof = prove(founder, GOSSIP)
    Ed25519PublicKey.from_public_bytes(key).verify(proof, b"shoal/bind/1" + founder.key)
    assert len({founder.key, key, prove(founder, TRANSPORT)[0]}) == 3


def test_an_invite_is_small(record: PeerRecord, founder: Identity):
    with pytest.raises(Malformed, match="schema"):
        open_record(seal_record(founder, msgspec.structs.replace(record, invite=bytes(513))), NOW)
    assert open_record(seal_record(founder, msgspec.structs.replace(record, invite=bytes(512))), NOW)


def test_only_printable_words(record: PeerRecord, founder: Identity):
    for word in ("", "two words", "\x1b[31m", "line\n", "x" * 257):
        with pytest.raises(Malformed, match="schema"):
            open_record(seal_record(founder, msgspec.structs.replace(record, addresses=(word,))), NOW)


def test_nobody_signs_for_another_key(record: PeerRecord):
    with pytest.raises(ValueError, match="sealed only"):
        seal_record(Identity.from_seed(bytes([9]) * 32), record)
