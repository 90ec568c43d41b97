"""Likelihood tests of a completion under the own model, for peers of the same lineage (layer 9).

Every test looks only at tokens that the verifier has not vouched for, and gives a score that is higher the stranger the
text is. What a score means is read off own completions of the same task, age and length (`LikelihoodNull`). Likelihood
alone weighs or quarantines and never rejects: a peer with a skill that the receiver lacks looks unlikely too.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from shoal.defenses.bounded import BoundedMap
from shoal.defenses.config import DefenseConfig
from shoal.defenses.conformal import ScoreSample, tail_p
from shoal.defenses.token_scores import TokenEvidence, theory_p, token_scores, unvouched
from shoal.defenses.verdict import ACCEPTED, Action, Counters, Verdict

SLOPES = {"tail": 1.0, "surprise": 0.3, "window": 0.3, "prefix": 0.3, "rank": 1.0, "end": 1.0, "likely": 0.3}
"""The least scale of each score's tail: 1 for what is minus a log-probability, .3 for what is near a normal deviate."""

REASONS = {
    "tail": "unlikely_token",
    "surprise": "unlikely_text",
    "window": "unlikely_window",
    "prefix": "unlikely_prefix",
    "rank": "rare_tokens",
    "end": "unlikely_end",
    "likely": "too_likely",
}
QUARANTINING = ("tail", "surprise", "window", "prefix")
"""The others only weigh: rare tokens and early ends are honest now and then, and greedy or copied text does no harm."""


