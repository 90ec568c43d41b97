"""Reading back what a run wrote, line by line; an interrupted run may end in the middle of a line."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.protocol.errors import EnvironmentFault

Event = dict[str, Any]

METRICS = "metrics.jsonl"
TIMINGS = "timings.jsonl"


@dataclass(frozen=True, slots=True)
class RunLog:
    """All events of a run folder in the order in which they were written."""

    run: Event
    events: tuple[Event, ...]
    timings: tuple[Event, ...]
    truncated: bool

    def of(self, kind: str, arm: str) -> list[Event]:
        """Return the events of one kind in one arm."""
        return [event for event in self.events if event["event"] == kind and event.get("arm") == arm]


def _lines(path: Path) -> tuple[list[Event], bool]:
    """Parse one JSON object a line; only the last line may be cut off."""
    events: list[Event] = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
        except ValueError as error:
            if number == len(lines):  # no line break follows: the writer was stopped here
                return events, True
            raise EnvironmentFault(f"{path} line {number} is not JSON: the file is damaged ({error})") from None
        if not isinstance(event, dict):
            raise EnvironmentFault(f"{path} line {number} is not a JSON object: the file is damaged")
        events.append(event)
    return events, False


def read_run(run_dir: Path) -> RunLog:
    """Return the log of a run folder; raise `EnvironmentFault` when it holds no run or a damaged one."""
    try:
        events, cut = _lines(run_dir / METRICS)
        timings, cut_timings = _lines(run_dir / TIMINGS) if (run_dir / TIMINGS).exists() else ([], False)
    except OSError as error:
        raise EnvironmentFault(f"{run_dir} holds no run that can be read: {error.strerror or error}") from None
    runs = [event for event in events if event.get("event") == "run"]
    if not runs:
        raise EnvironmentFault(f"{run_dir / METRICS} does not begin with a run: nothing was measured yet")
    known = tuple(event for event in events if isinstance(event.get("event"), str))
    return RunLog(runs[-1], known, tuple(timings), cut or cut_timings)


def setting(config: Any, name: str, default: Any = None) -> Any:
    """Return one option of a run's configuration, whatever group of options it lies in."""
    if not isinstance(config, dict):
        return default
    if name in config:
        return config[name]
    inner = (setting(value, name, default) for value in config.values())
    return next((value for value in inner if value != default), default)
