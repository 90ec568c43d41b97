"""`shoal status`: one screen about the node that runs on a home.

Exit code 0 when it answered, 3 when no node runs there (or it does not answer).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shoal.node.commands.output import console, count, decimal, print_json, shown, span
from shoal.node.control import Control
from shoal.node.health import ready, stepping
from shoal.node.home import Home
from shoal.node.report.figures import is_refusal
from shoal.node.view import find

SHOWN_COUNTS = 6
SHOWN_ADDRESSES = 4

Json = Annotated[bool, Parameter(negative="")]


def status(*, home: Path | None = None, json: Json = False) -> int:
    """Show how the running node is doing.

    Parameters
    ----------
    home
        Folder of the node.
    json
        Print one JSON object instead of a screen.
    """
    state = control_of(home).status()
    if json:
        print_json(state)
    else:
        console().print(screen(state))
    return 0


def control_of(home: Path | None) -> Control:
    """Return the way to the node that runs on a home."""
    place = Home.find(home)
    return Control(place.socket, place.path)


def screen(state: Mapping[str, Any]) -> RenderableType:
    """Return the screen of one status."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in (
        ("node", _node(state)),
        ("steps", _steps(state)),
        ("newest step", _step(state)),
        ("peers", _peers(state)),
        ("reachable", _reach(state)),
        ("addresses", _addresses(state)),
        ("refused", _counts(state)),
        ("resources", _resources(state)),
        ("last failure", shown(state.get("last_failure"), 160)),
    ):
        if name != "last failure" or state.get("last_failure"):
            grid.add_row(name, Text(text))
    return Group(_heading(state), _health(state), Text(""), grid)


def _heading(state: Mapping[str, Any]) -> Text:
    name, swarm_id = shown(find(state, "swarm.name"), 64), shown(find(state, "swarm.id"), 8).rstrip("…")
    phase = shown(state.get("phase")).replace("_", " ")
    left = span(find(state, "swarm.seconds_left"))
    return Text.assemble(
        ("Shoal", "bold cyan"),
        f" {shown(state.get('version'), 32)}  {name} ({swarm_id})",
        f" · round {count(find(state, 'swarm.round'))}, {left} left · {phase}",
    )


def _health(state: Mapping[str, Any]) -> Text:
    good, reason = stepping(state)
    fit, lack = ready(state)
    text = Text.assemble(("healthy" if good else "NOT HEALTHY", "green" if good else "bold red"), f"  {reason}")
    if not fit:
        text.append_text(Text.assemble("\n", ("not ready", "yellow"), f"  {lack}"))
    if state.get("admission"):
        text.append_text(Text.assemble("\n", ("not admitted", "bold yellow"), f"  {shown(state['admission'], 200)}"))
    frozen = find(state, "canary.frozen_rounds")
    if frozen:
        found = f"the canary found {shown(find(state, 'canary.last_alarm.kind'), 32)} changed"
        why = f"nothing is taken from peers for {count(frozen)} rounds: {found}"
        text.append_text(Text.assemble("\n", ("frozen", "bold yellow"), f"  {why}"))
    return text


def _node(state: Mapping[str, Any]) -> str:
    mode = shown(state.get("mode")).replace("_", "-")
    key = shown(state.get("key"), 64)
    return f"{key} · {mode} · process {shown(state.get('pid'))}, up {span(state.get('uptime_seconds'))}"


def _steps(state: Mapping[str, Any]) -> str:
    failed = f"{count(state.get('failures_total'))} failed"
    in_a_row = state.get("failures_in_a_row")
    row = f" ({count(in_a_row)} in a row)" if in_a_row else ""
    usual = span(state.get("expected_step_seconds"))
    return f"{count(state.get('steps_total'))} done, {failed}{row} · usually {usual} each"


def _step(state: Mapping[str, Any]) -> str:
    if not state.get("step"):
        return "none yet"
    sets = f"{count(find(state, 'step.own_sets'))} own and {count(find(state, 'step.peer_sets'))} peers' rollouts"
    note = find(state, "step.note")
    return (
        f"{span(state.get('last_step_age_seconds'))} ago, round {count(find(state, 'step.round'))} · policy version "
        f"{count(find(state, 'step.policy_version'))} · reward {decimal(find(state, 'step.reward'))} · {sets}"
        + (f" · {shown(note, 100)}" if note else "")
    )


def _peers(state: Mapping[str, Any]) -> str:
    network = state.get("network") or {}
    restarts = network.get("daemon_restarts")
    down = "" if network.get("daemon_alive") else " · the transport is DOWN"
    again = f" · transport restarted {count(restarts)} times" if restarts else ""
    offset = network.get("clock_offset_seconds")
    clock = "" if offset is None else f" · their clocks {decimal(offset)} s from ours"
    return (
        f"{count(network.get('peers'))} live, {count(network.get('connected'))} connected, "
        f"{count(network.get('bootstraps_connected'))} bootstraps{clock}{again}{down}"
    )


def _reach(state: Mapping[str, Any]) -> str:
    verdict, advice = find(state, "network.reachability.verdict"), find(state, "network.reachability.advice")
    return shown(verdict) + (f": {shown(advice, 240)}" if advice else "")


def _addresses(state: Mapping[str, Any]) -> str:
    addresses = find(state, "network.addresses") or []
    more = f"\n… {len(addresses) - SHOWN_ADDRESSES} more" if len(addresses) > SHOWN_ADDRESSES else ""
    return "\n".join(shown(address, 200) for address in addresses[:SHOWN_ADDRESSES]) + more or shown(None)


def _counts(state: Mapping[str, Any]) -> str:
    counts = {name: n for name, n in (state.get("counts") or {}).items() if is_refusal(name)}
    most = sorted(counts.items(), key=lambda item: -item[1])
    listed = ", ".join(f"{shown(name, 48)} {count(n)}" for name, n in most[:SHOWN_COUNTS])
    more = f", and {len(most) - SHOWN_COUNTS} other reasons" if len(most) > SHOWN_COUNTS else ""
    return listed + more if listed else "nothing"


def _resources(state: Mapping[str, Any]) -> str:
    lag = find(state, "loop_lag_ms.p99")
    return f"{count(state.get('memory_mb'))} MiB resident · event loop late by {decimal(lag, 1)} ms (p99)"
