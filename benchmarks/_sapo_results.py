"""Tables and a plot from the cells of `benchmarks/sapo.py`; what is missing is shown empty."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt

RESULTS = Path(__file__).parent.parent / "docs" / "results"
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"
SMOOTHED = 10  # rounds of the moving average, as the paper smooths its curves
Result = dict[str, Any]
COLOURS = {"8/0": "#555555", "6/2": "#0072b2", "4/4": "#d55e00", "2/6": "#009e73", "8/0 at 4x sampling": "#aaaaaa"}


def write_results(cells: Path, planned: Sequence[Any]) -> Path:
    """Write the plot and the generated part of docs/results/sapo.md; return its path."""
    results = [json.loads(path.read_text()) for path in sorted(cells.glob("*.json"))]
    page = RESULTS / "sapo.md"
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = page.read_text() if page.exists() else f"# Swarm sampling against training alone\n\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    parts = [
        core_table(results),
        regime_table(results),
        mixing_table(results),
        f"{len(results)} of {len(planned)} cells run.",
    ]
    page.write_text(before + BEGIN + "\n\n" + "\n\n".join(parts) + "\n\n" + END + after)
    plot(results, RESULTS / "sapo.svg")
    return page


def select(results: Sequence[Result], **wanted: Any) -> dict[int, Result]:
    """Return the results of one kind of cell by seed."""
    return {
        result["cell"]["seed"]: result
        for result in results
        if all(result["cell"][key] == value for key, value in wanted.items())
    }


def final_accuracy(result: Result) -> float:
    """Return the held-out accuracy at the end."""
    return result["accuracy"][-1][1]


def cumulative(result: Result) -> float:
    """Return the reward summed over rounds, mean over nodes."""
    return result["cumulative_reward"]


def spread(values: Sequence[float], digits: int) -> str:
    """Return mean and standard error over seeds, or nothing."""
    if not values:
        return ""
    error = f" ± {stdev(values) / math.sqrt(len(values)):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{error}"


def gain(ours: dict[int, Result], alone: dict[int, Result], figure: Callable[[Result], float]) -> str:
    """Return the mean gain over training alone, seed by seed, with its standard error; nothing without pairs."""
    pairs = [100 * (figure(ours[seed]) / figure(alone[seed]) - 1) for seed in ours if seed in alone]
    if not pairs:
        return ""
    error = f" ± {stdev(pairs) / math.sqrt(len(pairs)):.0f}" if len(pairs) > 1 else ""
    return f"{fmean(pairs):+.0f}{error} %"


def row(cells: Sequence[str]) -> str:
    """Return one line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def core_table(results: Sequence[Result]) -> str:
    """Return splits x rules: cumulative reward, gain over 8/0, final accuracy."""
    alone = select(results, regime="default", arm="isolated")
    total = select(results, regime="default", arm="isolated_total")
    lines = [
        row(["peers' rows", "I / J", "seeds", "cumulative reward", "against 8/0", "held-out accuracy", "against 8/0"]),
        row(["---"] * 7),
    ]
    kinds = [("–", "8/0", alone), ("–", "8/0 at 4x sampling", total)]
    for rule in ("all", "positive", "likely"):
        for local, external in ((6, 2), (4, 4), (2, 6)):
            found = select(
                results, regime="default", mix="whole", arm="swarm", rule=rule, local=local, external=external
            )
            kinds.append((rule, f"{local}/{external}", found))
    for rule, split, found in kinds:
        lines.append(row([rule, split, str(len(found) or ""), *figures(found, alone)]))
    return "### Splits and rules, whole sets\n\n" + "\n".join(lines)


def figures(found: dict[int, Result], alone: dict[int, Result]) -> list[str]:
    """Return reward and accuracy, each with its gain over training alone."""
    return [
        spread([cumulative(result) for result in found.values()], 1),
        gain(found, alone, cumulative),
        spread([100 * final_accuracy(result) for result in found.values()], 1),
        gain(found, alone, final_accuracy),
    ]


