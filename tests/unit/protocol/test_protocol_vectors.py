"""Golden bytes: another implementation must produce these, and no release may change them under version 1.

`SHOAL_WRITE_VECTORS=1 pytest tests/unit/protocol/test_protocol_vectors.py` writes them anew, after a change that is
meant; the difference then belongs in the review.
"""

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import base58
import msgpack
import pytest

from shoal.protocol import canonical
from shoal.protocol.compression import compress
from shoal.protocol.envelope import Announcement, Header, Kind, check_payload, payload_hash, seal, verify_announcement
from shoal.protocol.identity import Identity
from shoal.protocol.invite import bind, issue_invite, open_invite, read_token, token_text
from shoal.protocol.libp2p.dht_records import Seal
from shoal.protocol.libp2p.keys import key_of, peer_id
from shoal.protocol.libp2p.known import record_shard
from shoal.protocol.libp2p.shards import epoch_of, publish_topic, shards_of, topics_of
from shoal.protocol.manifest import Manifest
from shoal.protocol.prompts import SHARED, derive_prompt, is_held_out, prompt_hash
from shoal.protocol.records import GOSSIP, TRANSPORT, PeerRecord, bound, open_record, prove, seal_record
from shoal.protocol.wire import Rollout, decode_rollout

VECTORS = Path(__file__).parents[2] / "vectors" / "protocol_v1.json"
TEXTS = ("reverse: shoal", "naïve 魚", *(f"prompt {number}" for number in range(14)))


def announcement(founder: Identity, manifest: Manifest, rollout: Rollout, payload: bytes) -> Announcement:
    """The header names the uncompressed payload: compressed bytes may differ between versions of zstd."""
    header = Header(
        kind=Kind.ROLLOUT,
        version=1,
        swarm_id=manifest.swarm_id,
        key=founder.key,
        round=rollout.round,
        policy_version=rollout.policy_version,
        prompt_hash=rollout.prompt_hash,
        sequence=2**40 + 1,
        payload_length=len(payload),
        payload_hash=payload_hash(payload),
    )
    return seal(founder, header)


def record(founder: Identity, manifest: Manifest, rollout: Rollout) -> PeerRecord:
    (transport_key, transport_proof), (gossip_key, gossip_proof) = prove(founder, TRANSPORT), prove(founder, GOSSIP)
    return PeerRecord(
        swarm_id=manifest.swarm_id,
        key=founder.key,
        sequence=3,
        expires=1_700_000_600,
        lineage=rollout.lineage,
        tokenizer=rollout.tokenizer,
        policy_version=4,
        capabilities=("rollout/1",),
        addresses=("/ip4/10.0.0.1/tcp/4001",),
        transport_key=transport_key,
        transport_proof=transport_proof,
        gossip_key=gossip_key,
        gossip_proof=gossip_proof,
        revision=5,
        invite=bytes.fromhex(invites(founder, manifest)["chain"]),
    )


def derived(manifest: Manifest, founder: Identity) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for round, scope_key, slot in ((0, SHARED, 0), (1, SHARED, 63), (2**40, SHARED, 7), (0, founder.key, 0)):
        prompt = derive_prompt(manifest, round, scope_key, slot)
        rows.append(
            {
                "round": round,
                "scope_key": scope_key.hex(),
                "slot": slot,
                "scope": prompt.scope,
                "task": prompt.task,
                "seed": prompt.seed,
                "index": prompt.index,
            }
        )
    return rows


def invites(founder: Identity, manifest: Manifest) -> dict[str, Any]:
    token = issue_invite(founder, manifest.swarm_id, "ada", 5000, bytes([7]) * 32)
    member = Identity.from_seed(bytes([8]) * 32).key
    return {"token": token_text(token), "member_key": member.hex(), "chain": bind(token, member).hex()}


def hosts(founder: Identity) -> dict[str, Any]:
    """The keys of the two libp2p hosts, by the purpose that each is derived for."""
    rows: dict[str, Any] = {}
    for purpose in (TRANSPORT, GOSSIP):
        key, proof = prove(founder, purpose)
        rows[purpose] = {"key": key.hex(), "proof": proof.hex(), "peer_id": peer_id(key)}
    return rows


def shards(founder: Identity, manifest: Manifest) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for round, bits, each in ((0, 0, 1), (100, 3, 2), (111, 3, 2), (112, 3, 2), (2**40, 12, 16)):
        rows.append(
            {
                "round": round,
                "shard_bits": bits,
                "shards_per_node": each,
                "shards": list(shards_of(manifest.swarm_id, founder.key, epoch_of(round), bits, each)),
                "subscribed": list(topics_of(manifest.swarm_id, founder.key, round, bits, each)),
            }
        )
    return rows


def stored(founder: Identity, manifest: Manifest, sealed_record: bytes) -> dict[str, Any]:
    """A record as it lies in the DHT; hivemind makes a key of a name in this way."""
    name = f"shoal/{manifest.swarm_id[:8].hex()}/peers/{record_shard(founder.key)}"
    key, tag = hashlib.sha1(msgpack.packb(name)).digest(), msgpack.packb(founder.key)
    expiration = 1_700_000_600.25
    value = Seal(founder).sign(key, tag, msgpack.packb(sealed_record), expiration)
    return {"name": name, "key": key.hex(), "tag": tag.hex(), "expiration": expiration, "value": value.hex()}


