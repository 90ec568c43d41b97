"""Tables from the cells of `benchmarks/likelihood.py`; what is missing is shown empty."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from _likelihood_swarm import AGES, VARIANTS
from _likelihood_swarm import ATTACKS as SWARM_ATTACKS
from _likelihood_text import ATTACKS as TEXT_ATTACKS
from _likelihood_text import GREEDY, UPDATES
from _likelihood_trials import SHORT, Trial, contrast_weights, trials

RESULTS = Path(__file__).parent.parent / "docs" / "results"
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"
SAMPLERS = ("0.7-1.0", "1.0-1.0", "1.3-1.0", "1.0-0.9")
TITLES = {"0.7-1.0": "T .7", "1.0-1.0": "T 1", "1.3-1.0": "T 1.3", "1.0-0.9": "T 1, top-p .9"}
HONEST = ("honest, shared skill", "honest, skill lacked")
FIGURES = (
    "By sampler: area under the ROC curve / share caught at a bar that 1 % of honest rows fall below / share "
    "quarantined by the shipped thresholds / mean weight that is left. The area and the bar of copied greedy text are "
    "those of the test for too likely text, which only weighs."
)
BY_CONTRAST = (
    "The same rows judged as if their sender were of another lineage, by contrast within the completion alone (mean "
    "weight; a stand-in, since there is no second real model here):"
)
Result = dict[str, Any]


def write_results(cells: Path, planned: Sequence[str]) -> Path:
    """Write the generated part of docs/results/likelihood.md; return its path."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(cells.glob("*.json"))}
    page = RESULTS / "likelihood.md"
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = page.read_text() if page.exists() else f"# Likelihood tests\n\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    minutes = sum(result["seconds"] for result in results.values()) / 60
    parts = [
        "## A real model: SmolLM2-135M on its own text",
        *text_tables(results),
        "## Peers that were tuned apart: the default model",
        *swarm_tables(results),
        "## Cost",
        cost_table(results),
        f"{len(results)} of {len(planned)} cells run, {minutes:.0f} minutes of CPU time.",
    ]
    page.write_text(before + BEGIN + "\n\n" + "\n\n".join(parts) + "\n\n" + END + after)
    return page


