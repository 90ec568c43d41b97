"""Reputation over time: what the later layers found in an operator's rewarded rows, as one running sum of evidence.

Each row adds its log-likelihood ratio of an attacker's rate of bad rows against an honest one (Wald, The Annals of
Mathematical Statistics 16, 1945), and the sum never falls below 0 (Page, Biometrika 41, 1954, CUSUM): a sleeper that
was honest for a year has saved up nothing that it could spend. Old evidence halves, so bad luck is forgotten. Nobody is
banned here: what is measured are rates, and an honest peer has one too.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

from shoal.defenses.bounded import BoundedMap
from shoal.defenses.config import DefenseConfig
from shoal.defenses.newcomers import NEWCOMERS
from shoal.defenses.verdict import Counters


@dataclass(slots=True)
class _Account:
    evidence: float  # nats, in [0, suspicion_upper]
    updated: int  # the round of the last note, or that in which the parole ends
    until: int  # refused before this round


class Suspicion:
    """Evidence by operator, in nats: below `suspicion_lower` it costs nothing, from there on weight, above
    `suspicion_upper` all of the operator's rollouts are set aside for `parole` rounds; then it starts half-way.

    The refused are kept apart, so that nobody flushes them before their parole with thousands of other names. Gate and
    screen may call from two threads.
    """

    def __init__(self, config: DefenseConfig, counters: Counters) -> None:
        self._config = config
        self._counters = counters
        self._lock = Lock()
        honest, attacker = config.suspicion_honest, config.suspicion_attacker
        self._bad = math.log(attacker / honest)
        self._good = math.log((1.0 - attacker) / (1.0 - honest))
        self._accounts = self._map("evicted_operator")
        self._refused = self._map("evicted_refused")

    def _map(self, reason: str) -> BoundedMap[str, _Account]:
        return BoundedMap(self._config.subjects, partial(self._counters.add, "reputation", reason))

    def note(self, operator: str, bad: int, good: int, round: int) -> None:
        """Take in the verdicts on the rewarded rows of one rollout.

        They share a prompt and a mood and are no independent draws: together they add `suspicion_rollout` at most. What
        comes while the operator is refused was fetched before, and changes nothing.
        """
        if not self._config.on("reputation") or bad + good == 0:
            return
        with self._lock:
            if self._refuses(operator, round):
                return
            ratio = min(bad * self._bad + good * self._good, self._config.suspicion_rollout)
            evidence = max(0.0, self._evidence(operator, round) + ratio)
            self._accounts.pop(operator)
            self._refused.pop(operator)
            if evidence >= self._config.suspicion_upper:
                self._refuse(operator, round)
            elif evidence > 0.0:  # who is above suspicion needs no place
                self._accounts.put(operator, _Account(evidence, round, round))

    def evidence(self, operator: str, round: int) -> float:
        """Return the evidence against an operator in nats, 0.0 for an unknown one."""
        with self._lock:
            return self._evidence(operator, round)

    def weight(self, operator: str, round: int) -> float:
        """Return what a row of the operator counts, in [0, 1]: 1 for the unknown, 0 while it is refused."""
        if not self._config.on("reputation"):
            return 1.0
        with self._lock:
            if self._refuses(operator, round):
                return 0.0
            lower, upper = self._config.suspicion_lower, self._config.suspicion_upper
            return min(1.0, max(0.0, (upper - self._evidence(operator, round)) / (upper - lower)))

    def refused(self, operator: str, round: int) -> bool:
        """Whether the operator's rollouts are set aside in this round, unfetched."""
        if not self._config.on("reputation"):
            return False
        with self._lock:
            return self._refuses(operator, round)

    def _refuse(self, operator: str, round: int) -> None:
        until = round + self._config.parole
        self._refused.put(operator, _Account(self._config.suspicion_upper / 2, until, until))
        self._counters.add("reputation", "refused_operator")

    def _refuses(self, operator: str, round: int) -> bool:
        account = self._refused.get(operator)
        # One that ends later than a parole from now was set by a clock that ran ahead.
        return account is not None and round < account.until <= round + self._config.parole

    def _evidence(self, operator: str, round: int) -> float:
        account = self._refused.get(operator) or self._accounts.get(operator)
        if account is None:
            return 0.0
        elapsed = max(0, round - account.updated)  # a clock that steps back makes no evidence younger
        return account.evidence * 0.5 ** (elapsed / self._config.suspicion_half_life)

    def state(self) -> dict[str, Any]:
        """Return everything remembered as plain lists."""
        with self._lock:
            return {"accounts": _rows(self._accounts), "refused": _rows(self._refused)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        with self._lock:
            self._accounts.replace(map(_entry, state["accounts"]))
            self._refused.replace(map(_entry, state["refused"]))


def _rows(accounts: BoundedMap[str, _Account]) -> list[Any]:
    return [[operator, a.evidence, a.updated, a.until] for operator, a in accounts.items()]


def _entry(row: Sequence[Any]) -> tuple[str, _Account]:
    operator, evidence, updated, until = row
    return str(operator), _Account(float(evidence), int(updated), int(until))


def accounts(operator: str, key: bytes) -> tuple[str, ...]:
    """Return under which names the evidence about a key's rows is noted; the lowest weight of them counts.

    The operator answers for all its keys, and a key for itself, whatever operator it counts for later. Newcomers answer
    for themselves only: one of them must not be able to have all of them refused.
    """
    own = key.hex()
    return (own,) if operator in (NEWCOMERS, own) else (operator, own)
