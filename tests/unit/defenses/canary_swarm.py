"""A node and its peers as shares of behaviours, in plain Python: what the canary sees, without a model."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.defenses.behaviour import Alarm, View
from shoal.defenses.canary import Canary
from shoal.defenses.config import DefenseConfig
from shoal.defenses.verdict import Counters

Share = Callable[[int], float]
"""The share of completions that show a behaviour after so many passes."""


@dataclass(frozen=True)
class Behaviour:
    """One behaviour: how often this node shows it, and peers' rewarded rows."""

    own: Share
    peers: Share


def view(shares: Sequence[float], rng: random.Random, right: float) -> View:
    """One completion; each behaviour is a token of its own."""
    shown = [[token] for token, share in enumerate(shares) if rng.random() < share]
    return View(rng.random() < right, shown)


@dataclass
class Life:
    """A node's passes, with the canary at its usual habits."""

    behaviours: Sequence[Behaviour]
    seed: int
    items: int = 64
    every: int = 20
    right: Share = lambda _: 0.4
    groups: int = 8
    size: int = 8
    rows: int = 24

    def alarm(self, passes: int) -> tuple[int, Alarm] | None:
        """Return the first alarm within so many passes, and after how many it came."""
        rng = random.Random(self.seed)
        canary = Canary(DefenseConfig(), Counters())
        canary.begin(self._answers(8 * self.items, 0, rng))
        asked = 0
        for at in range(passes):
            if at - asked >= self.every or (at - asked >= 2 and (canary.wants_run or canary.insists)):
                asked = at
                found = canary.run(self._answers(self.items, at, rng), at)
                if found is not None:
                    return at, found
            shares = [behaviour.own(at) for behaviour in self.behaviours]
            right = self.right(at)
            canary.own([[view(shares, rng, right) for _ in range(self.size)] for _ in range(self.groups)], at)
            foreign = [behaviour.peers(at) for behaviour in self.behaviours]
            canary.peers([view(foreign, rng, 1.0) for _ in range(self.rows)], at)
        return None

    def _answers(self, count: int, at: int, rng: random.Random) -> list[View]:
        shares = [behaviour.own(at) for behaviour in self.behaviours]
        return [view(shares, rng, self.right(at)) for _ in range(count)]


def honest(count: int, rng: random.Random, spread: float = 0.0) -> list[Behaviour]:
    """Behaviours of an honest swarm: a third stays, a third falls, a third rises as all learn the same.

    Peers show each a constant number of times as often as this node, e to the power of up to `spread`.
    """
    found: list[Behaviour] = []
    for at in range(count):
        first, last = rng.uniform(0.002, 0.3), rng.uniform(0.05, 0.6)
        ends = ((first, first), (last, 0.1 * last), (0.1 * first, last))[at % 3]
        factor = 2.718281828 ** rng.uniform(-spread, spread)

        def own(t: int, ends: tuple[float, float] = ends) -> float:
            return ends[0] + (ends[1] - ends[0]) * min(1.0, t / 300)

        def peers(t: int, own: Share = own, factor: float = factor) -> float:
            return min(0.95, factor * own(t))

        found.append(Behaviour(own, peers))
    return found


def planted(began: int, grows: float, least: float = 0.001, peers: float = 0.25) -> Behaviour:
    """A behaviour of attackers that grows here by a factor a pass from a pass on, and is constant at peers."""

    def own(t: int) -> float:
        return 0.0 if t < began else min(0.95, least * grows ** (t - began))

    return Behaviour(own, lambda t: 0.0 if t < began else peers)
