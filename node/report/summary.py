"""What a run came to: figures for each arm and node, from the run folder alone."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from shoal.node.report.comparison import OTHERS, Finding, Pair, compare_arms, headline, learned
from shoal.node.report.figures import (
    ACCEPTED,
    Curve,
    by_task,
    curve,
    ends,
    histogram,
    is_refusal,
    mean_curve,
    on_other_tasks,
    pooled,
    totals,
)
from shoal.node.report.intervals import Interval, percent, span
from shoal.node.report.runlog import Event, RunLog, read_run, setting

ARM_WORDS = {
    "swarm": "swarm",
    "isolated": "isolated",
    "isolated_total": "isolated, swarm’s sampling",
}


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """One node in one arm; `attacker` names its attack, and such a node is left out of every mean."""

    node: int
    key: str
    skills: tuple[str, ...]
    attacker: str | None
    reward: Curve
    accuracy: Curve
    cumulative_reward: float
    before: float | None
    after: float | None
    tokens: int
    updates: int
    accepted: int
    refused: int


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """Mean held-out accuracy of the honest nodes on one task, at the start and at the end."""

    task: str
    before: float | None
    after: float | None


@dataclass(frozen=True, slots=True)
class Intake:
    """What honest nodes did with peers' rollouts: verdicts by reason, ages in rounds, lags in own updates."""

    verdicts: Mapping[str, int]
    ages: Mapping[int, int]
    lags: Mapping[int, int]
    own_rows: int
    peer_rows: int
    shortfall: int

    @property
    def accepted(self) -> int:
        """Return the number of rollouts that passed every check."""
        return sum(self.verdicts.get(name, 0) for name in ACCEPTED)

    @property
    def refusals(self) -> dict[str, int]:
        """Return what was turned away (announcements, rollouts, completions) by layer/reason, most frequent first."""
        return {name: count for name, count in self.verdicts.items() if is_refusal(name)}

    @property
    def refused(self) -> int:
        """Return the number of all refusals."""
        return sum(self.refusals.values())

    @property
    def notes(self) -> dict[str, int]:
        """Return the counters that are neither: choices, evictions, failed fetches."""
        return {name: count for name, count in self.verdicts.items() if name not in ACCEPTED and not is_refusal(name)}


@dataclass(frozen=True, slots=True)
class Cost:
    """What an arm cost: sampled tokens of honest nodes, wall seconds by phase, rate and memory (None: not measured)."""

    tokens: int
    seconds: Mapping[str, float]
    tokens_per_second: float | None
    rss_mb: float | None


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """One arm: nodes, their means, and intervals pooled over honest nodes."""

    arm: str
    nodes: tuple[NodeSummary, ...]
    reward: Curve
    accuracy: Curve
    cumulative_reward: float
    before: Interval | None
    after: Interval | None
    others_before: float | None
    others_after: float | None
    tasks: tuple[TaskSummary, ...]
    intake: Intake
    cost: Cost
    rounds: int
    complete: bool

    @property
    def words(self) -> str:
        """Return the name of the arm for people."""
        return ARM_WORDS.get(self.arm, self.arm)


