"""`shoal peers`: the peers that the running node knows. Exit code 3 when no node runs on the home."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from shoal.node.commands.output import MISSING, console, count, decimal, print_json, shown, span, styled
from shoal.node.commands.status import control_of

Json = Annotated[bool, Parameter(negative="")]
WIDE, NARROW_COLUMNS = 110, 7  # in a narrow terminal reputation and address are left out
COLUMNS = ("peer", "operator", "seen", "version", "model", "used", "refused", "reputation", "address")


def peers(*, home: Path | None = None, json: Json = False) -> int:
    """List the peers that the running node knows.

    Parameters
    ----------
    home
        Folder of the node.
    json
        Print one JSON list instead of a table.
    """
    known = control_of(home).peers()
    if json:
        print_json(known)
    elif not known:
        console().print("no peers yet: the node trains alone and keeps looking")
    else:
        console().print(table(known, time.time(), console().width))
    return 0


def table(known: Sequence[Mapping[str, Any]], now: float, width: int = WIDE) -> Table:
    """Return the peers as a table; all text in it came from them and is escaped. A narrow one has fewer columns."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    columns = COLUMNS if width >= WIDE else COLUMNS[:NARROW_COLUMNS]
    for name in columns:
        numeric = name in ("version", "used", "refused", "reputation")
        justify = "right" if numeric else "left"
        made.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis", min_width=len(name))
    for peer in known:
        made.add_row(
            *(styled(cell, "" if peer.get("connected") else "dim") for cell in _cells(peer, now)[: len(columns)])
        )
    return made


def _cells(peer: Mapping[str, Any], now: float) -> list[str]:
    addresses = peer.get("addresses") or []
    seen, same = peer.get("last_seen"), peer.get("same_model")
    return [
        shown(str(peer.get("key", ""))[:16], 16),
        _operator(peer),
        "connected"
        if peer.get("connected")
        else f"{span(now - seen)} ago"
        if isinstance(seen, int | float)
        else MISSING,
        count(peer.get("policy_version")),
        MISSING if same is None else "as ours" if same else "another",
        count(peer.get("used")),
        count(peer.get("refused")),
        decimal(peer.get("reputation")),
        shown(addresses[0] if addresses else None, 120),
    ]


def _operator(peer: Mapping[str, Any]) -> str:
    """Return the operator; in open swarms each key is its own, which says nothing new."""
    operator = peer.get("operator")
    return MISSING if operator == peer.get("key") else shown(operator, 24)