@dataclass(frozen=True, slots=True)
class Case:
    """Where a completion comes from: its task, the age of its rollout, and who sent it.

    `max_tokens` is the declared cap of the sampler, 0 where none is known. Tasks sampled at several temperatures need a
    name for each.
    """

    task: str
    age: int
    operator: str = ""
    max_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict, the scores and p-values by test, and one p-value for all tests together."""

    verdict: Verdict
    p: float = 1.0
    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    p_values: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(slots=True)
class _Rate:
    rare: float = 0.0
    tokens: float = 0.0


_Samples = dict[str, ScoreSample]


class LikelihoodNull:
    """What scores honest completions get: own ones by task, age and length, and peers' by operator and age.

    Own completions that are scored again some rounds later show what a delayed copy of oneself looks like. Peers that
    were trained apart need more room: their own scores, of rows that no other layer flagged, are a second null. There
    the stranger half of the operators and the strangest tenth of the rest are not believed, and nobody's rows speak for
    himself.
    """

    def __init__(self, config: DefenseConfig, counters: Counters) -> None:
        self.config = config
        self.counters = counters

        def evicted(reason: str) -> Callable[[], None]:
            return partial(counters.add, "likelihood", reason)

        self._cells: BoundedMap[tuple[str, int, int], _Samples] = BoundedMap(config.null_cells, evicted("evicted_cell"))
        self._peers: BoundedMap[tuple[str, int], _Samples] = BoundedMap(config.null_peers, evicted("evicted_peer"))
        self._rates: BoundedMap[str, _Rate] = BoundedMap(config.null_cells, evicted("evicted_rate"))

    def own(self, task: str, age: int, evidence: TokenEvidence) -> None:
        """Learn from an own *rewarded* completion; `age` is how many rounds ago it was sampled (it is scored now).

        What is judged is rewarded, with its answer vouched for, so this must be too: a wrong answer of one's own has
        nothing vouched, and would teach that unlikely tokens are common.
        """
        scores = self.scores(task, evidence)
        if not _finite(scores):
            return
        rate = self._rates.get(task) or _Rate()
        free = [evidence.rank[at] for at in unvouched(evidence)]
        if rate.tokens > self.config.rate_tokens:
            rate = _Rate(rate.rare / 2, rate.tokens / 2)
        rate = _Rate(rate.rare + sum(rank >= self.config.rare_rank for rank in free), rate.tokens + len(free))
        self._rates.put(task, rate)
        for cell in _cells(task, age, len(free)):
            self._add(self._cells, cell, scores, self.config.null_scores)

    def peer(self, case: Case, evidence: TokenEvidence) -> None:
        """Learn from a peer's completion that was regraded and that no *other* layer flagged.

        What this layer says of it must not decide: peers that were trained apart would never be let in.
        """
        scores = self.scores(case.task, evidence)
        if _finite(scores):
            for age in (_bucket(case.age), -1):
                self._add(self._peers, (case.operator, age), scores, self.config.null_peer_scores)

    def _add(self, samples: BoundedMap[Any, _Samples], key: object, scores: Mapping[str, float], most: int) -> None:
        found = samples.get(key) or {}
        for name, score in scores.items():
            found.setdefault(name, ScoreSample(most)).add(score)
        samples.put(key, found)

    def scores(self, task: str, evidence: TokenEvidence) -> dict[str, float]:
        """Return the score of each test, with the task's own rate of rare tokens."""
        rate = self._rates.get(task) or _Rate()
        return token_scores(evidence, self.config, (rate.rare + 1) / (rate.tokens + 100))

    def p_value(self, test: str, score: float, case: Case, length: int) -> float | None:
        """Return the p-value of a score, None while too few scores are known; `length` counts unvouched tokens."""
        own = self._own_sample(test, case, length)
        if own is None:
            return None
        p = tail_p(own.ranked, score, SLOPES[test])
        # The second null can only forgive, and costs more to ask: only where there is something to forgive.
        return max(p, self._peer_p(test, score, case)) if p < self.config.doubt else p

    def _own_sample(self, test: str, case: Case, length: int) -> ScoreSample | None:
        for cell in _cells(case.task, case.age, length):
            found = (self._cells.get(cell) or {}).get(test)
            if found is not None and len(found) >= self.config.null_least:
                return found
        return None

    def _peer_p(self, test: str, score: float, case: Case) -> float:
        for age in (_bucket(case.age), -1):
            others = [
                samples[test]
                for (operator, bucket), samples in self._peers.items()
                if bucket == age and operator != case.operator and test in samples
            ]
            others.sort(key=lambda sample: sample.median)
            believed = sorted(value for sample in others[: len(others) // 2] for value in sample.ranked)
            if len(believed) >= self.config.null_least:
                return tail_p(believed, score, SLOPES[test], trim=len(believed) // 10)
        return 0.0

    def state(self) -> dict[str, Any]:
        """Return everything remembered as plain lists."""
        return {
            "cells": [[*key, _plain(samples)] for key, samples in self._cells.items()],
            "peers": [[*key, _plain(samples)] for key, samples in self._peers.items()],
            "rates": [[task, rate.rare, rate.tokens] for task, rate in self._rates.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        own, peers = self.config.null_scores, self.config.null_peer_scores
        self._cells.replace(((t, int(a), int(n)), _samples(s, own)) for t, a, n, s in state["cells"])
        self._peers.replace(((operator, int(age)), _samples(s, peers)) for operator, age, s in state["peers"])
        self._rates.replace((task, _Rate(rare, tokens)) for task, rare, tokens in state["rates"])


def judge(null: LikelihoodNull, case: Case, evidence: TokenEvidence) -> Judgement:
    """Judge a peer's completion: accept, weigh by its p-value, or quarantine; the reason names the strangest test.

    Each of the quarantining tests gets its share of `likelihood_alpha`. A test without a null says nothing, but for the
    rarest token and window: for these there are bounds that need none.
    """
    config = null.config
    if not config.on("likelihood"):
        return Judgement(ACCEPTED)
    scores = null.scores(case.task, evidence)
    if not scores:
        return Judgement(ACCEPTED)
    if not _finite(scores):
        return Judgement(Verdict(Action.QUARANTINE, "likelihood", "not_finite", 0.0), 0.0, scores)
    length = len(unvouched(evidence))
    asked = {test: null.p_value(test, score, case, length) for test, score in scores.items()}
    p_values = {test: p for test, p in asked.items() if p is not None}
    if not {"tail", "window"}.issubset(p_values):
        null.counters.add("likelihood", "no_null")
        p_values = theory_p(evidence) | p_values
    p = min(1.0, min(p_values.values()) * len(p_values))
    return Judgement(_verdict(config, p_values, p, _cut_short(case, evidence)), p, scores, p_values)


def _verdict(config: DefenseConfig, p_values: Mapping[str, float], p: float, cut: bool) -> Verdict:
    gates = {test: value for test, value in p_values.items() if test in QUARANTINING}
    worst = min(gates, key=lambda test: gates[test])
    if gates[worst] < config.likelihood_alpha / len(gates):
        return Verdict(Action.QUARANTINE, "likelihood", REASONS[worst], 0.0)
    if p < config.doubt:
        worst = min(p_values, key=lambda test: p_values[test])
        return Verdict(Action.WEIGH, "likelihood", REASONS[worst], max(p / config.doubt, config.least_weight))
    if cut:
        return Verdict(Action.WEIGH, "likelihood", "cut_short", config.cut_weight)
    return ACCEPTED


def _cut_short(case: Case, evidence: TokenEvidence) -> bool:
    """Whether a completion neither ended nor is near its declared cap; encoding text anew can save some tokens."""
    return not evidence.finished and 4 * len(evidence.surprise) < 3 * case.max_tokens


def _cells(task: str, age: int, length: int) -> list[tuple[str, int, int]]:
    """Return the cells that a score belongs to, from the finest to the coarsest.

    Age is given up last: the tests are standardised by length, and hold for any task in theory, but not for any age.
    """
    old, long = _bucket(age), length.bit_length()
    return [(task, old, long), (task, old, -1), ("", old, -1), ("", -1, -1)]


def _bucket(age: int) -> int:
    """Return the ages 0, 1, 2 to 3, 4 to 7 … as 0, 1, 2, 3 …"""
    return min(max(age, 0).bit_length(), 6)


def _finite(scores: Mapping[str, float]) -> bool:
    return bool(scores) and all(map(math.isfinite, scores.values()))


def _plain(samples: _Samples) -> dict[str, list[float]]:
    return {test: sample.state() for test, sample in samples.items()}


def _samples(state: Mapping[str, Sequence[float]], most: int) -> _Samples:
    return {test: ScoreSample(most, scores) for test, scores in state.items()}