@dataclass(frozen=True, slots=True)
class AttackCurve:
    """Share of honest nodes' completions that show an attack's behaviour, by round, in one arm."""

    attack: str
    arm: str
    shown: Curve


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole run."""

    version: str
    config: Mapping[str, Any]
    arms: tuple[ArmSummary, ...]
    findings: tuple[Finding, ...]
    attacks: tuple[AttackCurve, ...]
    samples: tuple[Event, ...]
    rounds: int
    complete: bool
    truncated: bool

    def arm(self, name: str) -> ArmSummary | None:
        """Return one arm, None when it has not been run."""
        return next((arm for arm in self.arms if arm.arm == name), None)


def _node(info: Mapping[str, Any], steps: Sequence[Event], evals: Sequence[Event]) -> NodeSummary:
    accuracy = curve(evals, "accuracy")
    verdicts = totals(steps, "verdicts")
    return NodeSummary(
        node=info["node"],
        key=str(info.get("key", "")),
        skills=tuple(info.get("skills") or ()),
        attacker=info.get("attacker"),
        reward=curve(steps, "reward"),
        accuracy=accuracy,
        cumulative_reward=sum(step["reward"] for step in steps if step.get("reward") is not None),
        before=accuracy[0][1] if accuracy and accuracy[0][0] == 0 else None,
        after=accuracy[-1][1] if accuracy and accuracy[-1][0] > 0 else None,
        tokens=sum(step.get("tokens", 0) for step in steps),
        updates=len(steps),
        accepted=sum(verdicts[name] for name in ACCEPTED),
        refused=sum(count for name, count in verdicts.items() if is_refusal(name)),
    )


def _intake(steps: Sequence[Event]) -> Intake:
    verdicts = +totals(steps, "verdicts")  # without zeros
    return Intake(
        verdicts={
            name: count for name, count in sorted(verdicts.items(), key=lambda pair: (-pair[1], pair[0])) if count
        },
        ages=histogram(steps, "ages"),
        lags=histogram(steps, "lags"),
        own_rows=sum(step.get("own_rows", 0) for step in steps),
        peer_rows=sum(step.get("peer_rows", 0) for step in steps),
        shortfall=sum(step.get("shortfall", 0) for step in steps),
    )


def _cost(steps: Sequence[Event], timings: Sequence[Event]) -> Cost:
    seconds: Counter[str] = Counter()
    for timing in timings:
        seconds.update(timing.get("seconds") or {})
    rates = [rate for timing in timings if (rate := timing.get("tokens_per_second"))]
    memory = [size for timing in timings if (size := timing.get("rss_mb"))]
    return Cost(
        tokens=sum(step.get("tokens", 0) for step in steps),
        seconds=dict(seconds),
        tokens_per_second=fmean(rates) if rates else None,
        rss_mb=max(memory, default=None),
    )


def _tasks(before: Sequence[Event], after: Sequence[Event]) -> tuple[TaskSummary, ...]:
    first, last = by_task(before), by_task(after)
    return tuple(TaskSummary(task, first.get(task), last.get(task)) for task in sorted(first | last))


def _of_honest(log: RunLog, kind: str, arm: str) -> list[Event]:
    """Return the events of the nodes that are no attackers: an attacker's own training says nothing about the swarm."""
    honest = {info["node"] for info in log.run["nodes"] if info.get("attacker") is None}
    return [event for event in log.of(kind, arm) if event["node"] in honest]


def _arm(log: RunLog, arm: str) -> ArmSummary | None:
    """Return the summary of one arm, None when nothing of it was logged."""
    steps, evals = log.of("step", arm), log.of("eval", arm)
    if not steps and not evals:
        return None
    stops = log.of("end", arm)
    nodes = tuple(
        _node(info, *([event for event in events if event["node"] == info["node"]] for events in (steps, evals)))
        for info in log.run["nodes"]
    )
    honest = [node for node in nodes if node.attacker is None]
    skills = {node.node: node.skills for node in nodes}
    before, after = ends(_of_honest(log, "eval", arm))
    return ArmSummary(
        arm=arm,
        nodes=nodes,
        reward=mean_curve(node.reward for node in honest),
        accuracy=mean_curve(node.accuracy for node in honest),
        cumulative_reward=fmean(node.cumulative_reward for node in honest) if honest else 0.0,
        before=pooled(before),
        after=pooled(after),
        others_before=on_other_tasks(before, skills),
        others_after=on_other_tasks(after, skills),
        tasks=_tasks(before, after),
        intake=_intake(_of_honest(log, "step", arm)),
        cost=_cost(_of_honest(log, "step", arm), [timing for timing in log.timings if timing.get("arm") == arm]),
        rounds=max((event["round"] for event in [*steps, *evals, *stops] if "round" in event), default=0),
        complete=bool(stops) and bool(stops[-1].get("complete")),
    )


def _pair(log: RunLog, swarm: ArmSummary, other: ArmSummary) -> Pair | None:
    """Compare at the last round that both were evaluated in, so that an interrupted run stays fair."""
    if swarm.after is None or other.after is None:
        return None
    lasts = swarm.accuracy[-1][0], other.accuracy[-1][0]
    ours, theirs = (pooled(ends(_of_honest(log, "eval", arm.arm), min(lasts))[1]) for arm in (swarm, other))
    at = None if swarm.complete and other.complete else min(lasts)
    return Pair(other.arm, ours, theirs, at) if ours and theirs else None


