"""Valid messages of every kind, from which fuzzing begins. Nothing in here is random."""

import msgpack

from shoal.defenses.attacks.lab import Laboratory
from shoal.defenses.attacks.wire import GIB, count_bomb, depth_bomb, frame, zstd_bomb
from shoal.node.bridge.wire import SharedSet, encode_value
from shoal.protocol import canonical
from shoal.protocol.columns import pack_floats, pack_ints
from shoal.protocol.compression import compress
from shoal.protocol.envelope import NO_HASH, PROTOCOL_VERSION, Header, Kind, payload_hash, seal
from shoal.protocol.identity import Identity
from shoal.protocol.invite import bind, issue_invite, token_text
from shoal.protocol.libp2p.dht_records import Seal
from shoal.protocol.manifest import Admission, Manifest, SwarmLimits, TaskEntry
from shoal.protocol.records import GOSSIP, TRANSPORT, PeerRecord, prove, seal_record
from shoal.protocol.wire import Rollout

NOW = 1000.0
FOUNDER = Identity.from_seed(bytes([7]) * 32)
NODE = Identity.from_seed(bytes([8]) * 32)
SWARM = Manifest(
    name="fuzzed",
    founder=FOUNDER.key.hex(),
    genesis=0,
    round_seconds=60,
    tasks=[TaskEntry(name="strings/reverse", config={"longest": 8, "words": ["a"]}), TaskEntry(name="rg/chain_sum")],
    lineages=["ab" * 32],
    limits=SwarmLimits(temperature=(0, 1_500_000)),
    admission=Admission(mode="invite", operators={"ada": [NODE.key.hex()]}),
    bootstraps=["/ip4/10.0.0.1/tcp/47700"],
    revoked=["cd" * 32],
).sign(FOUNDER)
MANIFESTS = [SWARM.to_toml().encode()]

_TOKEN = issue_invite(FOUNDER, SWARM.swarm_id, "ada", 1000, bytes([9]) * 32)
CHAIN = bind(_TOKEN, NODE.key)
TOKENS = [token_text(_TOKEN).encode()]


def header(kind: Kind, payload: bytes, sequence: int = 1) -> Header:
    """A header of this swarm by NODE."""
    return Header(
        kind=kind,
        version=PROTOCOL_VERSION,
        swarm_id=SWARM.swarm_id,
        key=NODE.key,
        round=0,
        policy_version=3,
        prompt_hash=NO_HASH,
        sequence=sequence,
        payload_length=len(payload),
        payload_hash=payload_hash(payload),
    )


HEADERS = [header(kind, b"payload").encode() for kind in Kind]
ANNOUNCEMENTS = [seal(NODE, header(kind, b"payload")).encode() for kind in Kind]


def rollouts() -> list[Rollout]:
    """Rollouts with and without ids and log-probs, with texts of all kinds."""
    lab = Laboratory()
    plain = lab.rollout(("cba", "?", "", "c\u00e4\U0001f642 <answer>4</answer>"))
    ids = (pack_ints([1, 2]), pack_ints([]))
    logps = (pack_floats([-0.5, -1.0]), b"")
    return [plain, lab.rollout(("ab", ""), token_ids=ids), lab.rollout(("ab", ""), token_ids=ids, logps=logps)]


PAYLOADS = [canonical.encode(rollout) for rollout in rollouts()]
BLOBS = [compress(payload) for payload in PAYLOADS]
FRAMES = [
    *BLOBS,
    zstd_bomb(1 << 17),
    zstd_bomb(GIB)[:256],
    frame(b"abc", 3),
    frame(b"abc", None, window=0),
    frame(b"abc", 3, window=0xA8),
    compress(depth_bomb(50)),
    compress(count_bomb(5000)),
]

RECORD = PeerRecord(
    swarm_id=SWARM.swarm_id,
    key=NODE.key,
    sequence=1,
    expires=2000,
    lineage=bytes(32),
    tokenizer=bytes(32),
    policy_version=3,
    capabilities=("rollout/1",),
    addresses=("/ip4/10.0.0.2/tcp/47700",),
    transport_key=prove(NODE, TRANSPORT)[0],
    transport_proof=prove(NODE, TRANSPORT)[1],
    gossip_key=prove(NODE, GOSSIP)[0],
    gossip_proof=prove(NODE, GOSSIP)[1],
    revision=0,
    invite=CHAIN,
)
RECORDS = [seal_record(NODE, RECORD)]
RECORD_PAYLOADS = [canonical.encode(RECORD)]


def sealed_record(payload: bytes) -> bytes:
    """Any payload as a record under a good signature of NODE."""
    return seal(NODE, header(Kind.RECORD, payload)).encode() + payload


BRIDGE_VALUES = [
    encode_value([SharedSet("1+1?", "2", "sums", ("2", "3"))]),
    encode_value([SharedSet("1+1?", "2", "sums", ("2",)), SharedSet("say hi", "hi", "words", ("hi", "ho", "\u00e4"))]),
]
BRIDGE_STORED = [msgpack.packb(value) for value in BRIDGE_VALUES]
_PEER = "12D3KooWBvUPDdVVyeDpXbe8d2TVQx5zV6kQk3kY5FNXUoK6K9dV"
_ENTRIES = [[_PEER, stored, NOW + 500.0] for stored in BRIDGE_STORED] + [["else", None, 3]]
BRIDGE_ANSWERS = [msgpack.packb(msgpack.ExtType(0x50, msgpack.packb([None, NOW + 1.0, _ENTRIES])))]

_DHT = Seal(NODE, lambda: NOW)
_TAG = msgpack.packb(NODE.key)
DHT_VALUE = msgpack.packb(RECORDS[0])
_SIGNED = _DHT.sign(b"key", _TAG, msgpack.packb(b"data"), NOW + 100.0)
DHT_ITEMS = [
    msgpack.packb(msgpack.ExtType(0x50, msgpack.packb([5, NOW + 1.0, [[_TAG, _SIGNED, NOW + 100.0]] * count])))
    for count in (0, 1, 3)
]
