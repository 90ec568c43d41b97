"""What each peer may cost: a token bucket for each, and a bounded number of them."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

MAX_PEERS = 1024


class Budgets:
    """`rate` tokens a second for each peer, at most `burst` saved up. The peer unseen for longest is forgotten."""

    def __init__(self, rate: float, burst: float, now: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._now = rate, burst, now
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when they were counted

    def spend(self, peer: str, cost: float = 1.0) -> bool:
        """Take `cost` tokens of a peer; False when it has too few."""
        now = self._now()
        tokens, at = self._left.pop(peer, (self._burst, now))
        tokens = min(self._burst, tokens + (now - at) * self._rate)
        granted = tokens >= cost
        self._left[peer] = (tokens - cost if granted else tokens, now)
        while len(self._left) > MAX_PEERS:
            self._left.popitem(last=False)
        return granted