def line(cells: Sequence[str]) -> str:
    """Return one line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, lines)])


def share(part: int, whole: int) -> str:
    """Return a share in per cent with its 95 % upper bound where nothing was found; nothing of nothing."""
    if not whole:
        return ""
    if part == 0:
        return f"0 of {whole} (<= {100 * min(1.0, 3 / whole):.2g} %)"
    return f"{100 * part / whole:.1f} % of {whole}"


def area(honest: Sequence[float], poison: Sequence[float]) -> float:
    """Return the area under the ROC curve: how often poison has the smaller p-value, ties by half."""
    wins = sum((p < h) + (p == h) / 2 for p in poison for h in honest)
    return wins / (len(honest) * len(poison))


def caught(honest: Sequence[float], poison: Sequence[float], false: float = 0.01) -> float:
    """Return the share of poison below a p-value that at most `false` of honest rows are below."""
    bar = sorted(honest)[int(false * len(honest))]
    return sum(p < bar for p in poison) / len(poison)


def text_tables(results: dict[str, Result]) -> list[str]:
    """Return the tables of the text cells: by temperature, by length, by age, and honest rows."""
    judged = {name: trials(results[f"text-{name}-0"], None) for name in SAMPLERS if f"text-{name}-0" in results}
    parts = [
        FIGURES,
        table(["planted", *TITLES.values()], [_by_sampler(name, judged) for name in [*TEXT_ATTACKS, GREEDY]]),
        f"By length of the completion it is planted in (all samplers together; short: at most {SHORT} tokens):",
        table(["planted", "short", "long"], [_by_length(name, judged) for name in TEXT_ATTACKS]),
        "Honest rows, each judged by the others:",
        table(["sampler", "quarantined", "weighed", "mean weight"], [_honest(TITLES[n], t) for n, t in judged.items()]),
    ]
    parts += [
        BY_CONTRAST,
        table(
            ["", *TITLES.values()],
            [
                [name, *(_contrast(results[f"text-{s}-0"], name) if s in judged else "" for s in SAMPLERS)]
                for name in ["honest", *TEXT_ATTACKS]
            ],
        ),
    ]
    for sampler, fresh in judged.items():
        aged = results.get(f"text-{sampler}-{UPDATES}")
        if aged is None:
            continue
        then = results[f"text-{sampler}-0"]
        looks = {
            "age 0": fresh,
            f"{UPDATES} updates later, null by age": trials(aged, then),
            f"{UPDATES} updates later, fresh null": trials(aged, then, by_age=False),
        }
        parts += [
            f"By age ({TITLES[sampler]}; the receiver has made {UPDATES} updates since the rows were sampled):",
            table(["honest", "quarantined", "weighed", "mean weight"], [_honest(n, t) for n, t in looks.items()]),
            table(["planted", *looks], [[name, *(_figures(name, t) for t in looks.values())] for name in TEXT_ATTACKS]),
        ]
    return parts


def _by_sampler(name: str, judged: dict[str, list[Trial]]) -> list[str]:
    return [name, *(_figures(name, judged[s]) if s in judged else "" for s in SAMPLERS)]


def _figures(name: str, found: Sequence[Trial]) -> str:
    test = "likely" if name == GREEDY else "gate"
    honest = [trial.p[test] for trial in found if trial.kind == "honest"]
    planted = [trial for trial in found if trial.kind == name]
    poison = [trial.p[test] for trial in planted]
    if not honest or not poison:
        return ""
    stopped = sum(trial.action == "quarantine" for trial in planted) / len(planted)
    weight = sum(trial.weight for trial in planted) / len(planted)
    return f"{area(honest, poison):.2f} / {100 * caught(honest, poison):.0f} % / {100 * stopped:.0f} % / {weight:.2f}"


def _by_length(name: str, judged: dict[str, list[Trial]]) -> list[str]:
    cells = []
    for short in (True, False):
        found = [t for part in judged.values() for t in part if (t.length <= SHORT) == short]
        cells.append(_figures(name, found))
    return [name, *cells]


def _contrast(result: Result, kind: str) -> str:
    weights = contrast_weights(result, kind)
    return f"{sum(weights) / len(weights):.2f}"


def _honest(name: str, found: Sequence[Trial]) -> list[str]:
    honest = [trial for trial in found if trial.kind == "honest"]
    counts = Counter(trial.action for trial in honest)
    weight = sum(trial.weight for trial in honest) / len(honest)
    return [name, share(counts["quarantine"], len(honest)), share(counts["weigh"], len(honest)), f"{weight:.3f}"]


def swarm_tables(results: dict[str, Result]) -> list[str]:
    """Return the tables of the swarm cells: honest peers and poison by variant, and by age."""
    found: Counter[str] = Counter()
    for name, result in results.items():
        if name.startswith("swarm"):
            for key, counts in result["found"].items():
                found.update({f"{key}|{action}": count for action, count in counts.items()})

    def total(variant: str, kind: str, action: str, ages: Sequence[int] = AGES) -> int:
        return sum(found[f"{variant}|{kind}|{age}|{action}"] for age in ages)

    def cell(variant: str, kind: str, action: str, ages: Sequence[int] = AGES) -> str:
        return share(total(variant, kind, action, ages), total(variant, kind, "all", ages))

    by_variant = [
        [variant, *(cell(variant, kind, action) for kind in HONEST for action in ("quarantine", "weigh"))]
        for variant in VARIANTS
    ]
    by_age = [
        [f"{variant}, age {age}", *(cell(variant, kind, "quarantine", (age,)) for kind in HONEST)]
        for variant in ("full", "no null by age", "no vouching")
        for age in AGES
    ]
    attacks = [
        [name, *(cell(variant, name, "quarantine") for variant in ("full", "no null by age", "no vouching"))]
        for name in SWARM_ATTACKS
    ]
    ages = [[name, *(cell("full", name, "quarantine", (age,)) for age in AGES)] for name in SWARM_ATTACKS]
    return [
        "Rewarded rows of three honest peers, ages " + ", ".join(map(str, AGES)) + " together:",
        table(["", *(f"{kind}: {word}" for kind in HONEST for word in ("quarantined", "weighed"))], by_variant),
        "Honest rows quarantined, by age in rounds:",
        table(["", *HONEST], by_age),
        "Poison quarantined:",
        table(["planted", "full", "no null by age", "no vouching"], attacks),
        "Poison quarantined by the full layer, by age:",
        table(["planted", *(f"age {age}" for age in AGES)], ages),
    ]


def cost_table(results: dict[str, Result]) -> str:
    """Return what evidence and judging cost."""
    lines = []
    for name in ("swarm-0.0003-0", "text-1.0-1.0-0"):
        pairs = results.get(name, {}).get("cost") or []
        ratios = sorted(evidence / score for score, evidence in pairs)
        model = "default model, 64 rows" if name.startswith("swarm") else "SmolLM2-135M, 16 rows"
        if ratios:
            spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
            lines.append([f"evidence against plain scoring, {model}", f"{median(ratios):.2f} times", spread])
    seconds = sorted(s for r in results.values() for s in r.get("judge_seconds", []))
    if seconds:
        p50, p95 = (seconds[math.ceil(q * len(seconds)) - 1] for q in (0.5, 0.95))
        lines.append(
            ["one verdict, default model", f"p50 {1e3 * p50:.2f} ms", f"p95 {1e3 * p95:.2f} ms of {len(seconds)}"]
        )
    return table(["", "middle", "spread"], lines)
