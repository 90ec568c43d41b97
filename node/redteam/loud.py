"""One loud peer of many: what share of the draws, and of the weight of an update, one key gets by sheer number.

A trial series without model or network: real announcements, signed and passed through a node's own gate and pool.
"""

import random
from collections.abc import Sequence

from shoal.defenses.attacks.lab import Laboratory
from shoal.defenses.config import DefenseConfig
from shoal.defenses.mixing import choose, row_factors
from shoal.defenses.pointer import Pointer
from shoal.node.pool import Pool
from shoal.node.redteam.cells import OPTIONAL_LAYERS

PEERS = 51
MESSAGES = 10_000  # of the loud one, against one of each other: by number it would get 99.5 %
LOCAL, EXTERNAL, GROUP = 2, 6, 8  # I, J, G of an update
PASSES = 300
LOUDEST = 8.0  # times the advantage of an honest row that each of its rows carries


def loud_peer(seed: int) -> dict[str, dict[str, float]]:
    """Return for "full" and "off" how many draws there were, how many got the loud peer, and its share of the mass."""
    return {
        "full": _series(DefenseConfig(), seed),
        "off": _series(DefenseConfig.without(OPTIONAL_LAYERS), seed),
    }


def _series(config: DefenseConfig, seed: int) -> dict[str, float]:
    laboratory = Laboratory(PEERS, config=config)
    pool = Pool(laboratory.counters)
    order = [0] * MESSAGES + list(range(1, PEERS))
    random.Random(seed).shuffle(order)
    for peer in order:
        rollout = laboratory.rollout(["a"] * GROUP)
        blob = bytes(8)  # never opened: the gate and the choice see announcements alone
        header = laboratory.header(peer, blob, rollout)
        outcome = laboratory.gate.admit(laboratory.sign(peer, header), laboratory.identities[peer].key)
        if isinstance(outcome, Pointer):
            pool.add(outcome)
    return _drawn(pool.where(lambda _: True), laboratory.identities[0].key, config.on("mixing"), seed)


def _drawn(pointers: Sequence[Pointer], loud: bytes, fair: bool, seed: int) -> dict[str, float]:
    """Draw the peers' sets of many updates, and weigh their rows as an update does."""
    rng = random.Random(f"{seed}/loud")
    hits, mass, total = 0, 0.0, 0.0
    for _ in range(PASSES):
        drawn = [pointer for pointer, _ in zip(choose(pointers, rng, fair), range(EXTERNAL), strict=False)]
        rows = [pointer for pointer in drawn for _ in range(GROUP)]
        masses = [LOUDEST if pointer.key == loud else 1.0 for pointer in rows]
        asked = LOCAL * GROUP * EXTERNAL / LOCAL
        factors = row_factors([pointer.operator for pointer in rows], masses, asked) if fair else [1.0] * len(rows)
        weighed = [factor * one for factor, one in zip(factors, masses, strict=True)]
        hits += sum(pointer.key == loud for pointer in drawn)
        mass += sum(one for pointer, one in zip(rows, weighed, strict=True) if pointer.key == loud)
        total += sum(weighed)
    return {"draws": PASSES * EXTERNAL, "loud": hits, "mass": round(mass / total, 5), "admitted": len(pointers)}
