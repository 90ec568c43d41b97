"""The targets of the red team, each with what was measured: a miss is reported as it is."""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.node.redteam.cells import NO_ATTACK
from shoal.node.redteam.loud import PEERS
from shoal.node.redteam.results import (
    MOST_LOST,
    MOST_REJECTS,
    MOST_SCREENING,
    Change,
    Result,
    Results,
    Verdict,
    added,
    at_most,
    change,
    fate,
    screening,
    success,
)
from shoal.node.report.intervals import Interval, percent, wilson

AIMS = (("text", 25), ("code", 25), ("math", 25), ("length", 25), ("text", 50), ("code", 50))


@dataclass(frozen=True, slots=True)
class Target:
    """One target: what it is about, its limit, what was measured, and the verdict."""

    what: str
    limit: str
    measured: str
    verdict: Verdict


def targets(results: Results) -> list[Target]:
    """Return all targets with what the results of one model say of them."""
    swarm = results.narrowed(setting="vertical")
    found = [_succeeds(swarm, attack, share) for attack, share in AIMS]
    full = [result for result in swarm.results if result["cell"]["defenses"] == "full"]
    found.append(_rejects("honest peers' rows refused, of all", fate(full).rejected))
    found.append(
        _rejects("honest peers' rows refused, of rewarded rare ones", fate(full, rewarded=True, rare=True).rejected)
    )
    found.extend(_screening(swarm, full))
    found.extend(_keeps(swarm, attack, share) for attack, share in AIMS)
    loud = results.narrowed(setting="loud")
    return [*found, *_loud([result["loud"] for result in loud.results])]


def _succeeds(results: Results, attack: str, share: int) -> Target:
    found = success(results, attack, share)
    measured = ""
    if found.full is not None:
        measured = f"{percent(found.full.mean)} (at most {percent(found.full.high, 2)})"
        without = "" if found.off is None else f", {percent(found.off.mean)} with nothing on"
        beside = "" if found.control is None else f", {percent(found.control.mean, 2)} without attackers"
        measured += beside + without
    return Target(f"{attack} at {share} %: answers that show it", "1 % over the control", measured, found.verdict)


def _rejects(what: str, found: Interval | None) -> Target:
    measured = (
        "" if found is None else f"{percent(found.mean, 2)} of {found.items:,} (at most {percent(found.high, 2)})"
    )
    return Target(what, percent(MOST_REJECTS, 0), measured, at_most(found, MOST_REJECTS))


def _screening(swarm: Results, full: Sequence[Result]) -> list[Target]:
    """Return what screening takes of a step, and what it adds: the update takes over the pass that screening makes."""
    controls = (swarm.of(attack=NO_ATTACK, share=0, defenses=kind).values() for kind in ("full", "no-appraisal"))
    parts = {
        "screening, of a step": screening(full),
        "screening, as a step is longer with it": added(*controls),
    }

    def judged(part: float | None) -> Verdict:
        if part is not None and part < 0.0:  # two runs at different times, of which one met a busier machine
            return Verdict.UNKNOWN
        return Verdict.MISSING if part is None else Verdict.MET if part <= MOST_SCREENING else Verdict.MISSED

    limit = percent(MOST_SCREENING, 0)
    return [Target(what, limit, "" if part is None else percent(part), judged(part)) for what, part in parts.items()]


def _keeps(results: Results, attack: str, share: int) -> Target:
    ours = results.of(attack=attack, share=share, defenses="full")
    found = change(ours, results.of(attack=NO_ATTACK, share=0, defenses="full"))
    error = "" if found is None or found.error is None else f" ± {100 * found.error:.1f}"
    measured = "" if found is None else f"{100 * found.mean:+.1f}{error} points"
    limit = f"within {100 * MOST_LOST:.0f} points of no attack"
    return Target(f"{attack} at {share} %: final accuracy", limit, measured, _kept(found))


def _kept(found: Change | None) -> Verdict:
    """Return whether accuracy stayed: missed as soon as the mean says so, met where it is sure by a standard error."""
    if found is None:
        return Verdict.MISSING
    if found.error is None:
        return Verdict.UNKNOWN  # one seed: nobody knows how much another would differ
    if found.mean < -MOST_LOST:
        return Verdict.MISSED
    return Verdict.MET if found.mean - found.error >= -MOST_LOST else Verdict.UNKNOWN


def _loud(series: Sequence[dict[str, dict[str, float]]]) -> list[Target]:
    """Return what one loud peer gets of draws and of an update's weight; met unless it is surely above its share."""
    what = f"one loud peer of {PEERS}: share of the draws"
    if not series:
        return [Target(what, percent(1 / PEERS, 2), "", Verdict.MISSING)]
    full, off = (
        wilson(sum(one[kind]["loud"] for one in series), sum(int(one[kind]["draws"]) for one in series))
        for kind in ("full", "off")
    )
    mass = sum(one["full"]["mass"] for one in series) / len(series)
    measured = (
        f"{percent(full.mean, 2)} ({100 * full.low:.2f}–{100 * full.high:.2f}), {percent(mass, 2)} of the weight; "
        f"{percent(off.mean)} with nothing on"
    )
    verdict = Verdict.MET if full.low <= 1 / PEERS else Verdict.MISSED
    return [Target(what, f"{percent(1 / PEERS, 2)}, within its bounds", measured, verdict)]