def gossip_message(founder: Identity, manifest: Manifest, data: bytes) -> bytes:
    """The signed protobuf message in which an announcement is gossiped."""
    gossip = Identity.from_seed(founder.derive(GOSSIP))
    topic = publish_topic(manifest.swarm_id, founder.key, 100, 3, 2)
    origin, number = base58.b58decode(peer_id(gossip.key)), struct.pack(">Q", 1_700_000_000 * 10**9)
    fields = ((1, origin), (2, data), (3, number), (4, topic.encode()))
    body = b"".join(_field(tag, value) for tag, value in fields)
    return body + _field(5, gossip.sign(b"libp2p-pubsub:" + body))


def _field(number: int, data: bytes) -> bytes:
    """A field of bytes in protobuf, at most 16,383 of them."""
    size = bytes([len(data)]) if len(data) < 128 else bytes([len(data) & 0x7F | 0x80, len(data) >> 7])
    return bytes([number << 3 | 2]) + size + data


def produced(founder: Identity, manifest: Manifest, rollout: Rollout) -> dict[str, Any]:
    payload = canonical.encode(rollout)
    sealed = announcement(founder, manifest, rollout, payload)
    signed = manifest.sign(founder)
    sealed_record = seal_record(founder, record(founder, manifest, rollout))
    texts = {text: prompt_hash(text) for text in TEXTS}
    return {
        "founder_seed": bytes(range(32)).hex(),
        "founder_key": founder.key.hex(),
        "derived_seeds": {purpose: founder.derive(purpose).hex() for purpose in (TRANSPORT, GOSSIP)},
        "rollout_payload": payload.hex(),
        "rollout_payload_sha256": hashlib.sha256(payload).hexdigest(),
        "header": sealed.header.encode().hex(),
        "announcement": sealed.encode().hex(),
        "record": sealed_record.hex(),
        "swarm_id": manifest.swarm_id.hex(),
        "manifest_canonical": manifest.canonical().decode("ascii"),
        "manifest_toml": signed.to_toml(),
        "manifest_signature": signed.signature,
        "invite": invites(founder, manifest),
        "hosts": hosts(founder),
        "shards": shards(founder, manifest),
        "dht": stored(founder, manifest, sealed_record),
        "gossip_message": gossip_message(founder, manifest, sealed.encode()).hex(),
        "derived_prompts": derived(manifest, founder),
        "prompt_texts": {text: {"hash": h.hex(), "held_out": is_held_out(h)} for text, h in texts.items()},
    }


@pytest.fixture
def golden(founder: Identity, manifest: Manifest, rollout: Rollout) -> dict[str, Any]:
    if os.environ.get("SHOAL_WRITE_VECTORS"):
        fresh = produced(founder, manifest, rollout)
        VECTORS.write_text(json.dumps(fresh, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return json.loads(VECTORS.read_text(encoding="utf-8"))


def test_what_is_produced(golden: dict[str, Any], founder: Identity, manifest: Manifest, rollout: Rollout):
    fresh = produced(founder, manifest, rollout)
    assert set(fresh) == set(golden)
    for name, value in fresh.items():
        assert value == golden[name], name


def test_what_is_read(golden: dict[str, Any], founder: Identity, manifest: Manifest, rollout: Rollout):
    sealed = Announcement.decode(bytes.fromhex(golden["announcement"]))
    verify_announcement(sealed)
    payload = bytes.fromhex(golden["rollout_payload"])
    check_payload(sealed.header, payload)
    assert decode_rollout(compress(payload)) == rollout
    assert open_record(bytes.fromhex(golden["record"]), 1_700_000_000) == record(founder, manifest, rollout)
    read = Manifest.from_toml(golden["manifest_toml"])
    read.verify()
    assert read.swarm_id.hex() == golden["swarm_id"]
    invite = golden["invite"]
    chain, key = bytes.fromhex(invite["chain"]), bytes.fromhex(invite["member_key"])
    assert open_invite(chain, read, key, current_round=5000) == "ada"
    assert bind(read_token(invite["token"]), key) == chain
    assert {row["held_out"] for row in golden["prompt_texts"].values()} == {True, False}


def test_what_travels_is_read(golden: dict[str, Any], founder: Identity):
    for host in golden["hosts"].values():
        assert key_of(host["peer_id"]) == bytes.fromhex(host["key"])
        assert bound(bytes.fromhex(host["key"]), bytes.fromhex(host["proof"]), founder.key)
    kept = golden["dht"]
    key, tag, value = (bytes.fromhex(kept[name]) for name in ("key", "tag", "value"))
    assert Seal(founder, now=lambda: 1_700_000_300).fault(key, tag, value, kept["expiration"]) == ""
    assert msgpack.unpackb(value[:-64]).hex() == golden["record"]
    assert golden["announcement"] in golden["gossip_message"]
