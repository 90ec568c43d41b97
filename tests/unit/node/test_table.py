"""The live view, in a terminal and without one, on a clock that the test moves."""

import io
from pathlib import Path

import pytest
from fake_run import FakeRun
from rich.console import Console

from shoal.node.progress import Progress, duration
from shoal.node.table import LiveTable, NodeRow, mean_row, sparkline


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def _terminal(width: int = 120, height: int = 40) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)


def _fed(console: Console, tmp_path: Path, nodes: int = 4, **options: int) -> LiveTable:
    run = FakeRun(tmp_path, nodes=nodes)
    run.write()
    clock = Clock()
    table = LiveTable(console, now=clock, **options)
    timings = iter(run.timings)
    with table:
        for event in run.metrics:
            table.update(event)
            if event["event"] == "step":
                table.update(next(timings))
                clock.seconds += 0.02
    return table


def _shown(console: Console, table: LiveTable) -> list[str]:
    with console.capture() as capture:
        console.print(table.view())
    return capture.get().splitlines()


def test_without_a_terminal_there_are_plain_lines_every_few_rounds(tmp_path: Path) -> None:
    out = io.StringIO()
    _fed(Console(file=out, force_terminal=False, width=40), tmp_path, every=20)
    lines = out.getvalue().splitlines()
    assert "\x1b" not in out.getvalue()
    assert [line.split(" · ")[:2] for line in lines] == [
        [arm, f"round {round_}/60"]
        for arm in ("swarm (1 of 3)", "isolated (2 of 3)", "isolated, swarm’s sampling (3 of 3)")
        for round_ in (20, 40, 60)
    ]
    assert "accepted" in lines[0]
    assert "accepted" not in lines[-1]  # nothing comes from peers there
    assert lines[-1].split(" · ")[2] == "0 s left"


def test_a_terminal_shows_a_line_for_each_node_and_the_mean(tmp_path: Path) -> None:
    console = _terminal()
    lines = _shown(console, _fed(console, tmp_path))
    assert [line.split("  ")[0].strip() for line in lines[3:]] == ["mean", "0", "1", "2", "3 text"]
    assert "round 60/60" in lines[0]
    assert any(block in lines[4] for block in "▄▅▆▇")


def test_a_low_terminal_says_how_many_nodes_are_left_out(tmp_path: Path) -> None:
    console = _terminal(height=16)
    lines = _shown(console, _fed(console, tmp_path, nodes=32))
    assert len(lines) < 16
    assert lines[-1].startswith("… 23 more")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_is_wider_than_the_terminal(tmp_path: Path, width: int) -> None:
    console = _terminal(width=width)
    lines = _shown(console, _fed(console, tmp_path))
    assert max(map(len, lines)) <= width
    assert len(lines) == 8


def test_redraws_are_spared_but_the_last_state_is_drawn() -> None:
    console = _terminal()
    clock = Clock()
    run = {"event": "run", "arms": ["swarm"], "config": {"rounds": 9}, "nodes": [{"node": 0, "attacker": None}]}
    with LiveTable(console, now=clock) as table:
        table.update(run)
        before = console.file.tell()
        table.update({"event": "step", "arm": "swarm", "node": 0, "round": 7, "reward": 0.123})
        assert console.file.tell() == before
    assert "0.12" in console.file.getvalue()  # type: ignore[attr-defined]


def test_what_a_peer_chose_cannot_steer_the_terminal() -> None:
    console = _terminal()
    table = LiveTable(console, now=Clock())
    evil = "[red]\x1b[2J"
    infos = [{"node": 0, "attacker": evil}]
    table.update({"event": "run", "arms": [evil], "config": {"rounds": 9}, "nodes": infos})
    table.update({"event": "step", "arm": evil, "node": 0, "round": 1, "reward": 0.5, "verdicts": {evil: 3}})
    shown = "\n".join(_shown(console, table))
    assert "\x1b[2J" not in shown
    assert "[red]\\x1b[2J" in shown


def test_events_of_other_kinds_arms_and_nodes_are_left_alone() -> None:
    table = LiveTable(_terminal(), now=Clock())
    table.update({"event": "step", "arm": "swarm", "node": 0, "round": 1, "reward": 0.5})
    table.update({"event": "run", "arms": ["swarm"], "config": {}, "nodes": [{"node": 0, "attacker": None}]})
    table.update({"event": "step", "arm": "other", "node": 0, "round": 1, "reward": 0.5})
    table.update({"event": "step", "arm": "swarm", "node": 9, "round": 1, "reward": 0.5})
    table.update({"event": "sample", "arm": "swarm", "node": 0})
    assert table.rows["swarm"][0].rewards == []


def test_the_mean_leaves_attackers_out_and_goes_by_rounds() -> None:
    rows = [
        NodeRow(0, None, rewards=[(1, 0.2), (2, 0.4)], accepted=2, age=1.0),
        NodeRow(1, None, rewards=[(2, 0.6)], accepted=3),
        NodeRow(2, "text", rewards=[(1, 1.0)], accepted=50, age=9.0),
    ]
    mean = mean_row(rows)
    assert mean.curve == [pytest.approx(0.2), pytest.approx(0.5)]
    assert (mean.accepted, mean.age) == (5, 1.0)


def test_sparklines_have_one_fixed_scale() -> None:
    assert sparkline([0.0, 0.5, 1.0, 7.0, -1.0]) == "▁▅█▁"[:2] + "██▁"
    assert sparkline([0.0] * 30 + [1.0]) == "▁" * 15 + "█"


def test_what_is_left_goes_by_the_pace_since_the_run_was_taken_up() -> None:
    clock = Clock()
    progress = Progress(["swarm", "isolated_total"], rounds=10, nodes=3, now=clock)
    assert progress.remaining() is None
    progress.reached("swarm", 5)  # resumed: rounds 1 to 4 were done before the clock started
    clock.seconds = 10.0
    progress.reached("swarm", 8)
    # Four rounds of one arm took 10 s; left are two of them and ten rounds of an arm three times as heavy.
    assert progress.remaining() == pytest.approx(10 / 4 * (2 + 30))
    assert progress.share == pytest.approx(0.8 / 4)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 s"), (59.6, "1 min 00 s"), (125, "2 min 05 s"), (3725, "1 h 02 min")]
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words