def regime_table(results: Sequence[Result]) -> str:
    """Return each regime at 8/0 and 4/4."""
    regimes = list(dict.fromkeys(result["cell"]["regime"] for result in results))
    lines = [
        row(["regime", "peers' rows", "seeds", "cumulative reward", "against 8/0", "held-out accuracy", "against 8/0"]),
        row(["---"] * 7),
    ]
    for regime in sorted(regimes, key=lambda name: (name != "default", name)):
        alone = select(results, regime=regime, arm="isolated")
        lines.append(row([regime, "alone", str(len(alone) or ""), *figures(alone, {})]))
        for rule in ("all", "positive"):
            found = select(results, regime=regime, arm="swarm", rule=rule, local=4, external=4, mix="whole")
            lines.append(row(["", rule, str(len(found) or ""), *figures(found, alone)]))
    return "### Regimes, 4/4 against 8/0\n\n" + "\n".join(lines)


def mixing_table(results: Sequence[Result]) -> str:
    """Return whole sets beside joined groups at 4/4."""
    alone = select(results, regime="default", arm="isolated")
    lines = [
        row(["mixing", "peers' rows", "seeds", "cumulative reward", "against 8/0", "held-out accuracy", "against 8/0"]),
        row(["---"] * 7),
    ]
    for mix in ("whole", "joined"):
        for rule in ("all", "positive", "likely"):
            found = select(results, regime="default", arm="swarm", rule=rule, local=4, external=4, mix=mix)
            lines.append(row([mix, rule, str(len(found) or ""), *figures(found, alone)]))
    return "### Whole sets and joined groups, 4/4\n\n" + "\n".join(lines)


def smooth(curve: Sequence[Sequence[float]]) -> list[float]:
    """Return the moving average of a curve over the last rounds."""
    values = [value for _, value in curve]
    return [fmean(values[max(0, at + 1 - SMOOTHED) : at + 1]) for at in range(len(values))]


def plot(results: Sequence[Result], path: Path) -> None:
    """Draw smoothed mean reward by round for each split, one panel for each rule."""
    plt.rcParams.update({"svg.hashsalt": "shoal", "font.size": 9, "svg.fonttype": "none"})
    figure, panels = plt.subplots(1, 3, figsize=(11, 3.4), sharey=True, layout="constrained")
    for panel, rule in zip(panels, ("all", "positive", "likely"), strict=True):
        draw(panel, "8/0", select(results, regime="default", arm="isolated"))
        draw(panel, "8/0 at 4x sampling", select(results, regime="default", arm="isolated_total"))
        for local, external in ((6, 2), (4, 4), (2, 6)):
            wanted = {"rule": rule, "local": local, "external": external, "mix": "whole", "arm": "swarm"}
            draw(panel, f"{local}/{external}", select(results, regime="default", **wanted))
        panel.set_title(f"peers' rows: {rule}", fontsize=9)
        panel.set_xlabel("round")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(f"mean reward, moving average of {SMOOTHED} rounds")
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def draw(panel: Any, label: str, found: dict[int, Result]) -> None:
    """Draw the mean over seeds and its standard error."""
    curves = [smooth(result["reward"]) for result in found.values()]
    if not curves:
        return
    columns = list(zip(*curves, strict=False))
    means = [fmean(column) for column in columns]
    style = "--" if label == "8/0 at 4x sampling" else "-"
    panel.plot(means, style, color=COLOURS[label], label=label, linewidth=1.5)
    if len(curves) > 1:
        errors = [stdev(column) / math.sqrt(len(column)) for column in columns]
        low = [mean - error for mean, error in zip(means, errors, strict=True)]
        high = [mean + error for mean, error in zip(means, errors, strict=True)]
        panel.fill_between(range(len(means)), low, high, color=COLOURS[label], alpha=0.15, linewidth=0)
