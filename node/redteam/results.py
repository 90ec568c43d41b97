"""What the cells of a matrix come to: shares with their bounds, and whether a target is met."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from shoal.node.redteam.cells import HONEST, NO_ATTACK, Cell
from shoal.node.report.intervals import Interval, wilson
from shoal.protocol.errors import EnvironmentFault

Result = dict[str, Any]
MOST_SUCCESS = 0.01  # of honest nodes' answers, over the swarm without attackers
MOST_REJECTS = 0.01  # of honest peers' completions
MOST_SCREENING = 0.05  # of a step
MOST_LOST = 0.02  # of held-out accuracy
SUCCEEDS = 0.05  # an attack that shows in fewer answers when nothing is done against it proves nothing
TRAINING = ("sample", "grade", "update")  # phases of a pass; every other one is screening


class Verdict(StrEnum):
    """Whether a target was met; empty where cells are missing."""

    MET = "met"
    MISSED = "missed"
    UNKNOWN = "not measurable"
    MISSING = ""


def at_most(found: Interval | None, limit: float) -> Verdict:
    """Return whether a share lies at or below a limit: met only when its upper bound does."""
    if found is None:
        return Verdict.MISSING
    if found.mean > limit:
        return Verdict.MISSED
    return Verdict.MET if found.high <= limit else Verdict.UNKNOWN


@dataclass(frozen=True, slots=True)
class Point:
    """The share at one round."""

    round: int
    share: Interval


@dataclass(frozen=True, slots=True)
class Change:
    """A mean difference over seeds with its standard error (None for one seed)."""

    mean: float
    error: float | None
    seeds: int


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of rows: how many, how many of them kept, their mean weight, and what was refused by reason."""

    rows: int
    kept: int
    weight: float
    refused: Mapping[str, int]

    @property
    def rejected(self) -> Interval | None:
        """Return the share that was refused; None without rows."""
        return wilson(self.rows - self.kept, self.rows) if self.rows else None


class Results:
    """The results of one folder, and the cells that were asked for."""

    def __init__(self, results: Sequence[Result], planned: Sequence[Cell]) -> None:
        self.results = results
        self.planned = planned

    def of(self, **wanted: Any) -> dict[int, Result]:
        """Return the results whose cell has these values, by seed."""
        return {
            result["cell"]["seed"]: result
            for result in self.results
            if all(result["cell"][name] == value for name, value in wanted.items())
        }

    @property
    def missing(self) -> list[Cell]:
        """Return the cells that were not run."""
        there = {Cell(**result["cell"]) for result in self.results}
        return [cell for cell in self.planned if cell not in there]

    def narrowed(self, **wanted: Any) -> "Results":
        """Return only what has these values, e.g. one setting or one model."""
        found = [one for one in self.results if all(one["cell"][name] == value for name, value in wanted.items())]
        planned = [cell for cell in self.planned if all(getattr(cell, name) == value for name, value in wanted.items())]
        return Results(found, planned)

    def values(self, name: str) -> list[Any]:
        """Return the values that a field of the cells takes, each once, in the order of the plan."""
        planned = [getattr(cell, name) for cell in self.planned]
        return list(dict.fromkeys([*planned, *(result["cell"][name] for result in self.results)]))


def read_results(folder: Path, planned: Sequence[Cell]) -> Results:
    """Return the results of the planned cells that a folder holds; raise `EnvironmentFault` for a damaged file."""
    found: list[Result] = []
    for cell in planned:
        path = folder / f"{cell.name}.json"
        try:
            result = json.loads(path.read_bytes())
            Cell(**result["cell"])
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError):
            raise EnvironmentFault(f"{path} is damaged: remove it, and the cell is run again") from None
        found.append(result)
    return Results(found, planned)


def shown(results: Iterable[Result], attack: str) -> list[Point]:
    """Return the share of honest nodes' answers that show an attack, by round, pooled over nodes and seeds."""
    hits, items = Counter[int](), Counter[int]()
    for result in results:
        for at, found, asked in result.get("shown", {}).get(attack, ()):
            hits[at] += found if asked else 0
            items[at] += asked
    return [Point(at, wilson(hits[at], items[at])) for at in sorted(items) if items[at]]


