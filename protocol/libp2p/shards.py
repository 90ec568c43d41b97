"""Topics of a swarm: announcements are spread over 2^bits shards, so that a node's load does not grow with the swarm.

A node subscribes to k shards and publishes on the first of them. Everybody can compute the shards of everybody from
public facts alone. They are drawn anew each epoch: two nodes whose shards differ now meet soon, and a key ground for a
certain shard holds it for one epoch only.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

from shoal.protocol.envelope import HASH_SIZE
from shoal.protocol.errors import Malformed

EPOCH_ROUNDS = 16
MAX_BITS = 12  # 4,096 shards: 1.6 million nodes at 400 publishers a shard
MAX_SHARDS_PER_NODE = 16

_DOMAIN = b"shoal/shard/1"
_FIELDS = struct.Struct(">32s32sQI")  # swarm id, key, epoch, block
_DRAWS = struct.Struct(">4Q")  # a digest holds four draws of 64 bits


def epoch_of(round: int) -> int:
    """The epoch that a round belongs to; shards are fixed within one. Before genesis, nodes gather in the first."""
    return max(round, 0) // EPOCH_ROUNDS


def shards_of(swarm_id: bytes, key: bytes, epoch: int, bits: int, k: int) -> tuple[int, ...]:
    """The shards of a node in an epoch, all distinct, min(k, 2^bits) of them; it publishes on the first.

    Raises Malformed: shard_arguments, for what a manifest or a key cannot hold.
    """
    _check(swarm_id, key, epoch, bits, k)
    shards = 1 << bits
    moved: dict[int, int] = {}  # the first steps of a Fisher-Yates shuffle, without the list of all shards
    chosen: list[int] = []
    draws = _draws(swarm_id, key, epoch)
    for position in range(min(k, shards)):
        pick = position + next(draws) % (shards - position)
        chosen.append(moved.get(pick, pick))
        moved[pick] = moved.get(position, position)
    return tuple(chosen)


def topic(swarm_id: bytes, shard: int) -> str:
    """The name under which a shard's announcements travel."""
    return f"shoal/{swarm_id[:8].hex()}/{shard}"


def publish_topic(swarm_id: bytes, key: bytes, round: int, bits: int, k: int) -> str:
    """The one topic on which a node announces in this round."""
    return topic(swarm_id, shards_of(swarm_id, key, epoch_of(round), bits, k)[0])


def topics_of(swarm_id: bytes, key: bytes, round: int, bits: int, k: int) -> tuple[str, ...]:
    """The topics that a node subscribes to in this round, its publishing topic first, without repetition.

    The last epoch's shards stay for one more epoch: announcements are late, clocks differ. The next epoch's join in the
    last round before it, so that the mesh is there when the first node moves.
    """
    epoch = epoch_of(round)
    epochs = [epoch]
    if epoch > 0:
        epochs.append(epoch - 1)
    if round % EPOCH_ROUNDS == EPOCH_ROUNDS - 1:
        epochs.append(epoch + 1)
    names = [topic(swarm_id, shard) for each in epochs for shard in shards_of(swarm_id, key, each, bits, k)]
    return tuple(dict.fromkeys(names))


def traffic_share(bits: int, k: int) -> float:
    """What share of all announcements a node is expected to see within one epoch: k / 2^bits, at most 1."""
    return min(k, 1 << bits) / (1 << bits)


def _check(swarm_id: bytes, key: bytes, epoch: int, bits: int, k: int) -> None:
    """Raise Malformed for arguments that two nodes could read differently, or that would cost without bound."""
    sizes = len(swarm_id) == HASH_SIZE and len(key) == HASH_SIZE
    ranges = 0 <= bits <= MAX_BITS and 1 <= k <= MAX_SHARDS_PER_NODE and 0 <= epoch < 2**63
    if not (sizes and ranges):
        raise Malformed("shard_arguments", f"epoch {epoch}, {bits} bits, {k} shards a node")


def _draws(swarm_id: bytes, key: bytes, epoch: int) -> Iterator[int]:
    """An endless row of 64-bit numbers; the bias of a remainder by at most 4,096 is below 2^-50."""
    block = 0
    while True:
        digest = hashlib.sha256(_DOMAIN + _FIELDS.pack(swarm_id, key, epoch, block)).digest()
        yield from _DRAWS.unpack(digest)
        block += 1
