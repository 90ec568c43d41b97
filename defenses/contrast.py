"""What likelihood can say of a peer whose model is of another lineage (layer 9): weights, and nothing graver.

The own model finds all such text somewhat unlikely, so absolute tests mean nothing. Three comparisons are left: a part
of a completion with the rest of it, the completion with the sender's public base model (where the caller has one at
hand), and what a peer sends now with what it sent before.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from statistics import median
from typing import Any

from shoal.defenses.bounded import BoundedMap
from shoal.defenses.config import DefenseConfig
from shoal.defenses.conformal import ScoreSample, tail_p
from shoal.defenses.token_scores import WINDOWS, TokenEvidence, theory_p, unvouched
from shoal.defenses.verdict import ACCEPTED, Action, Counters, Verdict

SPREAD_FLOOR = 0.5  # nats: a text that is nearly certain throughout has a spread of 0, and any word would stand out
SLOPE = 0.5  # the least scale of the tail of contrast scores; surprise falls off like an exponential variable
LARGEST_STEP = 3.0  # deviations: one odd completion is no change
SLACK = 0.5  # deviations: half of the smallest shift that is looked for (Page 1954)


def contrast(evidence: TokenEvidence) -> float | None:
    """Return how far the strangest window stands out of its own completion, None for one too short to compare within.

    The surprise of each unvouched token less the completion's median, summed over a window, in units of the robust
    spread (1.4826 times the median distance from the median) and the root of the window's length. A window is at most
    half of the text.
    """
    values = [evidence.surprise[at] for at in unvouched(evidence)]
    if len(values) < 2 * WINDOWS[0]:
        return None
    middle = median(values)
    spread = SPREAD_FLOOR + 1.4826 * median(abs(value - middle) for value in values)
    sums = [0.0, *accumulate(value - middle for value in values)]
    return max(
        (sums[end] - sums[end - width]) / (spread * math.sqrt(width))
        for width in WINDOWS
        if 2 * width <= len(values)
        for end in range(width, len(sums))
    )


def peak(evidence: TokenEvidence) -> float | None:
    """Return the highest mean surprise of four unvouched tokens in a row, in nats; None where there is no token."""
    values = [evidence.surprise[at] for at in unvouched(evidence)]
    width = min(WINDOWS[0], len(values))
    sums = [0.0, *accumulate(values)]
    return max((sums[end] - sums[end - width]) / width for end in range(width, len(sums))) if width else None


@dataclass(frozen=True, slots=True)
class Course:
    """A peer's usual peak (mean and variance of the first completions, then slowly following) and Page's sum."""

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0
    above: float = 0.0

    def after(self, value: float, warm: int, alarm: float) -> "Course":
        """Return the course one completion later; `warm` completions make the first mean, `alarm` bounds the sum."""
        count = self.count + 1
        if self.count < warm:
            mean = self.mean + (value - self.mean) / count
            variance = self.variance + ((value - self.mean) * (value - mean) - self.variance) / count
            return Course(count, mean, variance)
        deviation = math.sqrt(max(self.variance, SPREAD_FLOOR**2))
        step = max(-LARGEST_STEP, min((value - self.mean) / deviation, LARGEST_STEP)) - SLACK
        # Above twice the alarm it does not grow: who stops can be back within as many completions.
        above = min(max(0.0, self.above + step), 2 * alarm)
        if above > alarm / 2:
            return replace(self, above=above)  # what may be a change must not become the custom
        rate = 1 / (4 * warm)
        mean = self.mean + rate * (value - self.mean)
        variance = (1 - rate) * (self.variance + rate * (value - self.mean) ** 2)
        return Course(count, mean, variance, above)


class Contrast:
    """Weighs completions of peers of another lineage."""

    def __init__(self, config: DefenseConfig, counters: Counters) -> None:
        self._config = config
        self._own = ScoreSample(config.null_scores)
        evicted = partial(counters.add, "likelihood", "evicted_contrast")
        self._peers: BoundedMap[str, ScoreSample] = BoundedMap(config.contrast_peers, evicted)
        self._courses: BoundedMap[str, Course] = BoundedMap(config.contrast_peers, evicted)

    def own(self, evidence: TokenEvidence) -> None:
        """Learn from an own rewarded completion how far a part of honest text stands out."""
        score = contrast(evidence)
        if score is not None and math.isfinite(score):
            self._own.add(score)

    def judge(self, operator: str, evidence: TokenEvidence, anchor: TokenEvidence | None = None) -> Verdict:
        """Return ACCEPTED or a weight for a rewarded completion, and remember it.

        `anchor` is the evidence of the same text under the sender's public base model: what that finds plausible is no
        doubt, whatever the own model says.
        """
        if not self._config.on("likelihood"):
            return ACCEPTED
        highest = peak(evidence)
        if highest is None:
            return ACCEPTED
        score = contrast(evidence)
        if not math.isfinite(highest):
            return self._weigh("not_finite", 0.0)
        found = [self._weigh("contrast", self._p_value(operator, score) / self._config.doubt)]
        if anchor is not None and unvouched(anchor):
            p = min(1.0, 2 * min(theory_p(anchor).values()))
            # The sender has been tuned since: only what its base finds all but impossible is held against it.
            found = [] if p >= self._config.doubt else found
            found.append(self._weigh("unlike_its_base", p / self._config.anchor_alpha))
        found.append(self._weigh("changed", self._unchanged(operator, highest)))
        if score is not None:
            sample = self._peers.get(operator) or ScoreSample(self._config.null_peer_scores)
            sample.add(score)
            self._peers.put(operator, sample)
        return min(found, key=lambda verdict: verdict.weight)

    def _weigh(self, reason: str, weight: float) -> Verdict:
        if weight >= 1.0:
            return ACCEPTED
        return Verdict(Action.WEIGH, "likelihood", reason, max(weight, self._config.least_weight))

    def _p_value(self, operator: str, score: float | None) -> float:
        """Return the p-value among scores of the less strange half of the other peers, or else among own ones."""
        if score is None:
            return 1.0
        others = [sample for name, sample in self._peers.items() if name != operator]
        others.sort(key=lambda sample: sample.median)
        believed = sorted(value for sample in others[: len(others) // 2] for value in sample.ranked)
        if len(believed) >= self._config.null_least:
            return tail_p(believed, score, SLOPE, trim=len(believed) // 10)
        return tail_p(self._own.ranked, score, SLOPE) if len(self._own) >= self._config.null_least else 1.0

    def _unchanged(self, operator: str, value: float) -> float:
        """Note the peak of a completion and return the weight that a change of the peer leaves."""
        alarm = self._config.change_alarm
        course = (self._courses.get(operator) or Course()).after(value, self._config.change_warm, alarm)
        self._courses.put(operator, course)
        return 1.0 if course.above < alarm else alarm / course.above / 2

    def state(self) -> dict[str, Any]:
        """Return everything remembered as plain lists."""
        return {
            "own": self._own.state(),
            "peers": [[name, sample.state()] for name, sample in self._peers.items()],
            "courses": [[name, c.count, c.mean, c.variance, c.above] for name, c in self._courses.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self._own = ScoreSample(self._config.null_scores, state["own"])
        self._peers.replace((name, self._sample(scores)) for name, scores in state["peers"])
        self._courses.replace((name, Course(int(n), *map(float, rest))) for name, n, *rest in state["courses"])

    def _sample(self, scores: Sequence[float]) -> ScoreSample:
        return ScoreSample(self._config.null_peer_scores, scores)
