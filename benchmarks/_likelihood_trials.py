"""The stored rows of a text cell, judged: honest ones by a null of the others, planted ones by a null of all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.defenses.config import DefenseConfig
from shoal.defenses.contrast import Contrast
from shoal.defenses.likelihood import QUARANTINING, Case, LikelihoodNull, judge
from shoal.defenses.verdict import Counters

SHORT = 24
FOLDS = 8


@dataclass(frozen=True)
class Trial:
    """One judged row: what it is, how long the honest text in it is, and what came out.

    `p` has the least p-value of the tests that may quarantine ("gate"), and that of too likely text ("likely").
    """

    kind: str
    length: int
    action: str
    weight: float
    p: dict[str, float]


class Stored:
    """Evidence as it was kept."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self.surprise: Sequence[float] = row["surprise"]
        self.entropy: Sequence[float] = row["entropy"]
        self.variance: Sequence[float] = row["variance"]
        self.tail: Sequence[float] = row["tail"]
        self.rank: Sequence[int] = row["rank"]
        self.vouched = [False] * len(self.surprise)
        self.finished: bool = row["finished"]


def trials(result: Mapping[str, Any], fresh: Mapping[str, Any] | None, by_age: bool = True) -> list[Trial]:
    """Judge all rows of a cell. `fresh`: the cell of age 0, for one that looks at it again some updates later."""
    age = 0 if fresh is None else int(result["cell"].rpartition("-")[2])
    looks = [(age, _own(result))] if by_age or fresh is None else []
    looks += [(0, _own(fresh))] if fresh is not None else []
    sent = {row["own"]: row for row in result["rows"] if row["kind"] == "peer"}
    found = []
    for fold in range(FOLDS):
        null = _null(looks, leave_out=fold)
        for at, row in enumerate(_own(result)):
            if at % FOLDS == fold:
                found.append(_trial(null, "honest", sent.get(at, row), age, len(row["surprise"])))
    null = _null(looks)
    planted = [row for row in result["rows"] if row["kind"] not in ("own", "peer")]
    step = max(1, len(result["completions"]) // _count(planted))
    lengths = [len(each["ids"]) for each in result["completions"][::step]]
    seen: dict[str, int] = {}
    for row in planted:
        at = seen[row["kind"]] = seen.get(row["kind"], -1) + 1
        found.append(_trial(null, row["kind"], row, age, lengths[at]))
    return found


def _count(planted: Sequence[Mapping[str, Any]]) -> int:
    return sum(row["kind"] == planted[0]["kind"] for row in planted)


def _own(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in result["rows"] if row["kind"] == "own"]


def _null(looks: Sequence[tuple[int, Sequence[Mapping[str, Any]]]], leave_out: int = -1) -> LikelihoodNull:
    null = LikelihoodNull(DefenseConfig(), Counters())
    for age, rows in looks:
        for at, row in enumerate(rows):
            if at % FOLDS != leave_out:
                null.own(row["task"], age, Stored(row))
    return null


def _trial(null: LikelihoodNull, kind: str, row: Mapping[str, Any], age: int, length: int) -> Trial:
    found = judge(null, Case(row["task"], age, max_tokens=0), Stored(row))
    gate = min(found.p_values.get(test, 1.0) for test in QUARANTINING)
    p = {"gate": gate, "likely": found.p_values.get("likely", 1.0)}
    return Trial(kind, length, found.verdict.action.value, found.verdict.weight, p)


def contrast_weights(result: Mapping[str, Any], kind: str) -> list[float]:
    """Return the weights of all rows of a kind when they are judged as those of unknown peers of another lineage."""
    own, weights = _own(result), []
    for fold in range(FOLDS):
        memory = Contrast(DefenseConfig(), Counters())
        for at, row in enumerate(own):
            if at % FOLDS != fold:
                memory.own(Stored(row))
        begin = memory.state()
        rows = own if kind == "honest" else [row for row in result["rows"] if row["kind"] == kind]
        for at, row in enumerate(rows):
            if at % FOLDS == fold:
                memory.restore(begin)
                weights.append(memory.judge("somebody", Stored(row)).weight)
    return weights
