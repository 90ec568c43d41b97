"""What is fuzzed: each decoder of peers' bytes, as one function that returns when all is well and raises when not.

A decoder may refuse, by the errors that it declares and no others. What it accepts must encode to the very bytes that
came. Three drivers share these: hypothesis (tests/property/test_fuzz_decoders.py), fuzz_run.py and fuzz_atheris.py.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import fuzz_seeds as seeds
import msgpack

from shoal.node.bridge.holder import read_dictionary
from shoal.node.bridge.wire import LIMITS as BRIDGE_LIMITS
from shoal.node.bridge.wire import decode_value, unwrap
from shoal.protocol import canonical
from shoal.protocol.compression import decompress
from shoal.protocol.envelope import Announcement, Header, verify_announcement
from shoal.protocol.errors import ProtocolError, UsageError
from shoal.protocol.invite import Chain, open_invite, read_token, token_text
from shoal.protocol.libp2p.dht_records import MAX_OWNERS, Seal, read_bytes, read_items
from shoal.protocol.limits import DEFAULT_LIMITS
from shoal.protocol.manifest import Manifest
from shoal.protocol.prescan import FOREIGN_WIRE, prescan
from shoal.protocol.records import PeerRecord, open_record, seal_record
from shoal.protocol.validity import forwardable
from shoal.protocol.wire import Rollout, check_rollout, decode_rollout

REASON = re.compile(r"[a-z0-9_]{1,48}")
FORWARDABLE = forwardable(seeds.SWARM.swarm_id)
DHT_SEAL = Seal(seeds.NODE, lambda: seeds.NOW)


class Broken(AssertionError):
    """A decoder did what it must never do."""


@dataclass(frozen=True, slots=True)
class Target:
    """One decoder: valid messages to begin with, the errors that it declares, and what is checked."""

    name: str
    seeds: Sequence[bytes]
    check: Callable[[bytes], None]
    refusals: tuple[type[Exception], ...] = (ProtocolError,)

    def __call__(self, data: bytes) -> bool:
        """Whether the bytes were accepted. Raises Broken, or whatever the decoder should not have raised."""
        try:
            self.check(data)
        except self.refusals as error:
            reason = getattr(error, "reason", "")
            if isinstance(error, ProtocolError) and not REASON.fullmatch(reason):
                raise Broken(f"{reason!r} names no counter") from error
            return False
        return True


def same(found: bytes, data: bytes, what: str) -> None:
    """Raise Broken unless what was accepted encodes to what came."""
    if found != data:
        raise Broken(f"{what}: accepted, but it encodes to {found[:64].hex()}, not to {data[:64].hex()}")


def announcement(data: bytes) -> None:
    """An announcement, its signature, and the rule by which gossip forwards it."""
    forwarded = FORWARDABLE(data)
    if forwarded not in (True, False, None):
        raise Broken("the rule of gossip has three answers")
    found = Announcement.decode(data)
    same(found.encode(), data, "announcement")
    verify_announcement(found)
    if forwarded is False and found.header.swarm_id == seeds.SWARM.swarm_id and found.header.kind == 1:
        raise Broken("gossip refuses what is signed for this swarm")


def envelope(data: bytes) -> None:
    """A header of any kind."""
    same(Header.decode(data).encode(), data, "header")


def blob(data: bytes) -> None:
    """A rollout as it travels."""
    rollout = decode_rollout(data)
    same(canonical.encode(rollout), decompress(data, DEFAULT_LIMITS), "rollout")


def payload(data: bytes) -> None:
    """A rollout without its compression, so that changes reach the schema."""
    rollout = canonical.decode(data, Rollout, DEFAULT_LIMITS)
    same(canonical.encode(rollout), data, "payload")
    check_rollout(rollout, DEFAULT_LIMITS)


def record(data: bytes) -> None:
    """A peer record as it travels; signatures are deterministic, so that sealing it again gives the same bytes."""
    same(seal_record(seeds.NODE, open_record(data, seeds.NOW)), data, "record")


def record_payload(data: bytes) -> None:
    """A record whose signature is good whatever it says."""
    found = canonical.decode(data, PeerRecord, DEFAULT_LIMITS)
    same(canonical.encode(found), data, "record payload")
    open_record(seeds.sealed_record(data), seeds.NOW)


def manifest(data: bytes) -> None:
    """A manifest's text: read, written and read again it is the same, and its signature is judged."""
    found = Manifest.from_toml(data.decode("utf-8", errors="replace"))
    if Manifest.from_toml(found.to_toml()) != found:
        raise Broken("a manifest changes when it is written and read again")
    found.verify()


