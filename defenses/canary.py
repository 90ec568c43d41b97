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
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shoal.defenses.config import DefenseConfig
from shoal.defenses.verdict import Counters

Kind = Literal["behaviour", "statements", "length", "accuracy"]

LONGEST_GRAM = 3  # tokens: a longer phrase is caught by its parts, and a split one by the parts that it shares
LARGE = 5  # times the small rise that evidence is weighed for: ten points are seen sooner when they are looked for
_ID_BYTES = 4
_BREAK = b"\xff\xff\xff\xff"  # between the pieces of one answer: no token has this id
_FALSE, _LONG = b"false", b"longer"  # behaviours that are no run of tokens: no run has 5 or 6 bytes


@dataclass(frozen=True, slots=True)
class View:
    """One completion as this layer sees it: right (None: unscorable), its unvouched runs of token ids without the end
    mark, and whether it states something false."""

    right: bool | None
    pieces: Sequence[Sequence[int]]
    violates: bool = False

    @property
    def length(self) -> int:
        """Number of tokens that nothing vouches for."""
        return sum(map(len, self.pieces))


@dataclass(frozen=True, slots=True)
class Alarm:
    """What has changed for the worse. `since` is the pass after which it began; `tokens` is empty but for behaviours.

    `share` is that of the canary answers now, `before` that of the reference (for accuracy the recent history).
    """

    kind: Kind
    tokens: tuple[int, ...]
    share: float
    before: float
    evidence: float
    since: int


@dataclass(slots=True)
class _Suspect:
    """A behaviour of peers: rows that showed it since `entered`, the totals at that time, and the evidence."""

    entered: int
    peers: int
    rewarded: int
    sampled: int
    peers_before: int
    rewarded_before: int
    sampled_before: int
    reference: int  # of the reference answers, those that showed it; -1: not counted yet
    sums: list[float]  # evidence for a small rise and for a large one
    since: int
    told: float  # evidence at the last run that did not confirm it

    @property
    def evidence(self) -> float:
        return max(self.sums)


