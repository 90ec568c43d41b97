"""Is the own model picking something up from its peers? The last layer looks at what came of all the others.

From time to time a node answers canary prompts. The answers are compared with those that it gave before it trained on
anything foreign: the share of right ones, and the share that shows a behaviour. A behaviour is a short run of tokens
that no verifier has confirmed, a false statement, or a long detour to a right answer. Only what peers say clearly more
often in their rewarded rows than this node does in its own is held against them: what a node learns by itself rises
too, and freezing peers would not cure it.

Evidence is a running log-likelihood ratio of a risen share against the old one that never falls below 0 (Page,
Biometrika 41, 1954). The own samples of each pass cost nothing and add to it as well, a prompt's group as one
observation; a canary run confirms. When the sum last was 0, the behaviour began to rise.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from shoal.defenses.behaviour import FALSE, LONG, Alarm, Kind, Reference, View, chernoff, log_ratio, tokens_of
from shoal.defenses.config import DefenseConfig
from shoal.defenses.verdict import Counters

LARGE = 5  # times the small rise that evidence is weighed for: ten points are seen sooner when they are looked for


@dataclass(slots=True)
class _Suspect:
    """A behaviour of peers: rows that showed it since `entered`, the totals at that time, and the evidence."""

    entered: int
    peers: float
    rewarded: float
    sampled: float
    peers_before: float
    rewarded_before: float
    sampled_before: float
    reference: int  # of the reference answers, those that showed it; -1: not counted yet
    sums: list[float]  # evidence for a small rise and for a large one
    since: int
    told: float  # evidence at the last run that did not confirm it
    lifted: int  # observations for which it still counts that peers showed it more often

    @property
    def evidence(self) -> float:
        return max(self.sums)

    def halve(self, rows: Sequence[int], at: int) -> None:
        """Forget half of what was counted."""
        self.entered = at
        self.peers, self.rewarded, self.sampled = self.peers / 2, self.rewarded / 2, self.sampled / 2
        self.peers_before = (self.peers_before + rows[0]) / 2
        self.rewarded_before = (self.rewarded_before + rows[1]) / 2
        self.sampled_before = (self.sampled_before + rows[2]) / 2


class Canary:
    """Compares a node with its former self. Passes are counted from 1; 0 is the node before its first pass."""

    def __init__(self, config: DefenseConfig, counters: Counters) -> None:
        self._config = config
        self._counters = counters
        self._suspects: dict[bytes, _Suspect] = {}
        self._reference = Reference()
        self._rows = [0, 0, 0]  # ever seen: peers' rewarded, own rewarded, own
        self._history: deque[tuple[int, int]] = deque(maxlen=config.canary_history)  # right and scored, of clean runs
        self._fall = 0.0
        self._place = [0, 0, -1]  # passes: of the last run, of the last one without a fall, of the last rows of peers

    @property
    def ready(self) -> bool:
        """Whether there is something to compare with."""
        return len(self._reference) > 0

    @property
    def watching(self) -> bool:
        """Whether own samples are worth looking at: peers have shown something that is not vouched for."""
        return bool(self._suspects)

    @property
    def wants_run(self) -> bool:
        """Whether the own samples alone are reason to ask the canary prompts out of turn."""
        least = self._config.canary_warning
        return any(s.lifted and s.evidence >= max(least, s.told + 1.0) for s in self._suspects.values())

    @property
    def insists(self) -> bool:
        """Whether only the confirmation by a run is missing for an alarm."""
        least = self._config.canary_evidence
        return any(s.lifted and s.evidence >= least for s in self._suspects.values())

    @property
    def evidence(self) -> float:
        """The most that is held against anything which peers show more often, however sure that is, in nats."""
        return max(self._fall, max((s.evidence for s in self._suspects.values() if self._lift(s) > 0.0), default=0.0))

    @property
    def clean(self) -> bool:
        """Whether nothing is rising, by a margin: the present state may be gone back to."""
        return self.evidence < self._config.canary_margin

    # -- what is seen -------------------------------------------------------------------------------------------------

    def begin(self, answers: Sequence[View]) -> None:
        """Take the answers of the node before it trains on anything foreign as the reference."""
        self._reference = Reference(answers)
        self._history.append(_right(answers))

    def peers(self, rewarded: Sequence[View], at: int) -> None:
        """Note the rewarded rows of peers that trained in a pass."""
        before = (self._rows[0], self._rows[1], self._rows[2])
        self._rows[0] += len(rewarded)
        self._place[2] = at
        for view in rewarded:
            for behaviour in self._reference.behaviours(view):
                suspect = self._suspects.get(behaviour)
                if suspect is None:
                    suspect = self._suspects[behaviour] = _Suspect(at, 0, 0, 0, *before, -1, [0.0, 0.0], at - 1, 0.0, 0)
                suspect.peers += 1
        self._forget(at)

    def own(self, groups: Sequence[Sequence[View]], at: int) -> None:
        """Note the own samples of a pass, by prompt."""
        hits: Counter[tuple[bytes, int]] = Counter()  # groups that show a behaviour, by their size
        for group in groups:
            shown: set[bytes] = set()
            for view in group:
                behaviours = self._reference.behaviours(view) & self._suspects.keys()
                shown |= behaviours
                for behaviour in behaviours:
                    self._suspects[behaviour].sampled += 1
                    self._suspects[behaviour].rewarded += bool(view.right)
            hits.update((behaviour, len(group)) for behaviour in shown)
        rows = [view for group in groups for view in group]
        self._rows[1] += sum(bool(view.right) for view in rows)
        self._rows[2] += len(rows)
        self._weigh(hits, Counter(map(len, groups)), at)

    def run(self, answers: Sequence[View], at: int) -> Alarm | None:
        """Judge one canary run: one answer to each prompt, after `at` passes. Return the alarm, if there is reason for
        one; a clean run enters the history."""
        hits: Counter[tuple[bytes, int]] = Counter()
        for view in answers:
            hits.update((behaviour, 1) for behaviour in self._reference.behaviours(view) & self._suspects.keys())
        self._weigh(hits, Counter({1: len(answers)}), at)
        alarm = self._risen(hits, len(answers)) or self._accuracy(_right(answers))
        for suspect in self._suspects.values():
            suspect.told = suspect.evidence
        self._place[0] = at
        if alarm is None and self.clean:
            self._history.append(_right(answers))
        return alarm

    def calm(self) -> None:
        """Begin anew after a roll-back: the node is what it was, and the evidence was against what it had become."""
        for suspect in self._suspects.values():
            suspect.sums, suspect.told, suspect.lifted = [0.0, 0.0], 0.0, 0
        self._fall = 0.0

    # -- evidence -----------------------------------------------------------------------------------------------------

    def _lift(self, suspect: _Suspect) -> float:
        """Return what speaks for peers' rewarded rows showing it `canary_lift` times as often as the own ones, in nats.

        That is the Chernoff bound on the chance of so many of all such rows being peers'. A node that is hardly ever
        right has few rewarded rows: its share among all samples may count for some of them, when that says more.
        """
        config, peers = self._config, suspect.peers
        foreign = self._rows[0] - suspect.peers_before
        any_row = suspect.sampled / max(1.0, self._rows[2] - suspect.sampled_before)
        rewarded = self._rows[1] - suspect.rewarded_before
        if peers < max(config.canary_rows, config.canary_rise * foreign):
            return 0.0

        def nats(prior: float) -> float:
            usual = config.canary_lift * foreign / (config.canary_lift * foreign + rewarded + prior)
            return chernoff(peers, peers + suspect.rewarded + prior * any_row, usual)

        return max(nats(0.0), nats(config.canary_prior)) if rewarded else nats(config.canary_prior)

    def _weigh(self, hits: Counter[tuple[bytes, int]], groups: Counter[int], at: int) -> None:
        """Add the evidence of one set of observations: groups by size, and those of them that show each behaviour."""
        seen = {behaviour for behaviour, _ in hits}
        for behaviour, suspect in self._suspects.items():
            if not suspect.evidence and behaviour not in seen:
                continue
            before, risen = self._shares(behaviour, suspect)
            observed = [(hits[behaviour, size], count, size) for size, count in groups.items()]
            ratios = [math.fsum(log_ratio(*counts, before, after) for counts in observed) for after in risen]
            if not suspect.evidence:
                suspect.since = at - 1
            suspect.sums = [max(0.0, held + ratio) for held, ratio in zip(suspect.sums, ratios, strict=True)]
            # What is taken over fast is soon shown as often here: that it was the peers' is not forgotten at once.
            more = self._lift(suspect) >= self._config.canary_lift_evidence
            suspect.lifted = self._config.canary_recall if more else max(0, suspect.lifted - 1)

    def _shares(self, behaviour: bytes, suspect: _Suspect) -> tuple[float, tuple[float, ...]]:
        """Return the share of the reference, its uncertainty included, and the risen ones that are held against it."""
        if suspect.reference < 0:
            suspect.reference = self._reference.count(behaviour)
        count, total = suspect.reference, len(self._reference)
        before = min(0.9, (count + 1 + 2 * math.sqrt(count)) / (total + 2))
        small, large = self._config.canary_rise, LARGE * self._config.canary_rise
        return before, (min(0.98, before + max(small, before / 4)), min(0.99, before + max(large, before)))

    def _risen(self, hits: Counter[tuple[bytes, int]], total: int) -> Alarm | None:
        config = self._config
        risen = {
            behaviour: suspect
            for behaviour, suspect in self._suspects.items()
            if suspect.evidence >= config.canary_evidence
            and hits[behaviour, 1] >= config.canary_confirm
            and suspect.lifted
        }
        if not risen:
            return None
        worst = max(risen, key=lambda behaviour: (hits[behaviour, 1], len(behaviour), behaviour))
        suspect = risen[worst]
        kind: Kind = "statements" if worst == FALSE else "length" if worst == LONG else "behaviour"
        before = suspect.reference / len(self._reference)
        since = min(other.since for other in risen.values())
        return Alarm(kind, tokens_of(worst), hits[worst, 1] / total, before, suspect.evidence, since)

    def _accuracy(self, run: tuple[int, int]) -> Alarm | None:
        """Judge the share of right answers against the trimmed history of clean runs."""
        right, scored = run
        usual = trimmed_mean([good / asked for good, asked in self._history if asked])
        if usual is None or not scored:
            return None
        before = usual - self._config.canary_wobble
        after = before - self._config.canary_fall
        if after <= 0.0:
            after = before / 2
        if before <= 0.0:
            return None  # a model that is hardly ever right cannot fall
        if not self._fall:
            self._place[1] = self._place[0]
        self._fall = max(0.0, self._fall + log_ratio(right, scored, 1, before, after))
        if self._fall < self._config.canary_evidence:
            return None
        since, fed = self._place[1:]
        if fed < since:  # nothing of peers was trained on since it began
            self._counters.add("canary", "own_doing")
            return None
        return Alarm("accuracy", (), right / scored, usual, self._fall, since)

    def _forget(self, at: int) -> None:
        """Measure what does not rise anew from time to time, and keep what is most suspect within the bound."""
        oldest = at - self._config.canary_memory
        self._suspects = {b: s for b, s in self._suspects.items() if s.evidence or s.entered > oldest}
        for suspect in self._suspects.values():
            if suspect.entered <= oldest:
                suspect.halve(self._rows, at)
        if len(self._suspects) > self._config.canary_suspects:
            ranked = sorted(self._suspects.items(), key=lambda item: (-item[1].evidence, -item[1].peers, item[0]))
            kept = self._config.canary_suspects // 2
            self._counters.add("canary", "evicted_suspect", len(ranked) - kept)
            self._suspects = dict(ranked[:kept])

    # -- state --------------------------------------------------------------------------------------------------------

    def state(self) -> list[Any]:
        """Return everything remembered as plain data."""
        suspects = [[behaviour, *astuple(suspect)] for behaviour, suspect in self._suspects.items()]
        history = [list(run) for run in self._history]
        return [self._reference.state(), list(self._rows), history, [self._fall, *self._place], suspects]

    def restore(self, state: Sequence[Any]) -> None:
        """Take over what `state` returned."""
        reference, rows, history, (self._fall, *self._place), suspects = state
        self._reference = Reference.of(reference)
        self._rows = list(rows)
        self._history.clear()
        self._history.extend((right, scored) for right, scored in history)
        self._suspects = {behaviour: _Suspect(*values) for behaviour, *values in suspects}


def trimmed_mean(values: Sequence[float]) -> float | None:
    """Return the mean without the lowest and the highest of four values or more; None of nothing."""
    if not values:
        return None
    kept = sorted(values)[1:-1] if len(values) >= 4 else values
    return math.fsum(kept) / len(kept)


def _right(answers: Iterable[View]) -> tuple[int, int]:
    """Return how many answers are right, and how many could be scored."""
    scored = [view.right for view in answers if view.right is not None]
    return sum(scored), len(scored)
