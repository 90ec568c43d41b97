"""What attackers and defences brought about: accuracy, who was refused by which layer, and what it cost."""

from collections.abc import Iterable, Sequence

from shoal.defenses.attacks import ATTACKS
from shoal.node.redteam.blocks import NOTHING, Table, in_words, points_of, share, some
from shoal.node.redteam.cells import ATTACKER, NO_ATTACK, expected_layers
from shoal.node.redteam.results import Result, Results, by_layer, change, fate
from shoal.node.report.intervals import Interval, percent

ACCURACY_NOTE = (
    "Held-out accuracy at the end, in points, mean over seeds with its standard error: the honest nodes of the "
    "attacked swarm less the same nodes in the swarm without attackers (all layers on), and less the same nodes alone "
    "with updates of equal size."
)
STOPPED_NOTE = (
    "All layers on. Rows are completions that were fetched; announcements that the gate refused are counted apart, and "
    "without their sender. Rewarded means that the local verifier gives the row a reward."
)
REFUSED_NOTE = (
    "All layers on. Refused is whatever was not trained on for a verdict: rejected, or kept in quarantine. A rewarded "
    "row is rare where the receiver passes less than a tenth of its own samples of that task, over the last ten rounds."
)
COST_NOTE = (
    "Seconds of honest nodes' passes in the swarm without attackers; of the percentiles the worst seed is shown. "
    "Sampling, grading of own rows and the update are the training; all else is screening, with the grading of peers' "
    "rows. The appraisal makes the pass over all rows which the update makes itself where there is none. Cells ran "
    "side by side, which makes all of it slower alike."
)


def accuracies(results: Results, alone: Results, attacks: Sequence[str]) -> Table:
    """Return what each attack cost in accuracy."""
    head = ("attack", "share", "nothing on", "all layers on", "all layers on, against alone")
    rows: list[tuple[str, ...]] = []
    local = alone.of(attack=NO_ATTACK)
    for name in (NO_ATTACK, *attacks):
        for part in (0, 8, 25, 50):
            ours = {kind: results.of(attack=name, share=part, defenses=kind) for kind in ("off", "full")}
            if not any(ours.values()):
                continue
            base = results.of(attack=NO_ATTACK, share=8 if part == 8 else 0, defenses="full")
            against = [
                NOTHING if name == NO_ATTACK and kind == "full" else points_of(change(ours[kind], base))
                for kind in ours
            ]
            rows.append((name, f"{part} %", *against, points_of(change(ours["full"], local))))
    return Table(head, tuple(rows))


def stopped(results: Results, attacks: Sequence[str]) -> Table:
    """Return what became of attackers' rows, and which layer refused them."""
    head = (
        "attack",
        "expected",
        "attackers' rows",
        "rewarded",
        "of these kept",
        "mean weight",
        "refused by",
        "announcements refused by",
    )
    rows: list[tuple[str, ...]] = []
    for name in attacks:
        found = results.of(attack=name, share=25, defenses="full").values()
        if not found:
            continue
        every, paid = fate(found, ATTACKER), fate(found, ATTACKER, rewarded=True)
        kept = share(paid.rejected and _rest(paid.rejected))
        weight = f"{paid.weight:.2f}" if paid.kept else NOTHING
        gate = _gate(found)
        layers = ", ".join(expected_layers(name)) or ATTACKS[name].expected.layer
        rows.append((name, layers, f"{every.rows:,}", f"{paid.rows:,}", kept, weight, some(every.refused), some(gate)))
    return Table(head, tuple(rows))


def _rest(rejected: Interval) -> Interval:
    """Return the share that is left beside another."""
    return Interval(1.0 - rejected.mean, 1.0 - rejected.high, 1.0 - rejected.low, rejected.items)


def _gate(found: Iterable[Result]) -> dict[str, int]:
    """Return what was refused before anything was fetched, by layer."""
    counts: dict[str, int] = {}
    for result in found:
        for name, count in result["verdicts"].items():
            if name.partition("/")[0] in ("admission", "quota", "header"):
                counts[name] = counts.get(name, 0) + count
    return by_layer(counts)


def refused(results: Results, attacks: Sequence[str]) -> Table:
    """Return how many rows of honest peers were refused, and by what."""
    head = (
        "swarm",
        "of all rows",
        "of rewarded ones",
        "of rewarded rare ones",
        "mean weight of rare ones kept",
        "reasons",
    )
    rows: list[tuple[str, ...]] = []
    for name in (NO_ATTACK, *attacks):
        for part in (0, 8, 25, 50):
            found = results.of(attack=name, share=part, defenses="full").values()
            if not found:
                continue
            every, paid, rare = fate(found), fate(found, rewarded=True), fate(found, rewarded=True, rare=True)
            figures = (share(every.rejected), share(paid.rejected), share(rare.rejected))
            weight = f"{rare.weight:.2f}" if rare.kept else NOTHING
            rows.append((f"{name} at {part} %" if part else name, *figures, weight, some(every.refused)))
    return Table(head, tuple(rows))


def costs(results: Results) -> Table:
    """Return the phases of a pass, with nothing on and with all layers on."""
    head = ("layers", "phase", "share of a step", "p50 of a pass", "p95 of a pass")
    rows: list[tuple[str, ...]] = []
    for kind in ("off", "no-appraisal", "full"):
        found = list(results.of(attack=NO_ATTACK, share=0, defenses=kind).values())
        total = sum(phase["seconds"] for result in found for phase in result["timing"].values())
        for name in sorted({name for result in found for name in result["timing"]}):
            phases = [result["timing"][name] for result in found if name in result["timing"]]
            part = percent(sum(phase["seconds"] for phase in phases) / total)
            middle, high = (f"{1000 * max(phase[at] for phase in phases):.1f} ms" for at in ("p50", "p95"))
            rows.append((in_words(kind), name, part, middle, high))
    return Table(head, tuple(rows))