class Canary:
    """Compares a node with its former self. Passes are counted from 1; 0 is the node before its first pass."""

    def __init__(self, config: DefenseConfig, counters: Counters) -> None:
        self._config = config
        self._counters = counters
        self._suspects: dict[bytes, _Suspect] = {}
        self._reference: list[View] = []
        self._encoded: list[bytes] = []
        self._long = math.inf
        self._rows = [0, 0, 0]  # ever seen: peers' rewarded, own rewarded, own
        self._history: deque[tuple[int, int]] = deque(maxlen=config.canary_history)  # right and scored, of clean runs
        self._fall = 0.0
        self._fell_since = 0

    @property
    def ready(self) -> bool:
        """Whether there is something to compare with."""
        return bool(self._reference)

    @property
    def watching(self) -> bool:
        """Whether own samples are worth looking at: peers have shown something that is not vouched for."""
        return bool(self._suspects)

    @property
    def wants_run(self) -> bool:
        """Whether the own samples alone are reason enough to ask the canary prompts now."""
        least = self._config.canary_warning
        return any(s.evidence >= max(least, s.told + 1.0) and self._lifted(s) for s in self._suspects.values())

    @property
    def evidence(self) -> float:
        """The most that is held against anything, in nats."""
        return max(self._fall, max((suspect.evidence for suspect in self._suspects.values()), default=0.0))

    @property
    def clean(self) -> bool:
        """Whether nothing is rising, by a margin: the present state may be gone back to."""
        return self.evidence < self._config.canary_margin

    # -- what is seen -------------------------------------------------------------------------------------------------

    def begin(self, answers: Sequence[View]) -> None:
        """Take the answers of the node before it trains on anything foreign as the reference."""
        self._reference = list(answers)
        self._encoded = [_encode(answer.pieces) for answer in answers]
        lengths = sorted(answer.length for answer in answers if answer.right) or [0]
        # A quarter above the longest twentieth of the right answers; two tokens more where those have no detour at all.
        self._long = 1.25 * lengths[int(0.95 * (len(lengths) - 1))] + 2
        self._history.append(_right(answers))

    def peers(self, rewarded: Sequence[View], at: int) -> None:
        """Note the rewarded rows of peers that trained in a pass."""
        before = (self._rows[0], self._rows[1], self._rows[2])
        self._rows[0] += len(rewarded)
        for view in rewarded:
            for feature in self._features(view):
                suspect = self._suspects.get(feature)
                if suspect is None:
                    suspect = self._suspects[feature] = _Suspect(at, 0, 0, 0, *before, -1, [0.0, 0.0], at - 1, 0.0)
                suspect.peers += 1
        self._forget(at)

    def own(self, groups: Sequence[Sequence[View]], at: int) -> None:
        """Note the own samples of a pass, by prompt."""
        hits: Counter[tuple[bytes, int]] = Counter()  # groups that show a behaviour, by their size
        for group in groups:
            shown: set[bytes] = set()
            for view in group:
                features = self._features(view) & self._suspects.keys()
                shown |= features
                for feature in features:
                    self._suspects[feature].sampled += 1
                    self._suspects[feature].rewarded += bool(view.right)
            hits.update((feature, len(group)) for feature in shown)
        rows = [view for group in groups for view in group]
        self._rows[1] += sum(bool(view.right) for view in rows)
        self._rows[2] += len(rows)
        self._weigh(hits, Counter(map(len, groups)), at)

    def run(self, answers: Sequence[View], at: int) -> Alarm | None:
        """Judge one canary run: one answer to each prompt, in pass `at`. Return the alarm, if there is reason for one.

        A clean run enters the history. Without any row of peers there is no alarm: nothing of it would be their work.
        """
        hits: Counter[tuple[bytes, int]] = Counter()
        for view in answers:
            hits.update((feature, 1) for feature in self._features(view) & self._suspects.keys())
        self._weigh(hits, Counter({1: len(answers)}), at)
        alarm = self._behaviour(hits, len(answers)) or self._accuracy(_right(answers), at)
        for suspect in self._suspects.values():
            suspect.told = suspect.evidence
        if alarm is not None and not self._rows[0]:
            self._counters.add("canary", "own_doing")
            alarm = None
        if alarm is None and self.clean:
            self._history.append(_right(answers))
        return alarm

    def calm(self) -> None:
        """Begin anew after a roll-back: the node is what it was, and the evidence was against what it had become."""
        for suspect in self._suspects.values():
            suspect.sums, suspect.told = [0.0, 0.0], 0.0
        self._fall = 0.0

    # -- evidence -----------------------------------------------------------------------------------------------------

    def _features(self, view: View) -> set[bytes]:
        found = _grams(view.pieces)
        if view.violates:
            found.add(_FALSE)
        if view.right and view.length > self._long:
            found.add(_LONG)
        return found

    def _lifted(self, suspect: _Suspect) -> bool:
        """Whether peers' rewarded rows show it clearly more often than the own ones do.

        A node that is hardly ever right has few rewarded rows: its share among all samples counts for a few of them.
        """
        peers = suspect.peers / max(1, self._rows[0] - suspect.peers_before)
        any_row = suspect.sampled / max(1, self._rows[2] - suspect.sampled_before)
        prior = self._config.canary_prior
        rewarded = self._rows[1] - suspect.rewarded_before
        own = (suspect.rewarded + prior * any_row) / (rewarded + prior)
        enough = suspect.peers >= self._config.canary_rows and peers >= self._config.canary_rise
        return enough and peers >= self._config.canary_lift * own

    def _weigh(self, hits: Counter[tuple[bytes, int]], groups: Counter[int], at: int) -> None:
        """Add the evidence of one set of observations: groups by size, and those of them that show each behaviour."""
        seen = {feature for feature, _ in hits}
        for feature, suspect in self._suspects.items():
            if not suspect.evidence and feature not in seen:
                continue
            before, risen = self._shares(feature, suspect)
            observed = [(hits[feature, size], count, size) for size, count in groups.items()]
            ratios = [math.fsum(log_ratio(*counts, before, after) for counts in observed) for after in risen]
            lifted = self._lifted(suspect)
            if not suspect.evidence:
                suspect.since = at - 1
            suspect.sums = [
                max(0.0, held + ratio) if lifted else max(0.0, held + min(0.0, ratio))
                for held, ratio in zip(suspect.sums, ratios, strict=True)
            ]

    def _shares(self, feature: bytes, suspect: _Suspect) -> tuple[float, tuple[float, ...]]:
        """Return the share of the reference, its uncertainty included, and the risen ones that are held against it."""
        if suspect.reference < 0:
            suspect.reference = self._in_reference(feature)
        count, total = suspect.reference, len(self._reference)
        before = min(0.9, (count + 1 + 2 * math.sqrt(count)) / (total + 2))
        small, large = self._config.canary_rise, LARGE * self._config.canary_rise
        return before, (min(0.98, before + max(small, before / 4)), min(0.99, before + max(large, before)))

    def _in_reference(self, feature: bytes) -> int:
        if feature == _FALSE:
            return sum(view.violates for view in self._reference)
        if feature == _LONG:
            return sum(bool(view.right) and view.length > self._long for view in self._reference)
        return sum(_contains(encoded, feature) for encoded in self._encoded)

    def _behaviour(self, hits: Counter[tuple[bytes, int]], total: int) -> Alarm | None:
        config = self._config
        risen = {
            feature: suspect
            for feature, suspect in self._suspects.items()
            if suspect.evidence >= config.canary_evidence
            and hits[feature, 1] >= config.canary_confirm
            and self._lifted(suspect)
        }
        if not risen:
            return None
        worst = max(risen, key=lambda feature: (hits[feature, 1], len(feature), feature))
        suspect = risen[worst]
        kind: Kind = "statements" if worst == _FALSE else "length" if worst == _LONG else "behaviour"
        tokens = () if kind != "behaviour" else tuple(array("I", worst))
        before = suspect.reference / len(self._reference)
        since = min(other.since for other in risen.values())
        return Alarm(kind, tokens, hits[worst, 1] / total, before, suspect.evidence, since)

    def _accuracy(self, run: tuple[int, int], at: int) -> Alarm | None:
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
            self._fell_since = at - 1
        self._fall = max(0.0, self._fall + log_ratio(right, scored, 1, before, after))
        if self._fall < self._config.canary_evidence:
            return None
        return Alarm("accuracy", (), right / scored, usual, self._fall, self._fell_since)

    def _forget(self, at: int) -> None:
        """Measure what does not rise anew from time to time, and keep what is most suspect within the bound."""
        oldest = at - self._config.canary_memory
        self._suspects = {f: s for f, s in self._suspects.items() if s.evidence or s.entered > oldest}
        if len(self._suspects) > self._config.canary_suspects:
            ranked = sorted(self._suspects.items(), key=lambda item: (-item[1].evidence, -item[1].peers, item[0]))
            kept = self._config.canary_suspects // 2
            self._counters.add("canary", "evicted_suspect", len(ranked) - kept)
            self._suspects = dict(ranked[:kept])

    # -- state --------------------------------------------------------------------------------------------------------

    def state(self) -> list[Any]:
        """Return everything remembered as plain data."""
        reference = [[view.right, [list(piece) for piece in view.pieces], view.violates] for view in self._reference]
        suspects = [[feature, *_values(suspect)] for feature, suspect in self._suspects.items()]
        history = [list(run) for run in self._history]
        return [reference, self._long, self._rows, history, [self._fall, self._fell_since], suspects]

    def restore(self, state: Sequence[Any]) -> None:
        """Take over what `state` returned."""
        reference, self._long, rows, history, (self._fall, self._fell_since), suspects = state
        self._reference = [View(right, pieces, violates) for right, pieces, violates in reference]
        self._encoded = [_encode(view.pieces) for view in self._reference]
        self._rows = list(rows)
        self._history.clear()
        self._history.extend((right, scored) for right, scored in history)
        self._suspects = {feature: _Suspect(*values) for feature, *values in suspects}


