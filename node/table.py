"""The live view of a run: a table in a terminal, one plain line every few rounds elsewhere."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shoal.defenses.text import safe
from shoal.node.progress import Progress, duration
from shoal.node.report.figures import ACCEPTED, is_refusal, mean_curve
from shoal.node.report.intervals import percent
from shoal.node.report.runlog import Event, setting
from shoal.node.report.summary import ARM_WORDS

BLOCKS = "▁▂▃▄▅▆▇█"
SPARKS = 16
REDRAW_SECONDS = 0.5  # a redraw costs milliseconds that the training would have had
LINES_BESIDE_NODES = 6  # heading, bar, column heads, mean, what is left out, and the line that the cursor keeps
WIDE = 96  # columns from which the sparklines fit
COLUMNS = ("node", "reward", "held-out", "age", "lag", "accepted", "refused", "tokens/s")


@dataclass(slots=True)
class NodeRow:
    """What is known of one node in one arm; `attacker` names its attack, which keeps it out of the means."""

    node: int
    attacker: str | None
    round: int = 0
    rewards: list[tuple[int, float]] = field(default_factory=list)
    accuracy: float | None = None
    age: float | None = None
    lag: float | None = None
    accepted: int = 0
    refused: int = 0
    tokens_per_second: float | None = None

    def step(self, event: Mapping[str, Any]) -> None:
        """Take in one pass of the node."""
        self.round = event["round"]
        if event.get("reward") is not None:
            self.rewards.append((event["round"], event["reward"]))
        self.age = _mean_of(event["ages"]) if event.get("ages") else self.age
        self.lag = _mean_of(event["lags"]) if event.get("lags") else self.lag
        for name, count in (event.get("verdicts") or {}).items():
            self.accepted += count if name in ACCEPTED else 0
            self.refused += count if is_refusal(name) else 0

    @property
    def reward(self) -> float | None:
        """Return the newest reward."""
        return self.rewards[-1][1] if self.rewards else None

    @property
    def curve(self) -> list[float]:
        """Return the rewards in order."""
        return [reward for _, reward in self.rewards]


def _mean_of(counts: Mapping[str, int]) -> float:
    """Return the mean of a histogram whose values are text."""
    return sum(int(value) * count for value, count in counts.items()) / max(1, sum(counts.values()))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def mean_row(rows: Sequence[NodeRow]) -> NodeRow:
    """Return the honest nodes as one row: means, and sums of what is counted."""
    honest = [row for row in rows if row.attacker is None]
    return NodeRow(
        node=-1,
        attacker=None,
        round=max((row.round for row in rows), default=0),
        rewards=list(mean_curve(tuple(row.rewards) for row in honest)),
        accuracy=_mean([row.accuracy for row in honest]),
        age=_mean([row.age for row in honest]),
        lag=_mean([row.lag for row in honest]),
        accepted=sum(row.accepted for row in honest),
        refused=sum(row.refused for row in honest),
        tokens_per_second=_mean([row.tokens_per_second for row in honest]),
    )


def sparkline(values: Sequence[float], width: int = SPARKS) -> str:
    """Return the last values as blocks on a fixed scale from 0 to 1, so that rows can be compared."""
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[round(top * min(1.0, max(0.0, value)))] for value in values[-width:])


def _cells(row: NodeRow) -> list[str]:
    return [
        "–" if row.reward is None else f"{row.reward:.2f}",
        "–" if row.accuracy is None else percent(row.accuracy),
        "–" if row.age is None else f"{row.age:.1f}",
        "–" if row.lag is None else f"{row.lag:.1f}",
        f"{row.accepted:,}",
        f"{row.refused:,}",
        "–" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f}",
    ]


class LiveTable:
    """Shows a run while it goes on; fed with the events of metrics.jsonl and the lines of timings.jsonl.

    In a terminal a table is redrawn in place; elsewhere a plain line is written every `every` rounds.
    """

    def __init__(
        self, console: Console | None = None, every: int = 5, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.console = Console() if console is None else console
        self.every = max(1, every)
        self.now = now
        self.rows: dict[str, dict[int, NodeRow]] = {}
        self.arm = ""
        self.progress = Progress([], 1, 1, now)
        self._next_line: dict[str, int] = {}
        self._drawn = -REDRAW_SECONDS
        drawing = self.console.is_terminal and not self.console.is_dumb_terminal
        self._live = Live(console=self.console, auto_refresh=False) if drawing else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.update(self.view(), refresh=True)
            self._live.stop()

    def update(self, event: Mapping[str, Any]) -> None:
        """Take in one event; kinds that it does not show (samples, attacks) it leaves alone."""
        kind, arm = event.get("event", "timing"), str(event.get("arm", ""))
        if kind == "run":
            self._begin(event)
        elif arm in self.rows and kind in {"step", "eval", "timing"}:
            self.arm = arm
            self._take(kind, self.rows[arm].get(event["node"]), event)
        elif arm in self.rows and kind == "end" and event.get("complete"):
            self.progress.reached(arm, event.get("rounds", 0))
        self._show(kind, arm)

    def _begin(self, event: Mapping[str, Any]) -> None:
        infos: list[Event] = event["nodes"]
        arms = [str(arm) for arm in event["arms"]]
        self.rows = {arm: {i["node"]: NodeRow(i["node"], i.get("attacker")) for i in infos} for arm in arms}
        self.arm = arms[0]
        self.progress = Progress(arms, int(setting(event.get("config"), "rounds", 1)), len(infos), self.now)

    def _take(self, kind: str, row: NodeRow | None, event: Mapping[str, Any]) -> None:
        if row is None:
            return
        if kind == "step":
            row.step(event)
            self.progress.reached(self.arm, event["round"])
        elif kind == "eval":
            row.accuracy = event["accuracy"]
        elif event.get("tokens_per_second"):
            row.tokens_per_second = event["tokens_per_second"]

    def _show(self, kind: str, arm: str) -> None:
        if self._live is not None:
            if self.now() - self._drawn >= REDRAW_SECONDS:
                self._drawn = self.now()
                self._live.update(self.view(), refresh=True)
        elif arm in self.rows and (kind == "end" or (kind == "step" and self._due(arm))):
            self.console.print(self.line(), markup=False, highlight=False, soft_wrap=True)

    def _due(self, arm: str) -> bool:
        """Return True once for every `every` rounds of an arm."""
        round_ = self.progress.done[arm]
        if round_ < self._next_line.get(arm, self.every) or round_ >= self.progress.rounds:
            return False  # the last round is told when the arm ends
        self._next_line[arm] = (round_ // self.every + 1) * self.every
        return True

    def heading(self) -> str:
        """Return where the run stands, on one line."""
        arms = list(self.rows)
        place = f" ({arms.index(self.arm) + 1} of {len(arms)})" if len(arms) > 1 else ""
        left = self.progress.remaining()
        eta = "" if left is None else f" · {duration(left)} left"
        name = safe(ARM_WORDS.get(self.arm, self.arm), 40)
        return f"{name}{place} · round {self.progress.done.get(self.arm, 0)}/{self.progress.rounds}{eta}"

    def line(self) -> str:
        """Return the state as one plain line."""
        cells = _cells(mean_row(list(self.rows[self.arm].values())))
        reward, accuracy, age, lag, accepted, refused, rate = cells
        peers = f" · age {age}, lag {lag} · {accepted} accepted, {refused} refused" if self.arm == "swarm" else ""
        return f"{self.heading()} · reward {reward} · held-out {accuracy}{peers} · {rate} tokens/s"

    def view(self) -> Group | Text:
        """Return the table as it is drawn in a terminal."""
        if not self.rows:
            return Text("Getting ready …", style="dim")
        rows = list(self.rows[self.arm].values())
        room = max(1, self.console.height - LINES_BESIDE_NODES)
        shown = rows if len(rows) <= room else rows[: max(1, room - 1)]
        table = self._table()
        self._add(table, mean_row(rows), "mean", "bold")
        for row in shown:
            name = f"{row.node}" if row.attacker is None else f"{row.node} {safe(row.attacker, 12)}"
            self._add(table, row, name, "" if row.attacker is None else "dim")
        if len(shown) < len(rows):
            table.add_row(Text(f"… {len(rows) - len(shown)} more", style="dim"))
        heading = Text.assemble(("Shoal", "bold cyan"), "  ", self.heading(), no_wrap=True, overflow="ellipsis")
        bar = Table.grid()  # a bar by itself ends no line
        bar.add_row(ProgressBar(total=1.0, completed=self.progress.share, width=table.width))
        return Group(heading, bar, table)

    def _table(self) -> Table:
        wide = self.console.width >= WIDE
        table = Table(
            box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", width=min(self.console.width, 104)
        )
        for name in COLUMNS:
            table.add_column(name, justify="left" if name == "node" else "right", no_wrap=True)
            if name == "reward" and wide:
                table.add_column("", justify="left", no_wrap=True, width=SPARKS)
        return table

    def _add(self, table: Table, row: NodeRow, name: str, style: str) -> None:
        cells = [Text(name), *map(Text, _cells(row))]
        if len(table.columns) > len(COLUMNS):
            cells.insert(2, Text(sparkline(row.curve), style="cyan"))
        table.add_row(*cells, style=style)
