"""What a node reports of a pass, as plain data: one line of `metrics.jsonl` each.

Only what follows from the seed belongs in an event; wall times go into timings.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.node.mix import Mixed
from shoal.node.report.figures import is_refusal
from shoal.node.sets import OwnSet, PeerSet
from shoal.node.stopwatch import Stopwatch
from shoal.protocol.identity import short
from shoal.trainer.step import StepReport
from shoal.trainer.tasks.base import Prompt

Event = dict[str, Any]
DIGITS = 6  # of a float in an event: more would only blow up the file
SHOWN_CHARS = 400  # of a prompt or completion in a sample
SHOWN = 2  # samples of either kind in one report


@dataclass(frozen=True, slots=True)
class RoundResult:
    """Everything that one pass brought forth; `counts` are all counters' news since the node's last pass.

    `alarm` is what the canary found and did before anything was sampled; the pass began with the weights it left.
    """

    round: int
    passes: int
    own: Sequence[OwnSet]
    peers: Sequence[PeerSet]
    mixed: Mixed
    report: StepReport
    watch: Stopwatch
    counts: Mapping[str, int]
    alarm: Mapping[str, Any] | None = None


def number(value: float | None) -> float | None:
    """Round for the record; None for what is missing or not finite (JSON knows neither)."""
    return None if value is None or not math.isfinite(value) else round(value, DIGITS)


def mean_reward(own: Sequence[OwnSet]) -> float | None:
    """Return the mean reward of the own completions, unscorable ones left out; None when there are none."""
    rewards = [reward for own_set in own for reward in own_set.rewards if not math.isnan(reward)]
    return math.fsum(rewards) / len(rewards) if rewards else None


def gauge(report: StepReport) -> dict[str, float]:
    """Return how far the sampler's log-probs lay from the trainer's, by measure; empty when nothing was measured."""
    found = report.mismatch
    if found is None:
        return {}
    return {
        "mean": found.mean,
        "max": found.largest,
        "kl": found.kl,
        "off": found.off,
        "broken": float(found.broken),
        "capped": report.capped,
    }


def step_event(result: RoundResult, time: float) -> Event:
    """Return the record of one pass that ended at `time` (virtual seconds)."""
    report, rows = result.report, result.mixed.rows
    foreign = [row for row in rows if not row.own]
    return {
        "event": "step",
        "round": result.round,
        "pass": result.passes,
        "time": number(time),
        "version": report.version,
        "reward": number(mean_reward(result.own)),
        "loss": number(report.loss),
        "clip_fraction": number(report.clip_fraction),
        "entropy": number(report.entropy),
        "grad_norm": number(report.grad_norm),
        "mismatch": {name: number(value) for name, value in gauge(report).items()},
        "tokens": sum(len(completion.ids) for own_set in result.own for completion in own_set.completions),
        "own_sets": result.mixed.own_sets,
        "peer_sets": result.mixed.peer_sets,
        "own_rows": len(rows) - len(foreign),
        "peer_rows": report.counts.get("trained_peer_rows", 0),
        "uniform_sets": sum(own_set.uniform for own_set in result.own),
        "shortfall": result.counts.get("choice/shortfall", 0),
        "signal": report.signal,
        "note": report.reason,
        "ages": histogram(row.age for row in foreign),
        "lags": histogram(row.lag for row in foreign),
    } | split_counts(result.counts)


def alarm_events(result: RoundResult) -> list[Event]:
    """Return the record of the canary's alarm in this pass, if there was one."""
    if result.alarm is None:
        return []
    rounded = {name: number(value) if isinstance(value, float) else value for name, value in result.alarm.items()}
    return [{"event": "alarm", "round": result.round} | rounded]


def split_counts(counts: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Split counters by "layer/reason" into verdicts on what peers sent ("accept" or the reason), and all the rest."""
    verdicts: dict[str, int] = {}
    rest: dict[str, int] = {}
    for name, count in sorted(counts.items()):
        if name == "screen/accepted":
            verdicts["accept"] = count
        elif is_refusal(name):
            verdicts[name] = count
        else:
            rest[name] = count
    return {"verdicts": verdicts, "counts": rest}


def histogram(values: Iterable[int]) -> dict[str, int]:
    """Return counts by value, as text keys in order of value."""
    return {str(value): count for value, count in sorted(Counter(values).items())}


def sample_events(result: RoundResult) -> list[Event]:
    """Return a few own completions and a few of peers, with what became of them."""
    events: list[Event] = []
    for own_set in result.own[:SHOWN]:
        completion, reward = own_set.completions[0], own_set.rewards[0]
        events.append(_sample(result.round, "own", own_set.prompt, completion.text) | {"reward": number(reward)})
    for peer in result.peers[:SHOWN]:
        best = max(peer.completions, key=lambda c: (c.reward, -c.row))
        source = short(peer.pointer.key)
        events.append(_sample(result.round, source, peer.prompt, best.text) | {"reward": number(best.reward)})
    return events


def _sample(round: int, source: str, prompt: Prompt, text: str) -> Event:
    return {
        "event": "sample",
        "round": round,
        "source": source,
        "task": prompt.task,
        "prompt": prompt.text[-SHOWN_CHARS:],
        "completion": text[:SHOWN_CHARS],
        "verdict": "accept",
    }