def log_ratio(hits: int, groups: int, size: int, before: float, after: float) -> float:
    """Return the log-likelihood ratio, in nats, of a share `after` against `before` of single completions.

    `hits` of `groups` groups of `size` completions show the behaviour at least once. A group counts as one observation:
    its completions answer one prompt and are no independent draws.
    """
    old, new = 1.0 - (1.0 - before) ** size, 1.0 - (1.0 - after) ** size
    return hits * math.log(new / old) + (groups - hits) * math.log((1.0 - new) / (1.0 - old))


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


def _grams(pieces: Sequence[Sequence[int]]) -> set[bytes]:
    """Return all runs of up to LONGEST_GRAM tokens, as the bytes of their ids."""
    found: set[bytes] = set()
    for piece in pieces:
        raw = array("I", piece).tobytes()
        for width in range(_ID_BYTES, _ID_BYTES * LONGEST_GRAM + 1, _ID_BYTES):
            found.update(raw[start : start + width] for start in range(0, len(raw) - width + 1, _ID_BYTES))
    return found


def _encode(pieces: Sequence[Sequence[int]]) -> bytes:
    return _BREAK.join(array("I", piece).tobytes() for piece in pieces)


def _contains(encoded: bytes, gram: bytes) -> bool:
    """Whether a run of tokens stands in an encoded answer, at the boundary of an id."""
    at = encoded.find(gram)
    while at > 0 and at % _ID_BYTES:
        at = encoded.find(gram, at + 1)
    return at >= 0


def _values(suspect: _Suspect) -> list[Any]:
    return [getattr(suspect, name) for name in _Suspect.__slots__]
