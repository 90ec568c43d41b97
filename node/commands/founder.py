"""What the founder of a swarm does with its manifest: invite, revise, revoke. All of it needs the founder's key."""

import math
import secrets
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from shoal.defenses.text import safe
from shoal.node.founding import Changes, effective_of, is_key, next_revision, with_own_peer
from shoal.node.home import Home
from shoal.node.shelf import Shelf, write_whole
from shoal.node.sources import link_of, read_manifest
from shoal.node.swarms import round_now, settle
from shoal.protocol.errors import UsageError
from shoal.protocol.identity import Identity
from shoal.protocol.invite import TOKEN_PREFIX, issue_invite, read_token, token_text
from shoal.protocol.manifest import Manifest, check_successor

DAYS = 30  # an invite lasts so long unless it is said otherwise

_Many = Annotated[tuple[str, ...], Parameter(negative="", consume_multiple=True)]


def invite(
    file: str,
    /,
    *,
    operator: str,
    expires_rounds: int | None = None,
    days: float | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    home: Path | None = None,
) -> int:
    """Invite an operator: print one word that makes its holder's nodes that operator's. Hand it over in secret.

    Parameters
    ----------
    file
        The manifest: FILE, http(s) URL or shoal:// link.
    operator
        Name of the operator; all nodes of one operator weigh as one.
    expires_rounds
        Rounds from now after which the invite ends.
    days
        The same in days (30 when both are left out).
    json
        Print one JSON object.
    home
        Folder of the founder's node.
    """
    place = Home.find(home)
    manifest = _newest(file, place)
    founder = _founder(manifest, place)
    if manifest.admission.mode != "invite":
        raise UsageError(f"{safe(manifest.name)} takes no invites: its admission is {manifest.admission.mode!r}")
    expires = max(0, round_now(manifest)) + _rounds(expires_rounds, days, manifest)
    token = issue_invite(founder, manifest.swarm_id, operator, expires, secrets.token_bytes(32))
    issued = {"operator": operator, "key": token.invite.key.hex(), "expires_round": expires}
    Shelf(place.swarms).note_issued(manifest.swarm_id, issued)
    if json:
        from shoal.node.commands.output import print_json

        print_json(issued | {"token": token_text(token)})
        return 0
    _say(token_text(token))
    _note(f"for operator {safe(operator)}, to the end of round {expires}; who gets it joins with")
    _note(f"  shoal swarm join {link_of(manifest) or file} --invite INVITE")
    _note("and you revoke it with")
    _note(f"  shoal swarm revoke {file} {token.invite.key.hex()}")
    return 0


def revise(
    file: Path,
    /,
    *,
    set: _Many = (),
    add_operator: _Many = (),
    bootstrap: _Many = (),
    effective_round: str = "+5",
    home: Path | None = None,
) -> int:
    """Sign the next revision of a manifest, in force from a round to come. The file is replaced.

    A node that runs on this home gives it to its peers; it also goes to whoever reads the file.

    Parameters
    ----------
    file
        The manifest.
    set
        FIELD=VALUE, the value as in TOML, e.g. limits.max_lag=4; may be repeated.
    add_operator
        NAME=KEY to admit; may be repeated.
    bootstrap
        Address of a node that newcomers find first, to add; without /p2p/PEER-ID it is this home's own.
    effective_round
        The round from which it is in force: N, or +N from now.
    home
        Folder of the founder's node.
    """
    founder = Identity.load(Home.find(home).require_identity())
    changes = Changes(settings=set, operators=add_operator, bootstraps=with_own_peer(bootstrap, founder))
    return _revise(file, changes, effective_round, home)


def revoke(
    file: Path,
    what: Annotated[tuple[str, ...], Parameter(negative="")],
    /,
    *,
    effective_round: str = "+2",
    home: Path | None = None,
) -> int:
    """Withdraw keys or invites: the next revision of the manifest lets them in no longer. The file is replaced.

    Parameters
    ----------
    file
        The manifest.
    what
        Keys of nodes or of invites, invites, or names of operators (all their keys, and the invites this home gave).
    effective_round
        The round from which it is in force: N, or +N from now.
    home
        Folder of the founder's node.
    """
    place = Home.find(home)
    manifest = _newest(str(file), place)
    keys = tuple(key for text in what for key in _keys(text, manifest, place))
    return _revise(file, Changes(revoked=keys), effective_round, home)


def _revise(file: Path, changes: Changes, effective: str, home: Path | None) -> int:
    place = Home.find(home)
    earlier = _newest(str(file), place)
    founder = _founder(earlier, place)
    later = next_revision(earlier, changes, effective_of(effective, round_now(earlier)))
    if changes == Changes():
        raise UsageError("nothing is changed: say what the next revision is to say")
    check_successor(earlier, later, round_now(earlier))
    later = later.sign(founder)
    settle(earlier, str(file), place)
    settle(later, str(file), place)
    write_whole(file, later.to_toml().encode(), 0o644)
    _say(f"revision {later.revision}, in force from round {later.effective_round} (now {round_now(later)})")
    if earlier.effective_round > later.effective_round:
        _note(f"it overtakes revision {earlier.revision}: what that one changes comes with it, and earlier")
    _say(f"manifest {file}")
    return 0


def _newest(source: str, place: Home) -> Manifest:
    """Return the newest manifest that the source or this home knows: a revision follows that one."""
    manifest = read_manifest(source)
    later = Shelf(place.swarms).newest(manifest.swarm_id)
    return manifest if later is None or later.revision <= manifest.revision else later


def _founder(manifest: Manifest, place: Home) -> Identity:
    founder = Identity.load(place.require_identity())
    if founder.key.hex() != manifest.founder:
        raise UsageError(
            f"only its founder {manifest.founder[:16]} can do this, and the key of {place.path} is "
            f"{founder.key.hex()[:16]}: give the founder's --home"
        )
    return founder


def _keys(text: str, manifest: Manifest, place: Home) -> list[str]:
    """Return the keys that a key, an invite or an operator's name stands for."""
    if is_key(text):
        return [text]
    if text.startswith(TOKEN_PREFIX):
        return [read_token(text).invite.key.hex()]
    issued = Shelf(place.swarms).issued(manifest.swarm_id)
    keys = [*manifest.admission.operators.get(text, []), *(item["key"] for item in issued if item["operator"] == text)]
    if not keys:
        raise UsageError(f"{text[:80]!r} is no key, no invite and no operator with listed keys or invites of this home")
    return keys


def _rounds(rounds: int | None, days: float | None, manifest: Manifest) -> int:
    """Return for how many rounds an invite is to serve."""
    if rounds is not None and days is not None:
        raise UsageError("give --expires-rounds or --days, not both")
    if rounds is None:
        rounds = math.ceil((DAYS if days is None else days) * 86_400 / manifest.round_seconds)
    if rounds < 1:
        raise UsageError("an invite lasts at least one round")
    return rounds


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _note(text: str) -> None:
    """Say something to the person alone: standard output may go into a file."""
    sys.stderr.write(text + "\n")
