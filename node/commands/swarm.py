"""`shoal swarm`: found a swarm, look at one, join it, and as its founder invite, revise and revoke.

Exit codes: 0 done · 1 `verify` found something that stands in the way · 2 wrong usage, or a manifest that its founder
did not sign · 3 a file or address that gives nothing.
"""

import dataclasses
import sys
import time
from pathlib import Path
from typing import Annotated

from cyclopts import App, Group, Parameter

from shoal.defenses.text import safe
from shoal.node.commands.founder import invite, revise, revoke
from shoal.node.founding import NewSwarm, is_key, new_manifest, with_own_peer
from shoal.node.home import Home
from shoal.node.shelf import Shelf, write_whole
from shoal.node.sources import link_of, read_manifest
from shoal.node.swarms import load_manifest, redeem, settle
from shoal.protocol.errors import UsageError
from shoal.protocol.identity import Identity
from shoal.protocol.invite import TOKEN_PREFIX

MAX_TOKEN_FILE = 4096  # characters

Json = Annotated[bool, Parameter(negative="")]
_FLAT = Parameter(name="*", negative="", consume_multiple=True)
_NEW = NewSwarm()

app = App(name="swarm", help="Found, look at, join, invite to, revise a swarm.", result_action="return_value")


@app.command
def create(
    name: str,
    /,
    *,
    new: Annotated[NewSwarm, _FLAT, Parameter(group=Group("Swarm", sort_key=1))] = _NEW,
    out: Path | None = None,
    home: Path | None = None,
) -> int:
    """Found a swarm: a manifest signed with this home's key, and the link by which others join.

    Parameters
    ----------
    name
        Name of the swarm; with the founder's key and genesis it makes the id.
    out
        File of the manifest (NAME.toml when left out).
    home
        Folder of the founder's node.
    """
    place = Home.find(home)
    founder = Identity.load(place.require_identity())
    path = out or Path(f"{name}.toml")
    if path.exists():
        raise UsageError(f"{path} exists: give another --out; a swarm is changed with `shoal swarm revise`")
    from shoal.node.datasets import data_folder, local_specs, pinned
    from shoal.node.taskspecs import task_specs
    from shoal.trainer.tasks.registry import TaskRegistry

    data = data_folder(place.path)
    tasks = [pinned(spec, data) for spec in task_specs(new.tasks, new.task_config)]
    bootstraps = with_own_peer(new.bootstrap, founder)
    new = dataclasses.replace(new, lineage=_lineages(new.lineage), bootstrap=bootstraps)
    manifest = new_manifest(name, new, founder.key, tasks, time.time()).sign(founder)
    TaskRegistry(local_specs(manifest, data))  # a task that cannot be made here is a mistake that is found now
    if Shelf(place.swarms).kept(manifest.swarm_id) is not None:
        raise UsageError(f"this home has founded {name} with that genesis already: its manifest is in {place.swarms}")
    write_whole(path, manifest.to_toml().encode(), 0o644)
    settle(manifest, str(path), place)
    _say(f"swarm    {manifest.swarm_id.hex()}")
    _say(f"manifest {path}")
    _say(f"link     {link_of(manifest) or 'none: without a --bootstrap it is joined by its manifest only'}")
    return 0


@app.command
def show(source: str, /, *, json: Json = False) -> int:
    """Show a manifest, after its signature was checked.

    Parameters
    ----------
    source
        FILE, http(s) URL or shoal:// link.
    json
        Print one JSON object instead of text.
    """
    from shoal.node.commands.output import print_json
    from shoal.node.commands.swarm_page import facts, page

    manifest = read_manifest(source)
    if json:
        print_json(facts(manifest))
    else:
        _say(page(manifest))
    return 0


@app.command
def verify(source: str, /, *, json: Json = False, home: Path | None = None) -> int:
    """Check whether this machine and this home can take part: signature, clock, tasks, data sets, admission.

    Parameters
    ----------
    source
        FILE, http(s) URL or shoal:// link.
    json
        Print one JSON object instead of text.
    home
        Folder of the node.
    """
    from shoal.node.commands.output import print_json
    from shoal.node.commands.swarm_page import findings_page
    from shoal.node.datasets import data_folder
    from shoal.node.inspection import inspect

    manifest = read_manifest(source)
    place = Home.find(home)
    findings = inspect(manifest, place, data_folder(place.path), time.time())
    good = all(finding.good for finding in findings)
    if json:
        found = [dataclasses.asdict(finding) for finding in findings]
        print_json({"id": manifest.swarm_id.hex(), "good": good, "findings": found})
    else:
        _say(findings_page(findings))
    return 0 if good else 1


@app.command
def join(
    source: str,
    /,
    *,
    invite: str | None = None,
    data: Annotated[tuple[Path, ...], Parameter(negative="", consume_multiple=True)] = (),
    replace: Annotated[bool, Parameter(negative="")] = False,
    home: Path | None = None,
) -> int:
    """Keep a swarm's manifest in this home, so that `shoal run` finds it, and bind this home's key to an invite.

    Parameters
    ----------
    source
        FILE, http(s) URL or shoal:// link.
    invite
        An invite, or the file that holds it.
    data
        Data set of a task (JSONL) to copy into the home; may be repeated.
    replace
        The address names another swarm than before, and that is meant.
    home
        Folder of the node.
    """
    place = Home.find(home)
    place.require_identity()
    manifest = settle(read_manifest(source), source, place) if replace else load_manifest(source, place)
    _say(f"joined   {safe(manifest.name)} {manifest.swarm_id.hex()}, revision {manifest.revision}")
    if invite is not None:
        _say(f"operator {redeem(_token(invite), manifest, place)}")
    if data:
        from shoal.node.datasets import data_folder, take_in

        for file in data:
            digest = take_in(file, data_folder(place.path))
            names = [task.name for task in manifest.tasks if task.data_sha256 == digest]
            _say(f"data     {digest} {', '.join(names) or 'is of no task of this swarm'}")
    return 0


for verb in (invite, revise, revoke):
    app.command(verb)


def _lineages(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return lineages in hex, or "any" alone, of what --lineage names."""
    if all(map(is_key, names)):
        return names
    if "any" in names:
        return ("any",)
    from shoal.trainer.model import load_policy, model_folder

    folders = {name: model_folder(name) for name in names if not is_key(name)}
    return tuple(load_policy(folders[name]).lineage.hex() if name in folders else name for name in names)


def _token(text: str) -> str:
    """Return an invite that was given as such, or in a file."""
    if text.startswith(TOKEN_PREFIX):
        return text
    try:
        return Path(text).read_text(encoding="ascii")[:MAX_TOKEN_FILE]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--invite: {text[:80]!r} is neither an invite ({TOKEN_PREFIX}…) nor a file with one"
        ) from error


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
