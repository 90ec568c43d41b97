"""The result in words: what was measured, whichever way it went."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from shoal.node.report.intervals import Interval, span

OTHERS = {
    "isolated": "the same nodes isolated",
    "isolated_total": "isolated nodes that each sampled as much as the whole swarm",
}


class Relation(StrEnum):
    """How one accuracy lies to another; a difference counts only where the 95 % intervals are apart."""

    HIGHER = "higher"
    LOWER = "lower"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison: with what (an arm, or "start"), how it came out, and the sentence that says so."""

    against: str
    relation: Relation
    text: str


def relation(ours: Interval, theirs: Interval) -> Relation:
    """Return how `ours` lies to `theirs`."""
    if ours.overlaps(theirs):
        return Relation.UNCLEAR
    return Relation.HIGHER if ours.mean > theirs.mean else Relation.LOWER


def possessive(who: str) -> str:
    """Return the genitive of a name, e.g. the swarm’s, the isolated nodes’."""
    return f"{who}’" if who.endswith("s") else f"{who}’s"


def learned(before: Interval, after: Interval, who: str = "The swarm") -> Finding:
    """Return whether held-out accuracy rose from the start to the end."""
    found = relation(after, before)
    verb = {
        Relation.HIGHER: "rose from",
        Relation.LOWER: "fell from",
        Relation.UNCLEAR: "shows no clear change: it was",
    }[found]
    join = "and is" if found is Relation.UNCLEAR else "to"
    return Finding("start", found, f"{possessive(who)} held-out accuracy {verb} {span(before)} {join} {span(after)}.")


@dataclass(frozen=True, slots=True)
class Pair:
    """The swarm beside one control, both evaluated at the same round; `at` names it when it is not the run's last."""

    arm: str
    swarm: Interval
    other: Interval
    at: int | None = None


def beside(pair: Pair) -> Finding:
    """Return how the swarm ended beside one control."""
    found = relation(pair.swarm, pair.other)
    figures = f"{OTHERS[pair.arm]} ended at {span(pair.other)}, the swarm at {span(pair.swarm)}"
    if pair.at is not None:
        figures = f"at round {pair.at}, the last that both have reached, {figures.replace('ended', 'were')}"
    points = f"{abs(100 * (pair.swarm.mean - pair.other.mean)):.1f} points"
    if found is Relation.UNCLEAR:
        return Finding(pair.arm, found, f"No clear difference: {figures}; the 95 % intervals overlap.")
    if pair.arm == "isolated":
        lead = f"Sharing {'helped' if found is Relation.HIGHER else 'hurt'} by {points}"
    elif found is Relation.HIGHER:
        lead = f"Sharing beat sampling more alone by {points}"
    else:
        lead = f"Sampling as much alone did better by {points}, at the price of that sampling"
    return Finding(pair.arm, found, f"{lead}: {figures}.")


def compare_arms(start: Finding | None, pairs: Sequence[Pair]) -> tuple[Finding, ...]:
    """Return all that can be said: how the run's first arm moved, and the swarm beside each control."""
    return (*([start] if start else []), *(beside(pair) for pair in pairs))


def headline(findings: tuple[Finding, ...]) -> str:
    """Return the result in one short sentence; it never says more than the findings."""
    found = {finding.against: finding.relation for finding in findings}
    control = found.get("isolated", found.get("isolated_total"))
    if control is Relation.HIGHER:
        return "The nodes learned more together than alone."
    if control is Relation.LOWER:
        return "The nodes learned more alone than together."
    if control is Relation.UNCLEAR:
        return "Together or alone: no clear difference."
    return {
        Relation.HIGHER: "The nodes learned.",
        Relation.LOWER: "The nodes got worse.",
        Relation.UNCLEAR: "No clear change.",
        None: "Not enough was measured to tell.",
    }[found.get("start")]
