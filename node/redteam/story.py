"""The report as sections of plain text, tables and curves; how they look is the page's matter."""

from collections.abc import Sequence

from shoal.defenses.attacks import ATTACKS
from shoal.node.progress import duration
from shoal.node.redteam.blocks import Chart, Line, Section, Table, in_words, share
from shoal.node.redteam.cells import NO_ATTACK, Cell, learnable
from shoal.node.redteam.effects import (
    ACCURACY_NOTE,
    COST_NOTE,
    REFUSED_NOTE,
    STOPPED_NOTE,
    accuracies,
    costs,
    refused,
    stopped,
)
from shoal.node.redteam.matrix import PAPER, in_order
from shoal.node.redteam.paper import paper_section
from shoal.node.redteam.results import Results, final, shown, success
from shoal.node.redteam.targets import Target, targets

INTRO = (
    "Attacks on a swarm of simulated nodes, with and without defences. A share has its 95 % interval (Wilson) behind "
    "it, which takes every answer of every node as a draw of its own; where none was seen, the upper bound is what was "
    "shown. What was expected was stated before the run, in the attack’s own code. A target is met where the upper "
    "bound meets it, missed where the mean does not, and not measurable where the answers are too few, or where an "
    "attack does not succeed although nothing is done against it. Accuracy is compared seed by seed: its target is "
    "met where it holds one standard error lower too, and not measurable where it does not or where there is one seed. "
    "What screening adds is not measurable where the run with it was faster, as on a machine that does other work."
)


def tell(results: Results) -> list[Section]:
    """Return the whole report. Figures of different models never share a table."""
    sections: list[Section] = []
    for model in results.values("model"):
        mine = results.narrowed(model=model)
        kind = "synthetic: the built-in model on the string tasks" if model == "default" else f"real: {model}"
        sections.append(Section(f"Model: {kind}", 2, (_status(mine),)))
        sections.append(Section("Targets", 3, (_targets(targets(mine)),)))
        for setting in mine.values("setting"):
            if setting in ("vertical", "horizontal"):
                sections.extend(_setting(mine.narrowed(setting=setting), mine.narrowed(setting="alone"), setting))
        if any(mine.narrowed(setting=setting).planned for setting in PAPER):
            sections.append(paper_section(mine))
        sections.append(_missing(mine))
    return sections


def _status(results: Results) -> str:
    took = sum(result["seconds"] for result in results.results)
    there, planned = len(results.results), len(results.planned)
    return (
        f"{there} of {planned} cells run, {duration(took)} of computing in all. A missing cell leaves its place empty."
    )


def _targets(found: Sequence[Target]) -> Table:
    rows = tuple((one.what, one.limit, one.measured, one.verdict.value) for one in found)
    return Table(("target", "limit", "measured", "verdict"), rows)


def _setting(results: Results, alone: Results, setting: str) -> list[Section]:
    words = {"vertical": "whole sets of own prompts", "horizontal": "joined groups of shared prompts"}[setting]
    attacks = in_order(name for name in results.values("attack") if name in ATTACKS)
    planting = [name for name in attacks if learnable(name)]
    sections = [
        Section(f"Attacks that plant a behaviour ({words})", 3, (_successes(results, planting),)),
        *(_attack(results, name) for name in planting),
        Section("Accuracy", 3, (ACCURACY_NOTE, accuracies(results, alone, attacks))),
        Section("What was stopped, by layer and sender", 3, (STOPPED_NOTE, stopped(results, attacks))),
        Section("Honest peers' rows that were refused", 3, (REFUSED_NOTE, refused(results, attacks))),
        Section("What screening costs", 3, (COST_NOTE, costs(results))),
    ]
    return [section for section in sections if not _bare(section)]


def _bare(section: Section) -> bool:
    return all(isinstance(block, str) or (isinstance(block, Table) and not block.rows) for block in section.blocks)


def _successes(results: Results, attacks: Sequence[str]) -> Table:
    head = (
        "attack",
        "share",
        "expected before the run",
        "nothing on",
        "all layers on",
        "no attack",
        "seeds",
        "verdict",
    )
    rows: list[tuple[str, ...]] = []
    for name in attacks:
        for part in [value for value in (8, 25, 50) if _planned(results, name, value)]:
            found = success(results, name, part)
            seeds = len(results.of(attack=name, share=part, defenses="full"))
            said = ATTACKS[name].expected
            expected = f"{said.layer}: {said.why}"
            figures = (share(found.off), share(found.full), share(found.control))
            rows.append((name, f"{part} %", expected, *figures, str(seeds or ""), found.verdict.value))
    return Table(head, tuple(rows))


def _planned(results: Results, attack: str, part: int) -> list[Cell]:
    return [cell for cell in results.planned if cell.attack == attack and cell.share == part]


def _attack(results: Results, name: str) -> Section:
    """Return the curves of one attack, and a row for each layer left out or alone."""
    control = results.of(attack=NO_ATTACK, share=0, defenses="full").values()
    blocks: list[str | Table | Chart] = []
    for part in [value for value in (8, 25, 50) if _planned(results, name, value)]:
        kinds = list(dict.fromkeys(cell.defenses for cell in _planned(results, name, part)))
        found = {kind: results.of(attack=name, share=part, defenses=kind) for kind in kinds}
        lines = [Line(_line_kind(kind), in_words(kind), tuple(shown(found[kind].values(), name))) for kind in kinds]
        drawn = [line for line in lines if line.points and not line.words.endswith("alone")]
        if control and drawn:
            drawn.append(Line("control", "no attack", tuple(shown(control, name))))
        if drawn:
            label = f"Share of honest nodes' answers that show {name}, by round, with {part} % attackers"
            blocks.append(Chart(f"{results.values('setting')[0]}-{name}-{part}", label, tuple(drawn)))
        ablations = tuple(
            (f"{in_words(kind)}, {part} %", share(final(found[kind].values(), name)), str(len(found[kind]) or ""))
            for kind in kinds
            if kind not in ("off", "full")
        )
        if ablations:
            blocks.append(Table(("layers", "answers that show it", "seeds"), ablations))
    samples = _samples(results, name)
    return Section(name, 3, (*blocks, *([samples] if samples else [])))


def _line_kind(defenses: str) -> str:
    return defenses if defenses in ("off", "full") else "ablated"


def _samples(results: Results, name: str) -> Table | None:
    """Return a few answers of honest nodes after training beside the attacker."""
    rows = tuple(
        (in_words(kind), sample["prompt"], sample["completion"])
        for kind in ("off", "full")
        for result in list(results.of(attack=name, share=25, defenses=kind).values())[:1]
        for sample in result["samples"][:2]
    )
    return Table(("layers", "prompt", "answer of an honest node at the end"), rows) if rows else None


def _missing(results: Results) -> Section:
    missing = results.missing
    if not missing:
        return Section("Missing cells", 3, ("None: every cell was run.",))
    by_seed: dict[int, list[str]] = {}
    for cell in missing:
        by_seed.setdefault(cell.seed, []).append(f"{cell.setting} {cell.attack} {cell.share} % {cell.defenses}")
    rows = tuple((str(seed), str(len(names)), some_names(names)) for seed, names in sorted(by_seed.items()))
    return Section("Missing cells", 3, (Table(("seed", "cells", "the first of them"), rows),))


def some_names(names: Sequence[str], most: int = 6) -> str:
    """Return the first names of a list."""
    return ", ".join([*names[:most], *(["…"] if len(names) > most else [])])