def final(results: Iterable[Result], attack: str) -> Interval | None:
    """Return that share at the end; None where nothing was measured."""
    points = shown(results, attack)
    return points[-1].share if points else None


@dataclass(frozen=True, slots=True)
class Success:
    """How an attack fared: without defences, with all of them, and its behaviour in swarms without attackers."""

    off: Interval | None
    full: Interval | None
    control_off: Interval | None
    control: Interval | None

    @property
    def verdict(self) -> Verdict:
        """Return whether it shows in at most 1 % more of the answers than without attackers.

        An attack that does not succeed where nothing is done against it proves nothing about what is.
        """
        if self.off is None or self.full is None or self.control is None:
            return Verdict.MISSING
        if self.off.low - (self.control_off or self.control).mean < SUCCEEDS:
            return Verdict.UNKNOWN
        return at_most(self.full, min(1.0, MOST_SUCCESS + self.control.mean))


def success(results: Results, attack: str, share: int) -> Success:
    """Return how an attack fared at a share, in results of one setting."""
    control = 8 if share == 8 else 0
    off, full = (results.of(attack=attack, share=share, defenses=kind).values() for kind in ("off", "full"))
    controls = (results.of(attack=NO_ATTACK, share=control, defenses=kind).values() for kind in ("off", "full"))
    return Success(final(off, attack), final(full, attack), *(final(found, attack) for found in controls))


def accuracy(result: Result, nodes: Iterable[str]) -> float | None:
    """Return the mean final accuracy over the given nodes; None when one was not evaluated."""
    found = [result["accuracy"].get(node) for node in nodes]
    return None if not found or any(not curve for curve in found) else fmean(curve[-1][1] for curve in found if curve)


def change(ours: Mapping[int, Result], theirs: Mapping[int, Result]) -> Change | None:
    """Return the mean difference in final accuracy on the same nodes, seed by seed; None without a pair."""
    differences: list[float] = []
    for seed in sorted(set(ours) & set(theirs)):
        nodes = sorted(set(ours[seed]["accuracy"]) & set(theirs[seed]["accuracy"]))
        one, other = accuracy(ours[seed], nodes), accuracy(theirs[seed], nodes)
        if one is not None and other is not None:
            differences.append(one - other)
    if not differences:
        return None
    error = stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else None
    return Change(fmean(differences), error, len(differences))


def fate(results: Iterable[Result], sender: str = HONEST, *, rewarded: bool = False, rare: bool = False) -> Fate:
    """Return what became of the rows of honest or attacking senders, of the rewarded or rare ones alone if asked."""
    kept, weight, refused = 0, 0.0, Counter[str]()
    for result in results:
        for who, is_rewarded, is_rare, outcome, count, weighed in result.get("rows", ()):
            if who != sender or (rewarded and not is_rewarded) or (rare and not is_rare):
                continue
            if outcome.startswith(("reject ", "quarantine ")):
                refused[outcome.partition(" ")[2]] += count
            else:
                kept += count
                weight += weighed
    return Fate(kept + refused.total(), kept, weight / kept if kept else 0.0, dict(refused.most_common()))


def by_layer(counts: Mapping[str, int]) -> dict[str, int]:
    """Return counts by "layer/reason" summed by layer, most frequent first."""
    layers = Counter[str]()
    for name, count in counts.items():
        layers[name.partition("/")[0]] += count
    return dict(layers.most_common())


def screening(results: Iterable[Result]) -> float | None:
    """Return the share of a pass's wall time that screening takes; None where nothing was timed."""
    spent: dict[bool, float] = defaultdict(float)
    for result in results:
        for phase, found in result.get("timing", {}).items():
            spent[phase in TRAINING] += found["seconds"]
    total = spent[True] + spent[False]
    return spent[False] / total if total else None


def added(full: Iterable[Result], without: Iterable[Result]) -> float | None:
    """Return the share of a step by which it would be shorter with nothing but training, from the middle passes.

    `without` are swarms without the appraisal: there the update itself makes the pass that it else takes over from it.
    """
    ours = [sum(found["p50"] for found in result["timing"].values()) for result in full]
    bare = [sum(result["timing"][name]["p50"] for name in TRAINING if name in result["timing"]) for result in without]
    return 1.0 - fmean(bare) / fmean(ours) if ours and bare and fmean(ours) else None