def _findings(log: RunLog, arms: Sequence[ArmSummary]) -> tuple[Finding, ...]:
    if not arms:
        return ()
    first = arms[0]
    who = "The swarm" if first.arm == "swarm" else "The isolated nodes"
    start = learned(first.before, first.after, who) if first.before and first.after else None
    controls = [arm for arm in arms if arm.arm in OTHERS and first.arm == "swarm"]
    return compare_arms(start, [pair for arm in controls if (pair := _pair(log, first, arm))])


def _attacks(log: RunLog, arms: Sequence[ArmSummary]) -> tuple[AttackCurve, ...]:
    return tuple(
        AttackCurve(attack, arm.arm, curve([event for event in shown if event["attack"] == attack], "shown"))
        for arm in arms
        if (shown := _of_honest(log, "attack", arm.arm))
        for attack in sorted({event["attack"] for event in shown})
    )


def summarise(run_dir: Path) -> Summary:
    """Return the figures of a run folder, complete or interrupted.

    Raises `EnvironmentFault` when there is no run or its file is damaged before the last line.
    """
    log = read_run(run_dir)
    order = sorted(log.run["arms"], key=lambda name: name != "swarm")
    arms = tuple(arm for name in order if (arm := _arm(log, name)) is not None)
    return Summary(
        version=str(log.run.get("version", "")),
        config=log.run.get("config") or {},
        arms=arms,
        findings=_findings(log, arms),
        attacks=_attacks(log, arms),
        samples=tuple(event for event in log.events if event["event"] == "sample"),
        rounds=int(setting(log.run.get("config"), "rounds", max((arm.rounds for arm in arms), default=0))),
        complete=len(arms) == len(log.run["arms"]) and all(arm.complete for arm in arms),
        truncated=log.truncated,
    )


def _cells(arm: ArmSummary) -> tuple[str, ...]:
    return (
        arm.words,
        percent(arm.before.mean) if arm.before else "–",
        span(arm.after) if arm.after else "–",
        f"{arm.cumulative_reward:.1f}",
        f"{arm.cost.tokens:,}",
        f"{arm.cost.tokens_per_second:,.0f}" if arm.cost.tokens_per_second else "–",
    )


def _attack_lines(summary: Summary, swarm: ArmSummary) -> list[str]:
    """Return one sentence for each attack: how many nodes made it, what was refused, and whether it took."""
    names = [node.attacker for node in swarm.nodes if node.attacker]
    refused = ", ".join(f"{count:,} {reason}" for reason, count in Counter(swarm.intake.refusals).most_common(3))
    text: list[str] = []
    for name in dict.fromkeys(names):
        shown = [c.shown[-1][1] for c in summary.attacks if c.attack == name and c.arm == swarm.arm and c.shown]
        took = f"{percent(shown[-1])} of honest nodes' answers show it" if shown else "it plants nothing in answers"
        text.append(f"Attack {name}: {names.count(name)} of {len(swarm.nodes)} nodes; {took}.")
    if names:
        text.append(f"Refused most: {refused or 'nothing'}.")
    return text


def lines(summary: Summary) -> list[str]:
    """Return the result as lines for a terminal, without escape codes: a table below 100 columns, then sentences."""
    heads = ("held-out accuracy", "before", "after (95 %)", "reward, summed", "tokens", "tokens/s")
    rows = [heads, *(_cells(arm) for arm in summary.arms)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    table = [
        "  ".join(cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    text = [*table, "", headline(summary.findings)] if summary.arms else ["Nothing was measured yet."]
    text.extend(finding.text for finding in summary.findings)
    swarm = summary.arm("swarm")
    if swarm is not None:
        intake = swarm.intake
        text.append(f"Peers' rollouts: {intake.accepted:,} accepted, {intake.refused:,} refused.")
        text.extend(_attack_lines(summary, swarm))
    if not summary.complete:
        text.append("The run was stopped before its end: these are the figures so far.")
    return text
