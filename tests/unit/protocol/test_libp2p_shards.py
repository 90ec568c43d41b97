import hashlib
import struct
from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocol.errors import Malformed
from shoal.protocol.libp2p.shards import (
    EPOCH_ROUNDS,
    epoch_of,
    publish_topic,
    shards_of,
    topic,
    topics_of,
    traffic_share,
)

SWARM = bytes(range(32))
KEYS = [hashlib.sha256(struct.pack(">I", number)).digest() for number in range(4000)]


def shuffled(swarm: bytes, key: bytes, epoch: int, shards: int, k: int) -> list[int]:
    """The definition, written out: a Fisher-Yates shuffle of the whole list, 64 bits of SHA-256 for each step."""
    stream = b""
    block = 0
    while len(stream) < 8 * k:
        stream += hashlib.sha256(
            b"shoal/shard/1" + swarm + key + epoch.to_bytes(8, "big") + block.to_bytes(4, "big")
        ).digest()
        block += 1
    deck = list(range(shards))
    for place in range(min(k, shards)):
        draw = int.from_bytes(stream[8 * place : 8 * place + 8], "big")
        other = place + draw % (shards - place)
        deck[place], deck[other] = deck[other], deck[place]
    return deck[: min(k, shards)]


@given(
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=32, max_size=32),
    st.integers(0, 2**40),
    st.integers(0, 8),
    st.integers(1, 16),
)
def test_everybody_computes_the_definition(swarm: bytes, key: bytes, epoch: int, bits: int, k: int):
    shards = shards_of(swarm, key, epoch, bits, k)
    assert list(shards) == shuffled(swarm, key, epoch, 2**bits, k)
    assert len(set(shards)) == len(shards) == min(k, 2**bits)


def test_known_values():
    """Golden: another implementation must place these nodes alike."""
    assert shards_of(bytes(32), bytes(32), 0, 4, 3) == (11, 8, 14)
    assert shards_of(SWARM, KEYS[0], 9, 12, 2) == (3595, 3941)


def test_how_many_shards_a_node_reads_does_not_move_where_it_writes():
    for key in KEYS[:50]:
        assert shards_of(SWARM, key, 3, 5, 16)[:4] == shards_of(SWARM, key, 3, 5, 4)


@pytest.mark.parametrize("epoch", [0, 1, 77])
def test_publishers_are_spread_evenly(epoch: int):
    shards = 16
    counts = Counter(shards_of(SWARM, key, epoch, 4, 1)[0] for key in KEYS)
    expected = len(KEYS) / shards
    chi_square = sum((counts[shard] - expected) ** 2 / expected for shard in range(shards))
    assert chi_square < 50  # 15 degrees of freedom: a fair draw exceeds it once in 80,000 times


def test_each_pair_of_nodes_meets_both_ways():
    bits, k, epochs = 3, 2, 96
    nodes = KEYS[:10]
    meetings: Counter[tuple[bytes, bytes]] = Counter()
    for epoch in range(epochs):
        shards = {key: shards_of(SWARM, key, epoch, bits, k) for key in nodes}
        meetings.update((a, b) for a, b in permutations(nodes, 2) if shards[b][0] in shards[a])
    assert all(meetings[pair] > 0 for pair in permutations(nodes, 2))
    met = sum(meetings.values()) / (epochs * len(nodes) * (len(nodes) - 1))
    assert met == pytest.approx(traffic_share(bits, k), rel=0.1)


def test_a_key_ground_for_a_shard_holds_it_for_one_epoch():
    ground = [key for key in KEYS if shards_of(SWARM, key, 5, 4, 1) == (3,)]
    later = Counter(shards_of(SWARM, key, 6, 4, 1)[0] for key in ground)
    assert len(ground) > 200
    assert later[3] < len(ground) / 4


@given(st.integers(1, 16), st.integers(0, 10_000))
def test_without_bits_there_is_one_topic_for_all(k: int, round: int):
    assert {topics_of(SWARM, key, round, 0, k) for key in KEYS[:5]} == {("shoal/0001020304050607/0",)}
    assert publish_topic(SWARM, KEYS[0], round, 0, k) == "shoal/0001020304050607/0"
    assert traffic_share(0, k) == 1.0


def test_an_epoch_is_kept_for_one_more_and_the_next_is_joined_early():
    key, bits, k = KEYS[1], 10, 2

    def names(epoch: int) -> set[str]:
        return {topic(SWARM, shard) for shard in shards_of(SWARM, key, epoch, bits, k)}

    first, last = 5 * EPOCH_ROUNDS, 6 * EPOCH_ROUNDS - 1
    assert set(topics_of(SWARM, key, first, bits, k)) == names(5) | names(4)
    assert set(topics_of(SWARM, key, last, bits, k)) == names(5) | names(4) | names(6)
    assert set(topics_of(SWARM, key, 0, bits, k)) == set(topics_of(SWARM, key, -3, bits, k)) == names(0)
    assert topics_of(SWARM, key, first, bits, k)[0] == publish_topic(SWARM, key, first, bits, k)
    assert {epoch_of(first), epoch_of(last)} == {5}


def test_share_of_the_traffic():
    assert traffic_share(3, 2) == 0.25
    assert traffic_share(2, 16) == 1.0
    assert traffic_share(12, 1) == 1 / 4096


@pytest.mark.parametrize(
    ("swarm", "key", "epoch", "bits", "k"),
    [
        (SWARM[:8], KEYS[0], 0, 1, 1),
        (SWARM, KEYS[0][:31], 0, 1, 1),
        (SWARM, KEYS[0], -1, 1, 1),
        (SWARM, KEYS[0], 0, 13, 1),
        (SWARM, KEYS[0], 0, -1, 1),
        (SWARM, KEYS[0], 0, 1, 0),
        (SWARM, KEYS[0], 0, 1, 17),
    ],
)
def test_what_two_nodes_could_read_differently_is_refused(swarm: bytes, key: bytes, epoch: int, bits: int, k: int):
    with pytest.raises(Malformed, match="shard_arguments"):
        shards_of(swarm, key, epoch, bits, k)