def chain(data: bytes) -> None:
    """The chain of an invite, which admits one key."""
    open_invite(data, seeds.SWARM, seeds.NODE.key, 0)
    same(canonical.encode(canonical.decode(data, Chain, DEFAULT_LIMITS)), data, "chain")
    if data != seeds.CHAIN:
        raise Broken("a chain that nobody signed has admitted a key")


def token(data: bytes) -> None:
    """An invite as a person hands it over."""
    text = data.decode("utf-8", errors="replace")
    found = read_token(text)
    if read_token(token_text(found)) != found:
        raise Broken("a token changes when it is written and read again")


def zstd(data: bytes) -> None:
    """A compressed frame."""
    if len(decompress(data, DEFAULT_LIMITS)) > DEFAULT_LIMITS.expanded_bytes:
        raise Broken("a frame has unpacked to more than is allowed")


def walked(data: bytes) -> None:
    """The walk before decoding: what it lets through is one whole value, or text that is not UTF-8."""
    prescan(data, DEFAULT_LIMITS)
    _decodes(data)


def walked_foreign(data: bytes) -> None:
    """The same with the types of the bridge's wire."""
    prescan(data, BRIDGE_LIMITS, FOREIGN_WIRE)
    _decodes(data)


def _decodes(data: bytes) -> None:
    try:
        msgpack.unpackb(data, raw=True, strict_map_key=False, object_pairs_hook=list)
    except Exception as error:  # the walk has vouched for it, so that any error of the decoder is one of the walk's
        raise Broken(f"the walk lets through what is no value: {error!r}") from error


def bridge_value(data: bytes) -> None:
    """What a peer of another client's swarm stores for a round."""
    sets = decode_value(data)
    if not all(0 < len(found.completions) <= BRIDGE_LIMITS.completions for found in sets):
        raise Broken("a set of no size that is allowed")


def bridge_stored(data: bytes) -> None:
    """The byte string around it."""
    if not isinstance(unwrap(data), bytes):
        raise Broken("no byte string")


def bridge_answer(data: bytes) -> None:
    """What a holder of that DHT answers: any number of entries, each of which may be of any form."""
    entries, refused = read_dictionary(data, seeds.NOW)
    if not all(seeds.NOW < entry.expires < seeds.NOW + 1000 for entry in entries):
        raise Broken("an entry that has no right to live")
    if not all(REASON.fullmatch(reason) for reason in refused):
        raise Broken("a reason that names no counter")


def dht_value(data: bytes) -> None:
    """One value of the own DHT."""
    found: Any = read_bytes(data)
    if msgpack.unpackb(data) != found:
        raise Broken("another decoder reads another value")


def dht_items(data: bytes) -> None:
    """The records under one key of the own DHT, and the judgement on each."""
    items = read_items(data)
    if len(items) > MAX_OWNERS:
        raise Broken("more records than are allowed")
    for item in items:
        fault = DHT_SEAL.fault(b"key", item.owner, item.value, item.expiration)
        if fault and not REASON.fullmatch(fault):
            raise Broken("a fault that names no counter")


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("announcement", seeds.ANNOUNCEMENTS, announcement),
        Target("envelope", seeds.HEADERS, envelope),
        Target("blob", seeds.BLOBS, blob),
        Target("payload", seeds.PAYLOADS, payload),
        Target("record", seeds.RECORDS, record),
        Target("record-payload", seeds.RECORD_PAYLOADS, record_payload),
        Target("manifest", seeds.MANIFESTS, manifest, (ProtocolError, UsageError)),
        Target("chain", [seeds.CHAIN], chain),
        Target("token", seeds.TOKENS, token, (UsageError,)),
        Target("zstd", seeds.FRAMES, zstd),
        Target("prescan", seeds.PAYLOADS, walked),
        Target("prescan-bridge", seeds.BRIDGE_VALUES, walked_foreign),
        Target("bridge-value", seeds.BRIDGE_VALUES, bridge_value),
        Target("bridge-stored", seeds.BRIDGE_STORED, bridge_stored),
        Target("bridge-answer", seeds.BRIDGE_ANSWERS, bridge_answer),
        Target("dht-value", [seeds.DHT_VALUE], dht_value, (ValueError,)),
        Target("dht-items", seeds.DHT_ITEMS, dht_items, (ValueError,)),
    )
}
"""Name → decoder; the gate with the screen is a target of its own, in fuzz_gate."""
