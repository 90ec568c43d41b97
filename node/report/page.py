"""The report of a run: one page that is complete in itself, needs no script, and shows peers' text as inert text."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from shoal.defenses.text import safe
from shoal.node.report.comparison import headline
from shoal.node.report.intervals import percent, span
from shoal.node.report.plots import Series, bar_chart, line_chart
from shoal.node.report.runlog import Event, setting
from shoal.node.report.summary import Summary, summarise
from shoal.protocol.errors import EnvironmentFault

REPORT = "report.html"
SAMPLE_LINES = 12
SAMPLE_CHARACTERS = 600
SAMPLES_OF_A_KIND = 4
SMOOTHING = 20  # the running mean of rewards spans one 20th of the run


def inert(text: object, limit: int = 80) -> str:
    """Return text as one line that can do nothing to who looks at it; the page escapes its markup besides."""
    return safe(str(text), limit)


def inert_lines(text: object) -> str:
    """Return text with its line breaks, each line inert, long ones and late ones cut with a mark."""
    lines = str(text).split("\n")
    shown = [safe(line, SAMPLE_CHARACTERS) for line in lines[:SAMPLE_LINES]]
    return "\n".join([*shown, "…"] if len(lines) > SAMPLE_LINES else shown)


def bare(tasks: Sequence[str]) -> list[str]:
    """Return task names without the set that they come from."""
    return [str(task).rpartition("/")[2] for task in tasks]


def tight(text: str) -> str:
    """Return a sentence whose figures are not broken over two lines."""
    return text.replace(" %", "\u00a0%").replace("–", "\u2060–\u2060")


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """One reason in the table of verdicts, with the length of its bar as a share of the longest."""

    layer: str
    reason: str
    count: int
    bar: float


def verdict_rows(counts: Mapping[str, int]) -> list[VerdictRow]:
    """Return counters as rows, in their order."""
    longest = max(counts.values(), default=1)
    split = ((*name.rpartition("/")[::2], count) for name, count in counts.items())
    return [VerdictRow(layer, reason.replace("_", " "), count, count / longest) for layer, reason, count in split]


def pick_samples(samples: Sequence[Event]) -> list[Event]:
    """Return a few of the latest samples of the swarm: own, peers' accepted, and one of each reason of refusal."""
    kinds: dict[str, list[Event]] = {}
    arm = next((event["arm"] for event in samples if event["arm"] == "swarm"), samples[0]["arm"] if samples else "")
    for event in reversed([event for event in samples if event["arm"] == arm]):
        verdict = str(event.get("verdict", ""))
        kind = verdict if verdict != "accept" else "own" if event.get("source") == "own" else "peer"
        found = kinds.setdefault(kind, [])
        if len(found) < (SAMPLES_OF_A_KIND if kind in {"own", "peer"} else 1):
            found.append(event)
    refused = [found for kind, found in kinds.items() if kind not in {"own", "peer"}]
    return [event for found in (kinds.get("own", []), kinds.get("peer", []), *refused[:8]) for event in found]


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield every option as a dotted name and its value in words."""
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
            yield f"{prefix}{name}", "–" if shown in ("", None, {}) else str(shown)


def _charts(summary: Summary) -> dict[str, Markup]:
    honest = {arm.arm: [node for node in arm.nodes if node.attacker is None] for arm in summary.arms}
    reward = [Series(arm.arm, arm.reward, [node.reward for node in honest[arm.arm]]) for arm in summary.arms]
    accuracy = [
        Series(arm.arm, arm.accuracy, [node.accuracy for node in honest[arm.arm]], arm.after) for arm in summary.arms
    ]
    width = max(1, summary.rounds // SMOOTHING)
    charts: dict[str, str] = {
        "age": "",
        "lag": "",
        "accuracy": line_chart("accuracy", "Held-out accuracy by round, for each arm", accuracy),
        "reward": line_chart("reward", "Mean reward of own completions by round, for each arm", reward, width),
    }
    swarm = summary.arm("swarm")
    if swarm is not None and swarm.intake.ages:
        charts["age"] = bar_chart("age", "Ages of peers' rollouts when trained on", swarm.intake.ages, "age in rounds")
    if swarm is not None and swarm.intake.lags:
        charts["lag"] = bar_chart("lag", "Lags of peers' rollouts when trained on", swarm.intake.lags, "lag in updates")
    for number, attack in enumerate({curve.attack for curve in summary.attacks}):
        curves = [Series(curve.arm, curve.shown) for curve in summary.attacks if curve.attack == attack]
        charts[f"attack {attack}"] = line_chart(f"attack{number}", "Share of completions that show the attack", curves)
    # What matplotlib wrote holds no text of a peer: arms, rounds and numbers only.
    return {name: Markup(svg) for name, svg in charts.items()}


def meaning(summary: Summary) -> str:
    """Return one paragraph on how it came about and how far it carries; the findings themselves stand above it."""
    sentences = []
    swarm, isolated = summary.arm("swarm"), summary.arm("isolated")
    if swarm is not None:
        rows = swarm.intake.own_rows + swarm.intake.peer_rows
        if rows:
            share = percent(swarm.intake.peer_rows / rows, 0)
            sentences.append(f"Of the completions that the swarm’s nodes trained on, {share} came from peers.")
        if swarm.others_before is not None and swarm.others_after is not None:
            moved = f"from {percent(swarm.others_before, 0)} to {percent(swarm.others_after, 0)} in the swarm"
            if isolated is not None and isolated.others_before is not None and isolated.others_after is not None:
                before, after = percent(isolated.others_before, 0), percent(isolated.others_after, 0)
                moved += f", and from {before} to {after} in isolation"
            sentences.append(f"On tasks outside its own start skills a node went, on average, {moved}.")
    sentences.append(
        "The intervals take every answer of every node to a held-out prompt as a draw of its own; they do not cover "
        "what another seed would have given. One run is one draw."
    )
    return " ".join(sentences)


def _environment() -> Environment:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(inert=inert, inert_lines=inert_lines, bare=bare, tight=tight, percent=percent, span=span)
    return environment


def render(summary: Summary) -> str:
    """Return the page; the same summary gives the same bytes."""
    source = files("shoal.node.report").joinpath("report.html.j2").read_text(encoding="utf-8")
    swarm = summary.arm("swarm")
    return (
        _environment()
        .from_string(source)
        .render(
            summary=summary,
            swarm=swarm,
            headline=headline(summary.findings),
            findings=" ".join(finding.text for finding in summary.findings),
            meaning=meaning(summary),
            charts=_charts(summary),
            verdicts=verdict_rows(swarm.intake.refusals) if swarm else [],
            notes=verdict_rows(swarm.intake.notes) if swarm else [],
            tasks=sorted({task.task for arm in summary.arms for task in arm.tasks}),
            samples=pick_samples(summary.samples),
            options=list(flat(summary.config)),
            smoothing=max(1, summary.rounds // SMOOTHING),
            total_nodes=int(setting(summary.config, "nodes", 0)),
        )
    )


def write_report(run_dir: Path) -> Path:
    """Write `report.html` into a run folder, whole or not at all, and return its path.

    Raises `EnvironmentFault` when the folder holds no run, or cannot be written.
    """
    page = render(summarise(run_dir)).encode("utf-8")
    target, part = run_dir / REPORT, run_dir / f"{REPORT}.tmp"
    try:
        with part.open("wb") as out:
            out.write(page)
            out.flush()
            os.fsync(out.fileno())
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise EnvironmentFault(f"{target} cannot be written: {error.strerror or error}") from None
    return target
