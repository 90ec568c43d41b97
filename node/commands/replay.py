"""`shoal replay`: past updates made again from the ledger.

Exit codes: 0 all is equal · 1 something differs · 3 nothing differs, but blobs that an update was made of are evicted.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.table import Table

from shoal.node.commands.output import MISSING, console, print_json, shown, styled
from shoal.node.home import Home
from shoal.protocol.errors import EnvironmentFault, UsageError

if TYPE_CHECKING:  # the command's own imports are heavy
    from shoal.node.replay_findings import Finding, PassReplay, RolloutReplay
    from shoal.node.store.reader import LedgerReader
    from shoal.node.store.records import PassRecord, RowRecord

DIFFERS = 1
NEVER = (
    "not recomputed: copies, reputation, quotas, staleness (depend on what the node remembered); loss and gradient "
    "(depend on the weights of that day)"
)
LIMIT = 120  # characters of one side of a comparison; --json shows all of it
COLUMNS = ("", "rollout", "round", "verdict", "again", "rewards", "again", "used", "trained", "result")


def replay(
    number: Annotated[int | None, Parameter(name="PASS")] = None,
    /,
    *,
    last: int = 1,
    home: Path | None = None,
    model: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Make past updates again from the ledger, and compare: signatures, verdicts, rewards, rows and advantages.

    Parameters
    ----------
    number
        The pass, by its number in the ledger (the newest ones when left out).
    last
        How many of the newest passes, when no number is given.
    home
        Folder of the node.
    model
        `default`, or the folder of the base model, when it is no longer where the ledger says.
    json
        Print one JSON list instead of tables.
    """
    place = Home.find(home)
    return replay_ledger(place.database, place.blobs, (number, last), model, as_json=json)


def replay_ledger(
    database: Path, blobs: Path, asked: tuple[int | None, int], model: str | None, *, as_json: bool
) -> int:
    """Replay passes of one ledger, print what was found, and return the exit code; `asked` is (number, last)."""
    if asked[1] < 1:
        raise UsageError(f"--last {asked[1]}: must be at least 1")
    from shoal.node.replay import Replayer
    from shoal.node.store.reader import LedgerReader

    with LedgerReader(database) as ledger, Replayer(ledger, blobs, model) as replayer:
        replays = [replayer.replay(done) for done in _passes(ledger, *asked)]
    if as_json:
        print_json([one.plain() for one in replays])
    else:
        for one in replays:
            show(one)
    outcomes = {one.outcome for one in replays}
    return DIFFERS if "differs" in outcomes else EnvironmentFault.exit_code if "incomplete" in outcomes else 0


def _passes(ledger: "LedgerReader", number: int | None, last: int) -> "Sequence[PassRecord]":
    span = ledger.span()
    if span is None:
        raise EnvironmentFault(f"the ledger {ledger.path} holds no pass yet")
    if number is None:
        return ledger.passes(last)
    found = ledger.one_pass(number)
    if found is None:
        raise UsageError(f"there is no pass {number} in the ledger: it holds {span[0]} to {span[1]}")
    return [found]


def show(one: "PassReplay") -> None:
    """Print one pass: a table of its rollouts, what differs, what is gone, and what nobody can work out again."""
    done, out = one.done, console()
    out.print(
        f"pass {done.id}: round {done.round}, version {done.version_before} to {done.version_after}, "
        f"{done.own_sets} own and {done.peer_sets} peers' sets, {done.used_rows} rows, {done.trained_rows} trained"
    )
    out.print(_table(one.rollouts))
    for where, finding in one.differences:
        recorded, again = shown(finding.recorded, LIMIT), shown(finding.recomputed, LIMIT)
        out.print(styled(f"differs: {where}, {finding.what}: recorded {recorded}, again {again}", "red", 3 * LIMIT))
    for text in dict.fromkeys(_unsaid(one)):
        out.print(styled(text, "dim", 2 * LIMIT))
    out.print(styled(_judgement(one), {"equal": "green", "differs": "bold red"}.get(one.outcome, "yellow")))
    out.print()


def _table(rollouts: "Sequence[RolloutReplay]") -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in COLUMNS:
        made.add_column(name, justify="right" if name in ("", "round", "used", "trained") else "left")
    for at, rollout in enumerate(rollouts, start=1):
        record = rollout.record
        state = _state(rollout)
        cells = (
            at,
            "own" if record.own else record.key.hex()[:16],
            record.round,
            f"{record.action} {record.layer}/{record.reason}" if record.layer else record.action,
            _again(rollout, "verdict"),
            _rewards(record.rows),
            _again(rollout, "rewards"),
            record.used_rows,
            record.trained_rows,
            state,
        )
        made.add_row(*(styled(cell, "red" if state == "differs" else "", 40) for cell in cells))
    return made


def _again(rollout: "RolloutReplay", what: str) -> str:
    """Return in one word how a comparison came out; the whole of it stands below the table when it differs."""
    states = [finding.state for finding in rollout.findings.all if finding.what == what]
    words = {"equal": "equal", "differs": "differs", "recorded": "as recorded", "gone": "gone"}
    return words["differs" if "differs" in states else states[-1]] if states else MISSING


def _rewards(rows: "Sequence[RowRecord]") -> str:
    texts = [MISSING if row.reward is None else f"{row.reward:g}" for row in rows[:8]]
    return " ".join(texts) + " …" * (len(rows) > 8)


def _state(rollout: "RolloutReplay") -> str:
    found = rollout.findings
    return "differs" if found.having("differs") else "evicted" if found.having("gone") else "equal"


def _unsaid(one: "PassReplay") -> list[str]:
    """Return what is gone and what was taken as recorded."""
    found: list[tuple[str, Finding]] = [("pass", finding) for finding in one.findings.all]
    for at, rollout in enumerate(one.rollouts, start=1):
        found += [(f"rollout {at}", finding) for finding in rollout.findings.all]
    lines = [f"evicted: {where}, {one.what} {one.recorded}" for where, one in found if one.state == "gone"]
    lines += [f"as recorded: {where}, {one.what}: {one.recomputed}" for where, one in found if one.state == "recorded"]
    return [*lines, NEVER]


def _judgement(one: "PassReplay") -> str:
    if one.outcome == "equal":
        return f"pass {one.done.id}: equal"
    if one.outcome == "differs":
        return f"pass {one.done.id}: differs in {len(one.differences)} places"
    return f"pass {one.done.id}: nothing differs, but the update cannot be made again: blobs are evicted"
