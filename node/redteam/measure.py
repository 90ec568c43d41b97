"""One cell run and measured: a simulation in a scratch folder, and the figures that are kept of it."""

import shutil
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from shoal.defenses.attacks import ATTACKS
from shoal.node.heldout import held_out_prompts
from shoal.node.plan import make_plan
from shoal.node.redteam.cells import Cell, learnable
from shoal.node.redteam.loud import loud_peer
from shoal.node.report.runlog import Event, RunLog, read_run
from shoal.node.runfolder import new_run
from shoal.node.simulate import Simulation
from shoal.trainer.tasks.registry import TaskRegistry
from shoal.trainer.verify import Grader

Result = dict[str, Any]
RARE = 0.1  # local pass rate of a task below which a rewarded row of a peer is a rare sample
RATE_ROUNDS = 10  # rounds over which the local pass rate is taken
LEAST_ROWS = 16  # own rows of a task without which nothing is said of its pass rate
SHOWN_SAMPLES = 3


def measure(cell: Cell, scratch: Path) -> Result:
    """Run one cell and return what is kept of it; the scratch folder is removed afterwards."""
    began = time.perf_counter()
    if cell.setting == "loud":
        figures: Result = {"loud": loud_peer(cell.seed)}
    else:
        try:
            figures = _simulate(cell, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    seconds = round(time.perf_counter() - began, 1)
    return {"cell": cell.plain(), "version": version("shoal-node"), "seconds": seconds} | figures


def _simulate(cell: Cell, scratch: Path) -> Result:
    config = cell.config(scratch)
    folder = new_run(config)
    with Grader(TaskRegistry(make_plan(config).specs)) as grader:
        simulation = Simulation(
            config, folder, grader, held_out_prompts(grader.registry, config.run.eval_items), lambda _: None
        )
        # A control looks for the behaviour of every attack, an attacked swarm for that of its own.
        simulation.looked_for = simulation.plan.attacks or tuple(name for name in ATTACKS if learnable(name))
        simulation.run()
    folder.close()
    return figures_of(read_run(scratch))


def figures_of(log: RunLog) -> Result:
    """Return the figures of a run with one arm; only honest nodes count."""
    arm = log.run["arms"][0]
    honest = {info["node"] for info in log.run["nodes"] if info["attacker"] is None}
    steps = [event for event in log.of("step", arm) if event["node"] in honest]
    return {
        "shown": _shown(log.of("attack", arm)),
        "accuracy": _accuracy(log.of("eval", arm)),
        "rows": fates([event for event in log.of("senders", arm) if event["node"] in honest]),
        "verdicts": dict(sum((Counter(event["verdicts"]) for event in steps), Counter[str]())),
        "length": _length(steps, log.run["config"]["mixing"]),
        "timing": _timing([event for event in log.timings if event["node"] in honest]),
        "samples": _samples([event for event in log.of("sample", arm) if event["node"] in honest]),
    }


def _shown(events: Sequence[Event]) -> dict[str, list[list[int]]]:
    """Return for each attack [round, answers that show it, answers], summed over the honest nodes."""
    sums: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for event in events:
        found = sums[event["attack"]][event["round"]]
        found[0] += round(event["shown"] * event["items"])
        found[1] += event["items"]
    return {name: [[at, *rounds[at]] for at in sorted(rounds)] for name, rounds in sums.items()}


def _accuracy(events: Sequence[Event]) -> dict[str, list[list[float]]]:
    """Return for each honest node [round, accuracy, items]."""
    nodes: dict[str, list[list[float]]] = defaultdict(list)
    for event in events:
        if event["accuracy"] is not None:
            nodes[str(event["node"])].append([event["round"], event["accuracy"], event["items"]])
    return dict(nodes)


def fates(events: Sequence[Event]) -> list[list[Any]]:
    """Return [sender, rewarded, rare, outcome, rows, weight] over all passes of all honest nodes.

    A rewarded row is rare when the node's own pass rate on its task, over the last rounds, is below a tenth.
    """
    sums: dict[tuple[str, bool, bool, str], list[float]] = defaultdict(lambda: [0, 0.0])
    for node in sorted({event["node"] for event in events}):
        for low, event in _with_low([event for event in events if event["node"] == node]):
            for sender, task, rewarded, outcome, count, weight in event["rows"]:
                found = sums[sender, rewarded, rewarded and task in low, outcome]
                found[0] += count
                found[1] += weight
    return [[*key, int(count), round(weight, 3)] for key, (count, weight) in sorted(sums.items())]


def _with_low(events: Sequence[Event]) -> Iterator[tuple[set[str], Event]]:
    """Yield the passes of one node, each with the tasks on which its pass rate is low by then."""
    window: deque[Mapping[str, Sequence[int]]] = deque(maxlen=RATE_ROUNDS)
    for event in events:
        window.append(event["own"])
        passed, rows = Counter[str](), Counter[str]()
        for own in window:
            for task, (right, graded) in own.items():
                passed[task] += right
                rows[task] += graded
        yield {task for task in rows if rows[task] >= LEAST_ROWS and passed[task] < RARE * rows[task]}, event


def _length(steps: Sequence[Event], mixing: Mapping[str, Any]) -> float | None:
    """Return the mean tokens of an own completion over the last fifth of the rounds."""
    last = max((event["round"] for event in steps), default=0)
    late = [event["tokens"] for event in steps if event["round"] > 0.8 * last]
    prompts = mixing["tasks_per_node"] or mixing["local"] + mixing["external"]
    return round(sum(late) / (len(late) * prompts * mixing["group_size"]), 3) if late else None


def _timing(timings: Sequence[Event]) -> dict[str, dict[str, float]]:
    """Return for each phase its seconds in all, and the middle and the 95th percentile of a pass."""
    phases: dict[str, list[float]] = defaultdict(list)
    for event in timings:
        for phase, seconds in event["seconds"].items():
            phases[phase].append(seconds)
    return {
        phase: {"seconds": round(sum(found), 3), "p50": _at(found, 0.5), "p95": _at(found, 0.95), "passes": len(found)}
        for phase, found in sorted(phases.items())
    }


def _at(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of all lie at or below (nearest rank)."""
    ordered = sorted(values)
    return round(ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)], 6)


def _samples(events: Sequence[Event]) -> list[dict[str, str]]:
    """Return a few of the last own completions of honest nodes."""
    own = [event for event in events if event["source"] == "own"]
    return [{"prompt": event["prompt"], "completion": event["completion"]} for event in own[-SHOWN_SAMPLES:]]
