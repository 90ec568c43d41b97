"""Folding a run's events into figures: curves, totals, and accuracies at the start and at the end."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from shoal.defenses.verdict import LAYERS
from shoal.node.report.intervals import Interval, wilson
from shoal.node.report.runlog import Event

Curve = tuple[tuple[int, float], ...]

# Counters that say "this rollout may be used"; of the gate's many counters only refusals are shown as such.
ACCEPTED = ("accept", "screen/accepted")
# What defences count besides refusals: their own memory's bounds, and facts about a peer that refuse nothing.
NOTED = {
    "late_original",
    "shared_account",
    "claim_differs",
    "muted",
    "no_null",
    "flagged",
    "refused_operator",
    "start_gate",
}
OWN_MODELS = ("canary", "judge")  # what these count is about a model of one's own; but for rows, it refuses nobody


def mean_curve(curves: Iterable[Curve]) -> Curve:
    """Return the mean at each round over the curves that have a point there."""
    values: dict[int, list[float]] = defaultdict(list)
    for curve in curves:
        for round_, value in curve:
            values[round_].append(value)
    return tuple((round_, fmean(values[round_])) for round_ in sorted(values))


def curve(events: Iterable[Event], key: str) -> Curve:
    """Return the curve of `key` by round; several events of one round count as their mean, empty values not at all."""
    return mean_curve(((event["round"], event[key]),) for event in events if event.get(key) is not None)


def totals(events: Iterable[Event], key: str) -> Counter[str]:
    """Return the sum of the counters that events carry under `key`."""
    total: Counter[str] = Counter()
    for event in events:
        total.update(event.get(key) or {})
    return total


def is_refusal(name: str) -> bool:
    """Return True when a counter, named layer/reason, counts what a defence turned away."""
    layer, _, reason = name.partition("/")
    if layer in OWN_MODELS:
        return reason.endswith("_row")
    return layer in LAYERS and not _refuses_nothing(reason)


def _refuses_nothing(reason: str) -> bool:
    """Return True for counts that refuse nothing anew: notes, evictions, and what grew too old while it was kept."""
    return reason in NOTED or reason.startswith("evicted") or reason.endswith(("_pooled", "_held", "_weighed"))


def histogram(events: Iterable[Event], key: str) -> dict[int, int]:
    """Return a histogram over whole numbers, in their order (JSON wrote them as text)."""
    counts = totals(events, key)
    return {int(value): counts[value] for value in sorted(counts, key=int)}


def ends(evals: Iterable[Event], last_round: int | None = None) -> tuple[list[Event], list[Event]]:
    """Return each node's evaluation at round 0, and its last one after that (up to `last_round`)."""
    first: dict[int, Event] = {}
    last: dict[int, Event] = {}
    for event in evals:
        if event["round"] == 0:
            first[event["node"]] = event
        elif last_round is None or event["round"] <= last_round:
            last[event["node"]] = event
    return [first[node] for node in sorted(first)], [last[node] for node in sorted(last)]


def pooled(evals: Sequence[Event]) -> Interval | None:
    """Return the accuracy over all items of all given evaluations, with its interval; None without items."""
    items = sum(event["items"] for event in evals)
    return wilson(sum(event["accuracy"] * event["items"] for event in evals), items) if items else None


def by_task(evals: Iterable[Event]) -> dict[str, float]:
    """Return the mean accuracy on each task."""
    values: dict[str, list[float]] = defaultdict(list)
    for event in evals:
        for task, accuracy in (event.get("by_task") or {}).items():
            values[task].append(accuracy)
    return {task: fmean(found) for task, found in values.items()}


def on_other_tasks(evals: Iterable[Event], skills: Mapping[int, Sequence[str]]) -> float | None:
    """Return the mean accuracy on tasks that the evaluated node had no skill in; None where no node has a skill."""
    found = [
        accuracy
        for event in evals
        for task, accuracy in (event.get("by_task") or {}).items()
        if (own := skills.get(event["node"])) and task not in own and task.rpartition("/")[2] not in own
    ]
    return fmean(found) if found else None
