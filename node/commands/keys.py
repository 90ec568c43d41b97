"""`shoal keys show | backup | restore | rotate`: the identity of a node, which is its name in every swarm."""

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from shoal.node.backup import passphrase_of, put_in_place, read_backup, write_backup
from shoal.node.commands.output import print_json
from shoal.node.home import Home
from shoal.node.store.leap import leap
from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.protocol.identity import Identity, short
from shoal.protocol.libp2p.keys import peer_id
from shoal.protocol.records import GOSSIP, TRANSPORT

Flag = Annotated[bool, Parameter(negative="")]

app = App(name="keys", help="The identity of a node: show, back up, restore, rotate.")


@app.command
def show(*, home: Path | None = None, json: Flag = False) -> int:
    """Print the public key, and what follows from it. No secret is shown.

    Parameters
    ----------
    home
        Folder of the node.
    json
        Print one JSON object.
    """
    place = Home.find(home)
    identity = Identity.load(place.require_identity())
    ids = {
        name: peer_id(Identity.from_seed(identity.derive(purpose)).key)
        for name, purpose in (("transport", TRANSPORT), ("gossip", GOSSIP))
    }
    made = datetime.fromtimestamp(place.identity.stat().st_mtime, UTC).isoformat(timespec="seconds")
    facts = {
        "key": identity.key.hex(),
        "short": short(identity.key),
        "libp2p": ids,
        "path": str(place.identity),
        "since": made,
    }
    if json:
        print_json(facts)
        return 0
    sys.stdout.write(
        f"key      {facts['key']}\nshort    {facts['short']}\nsince    {made}\nfile     {place.identity}\n"
        f"address  /ip4/HOST/tcp/PORT/p2p/{ids['transport']}  (HOST and PORT: where others reach this node)\n"
    )
    return 0


@app.command
def backup(file: Path, /, *, home: Path | None = None, passphrase_file: Path | None = None) -> int:
    """Write the identity to a file (PKCS8 PEM) that only its owner can read.

    Parameters
    ----------
    file
        The backup; an existing file is never replaced.
    home
        Folder of the node.
    passphrase_file
        File whose first line encrypts the backup ($SHOAL_PASSPHRASE serves too).
    """
    identity = Identity.load(Home.find(home).require_identity())
    passphrase = passphrase_of(passphrase_file)
    write_backup(identity, file, passphrase)
    how = "encrypted" if passphrase else "not encrypted: keep it where nobody else reads"
    sys.stdout.write(f"{file}: identity {short(identity.key)}, {how}\n")
    return 0


@app.command
def restore(
    file: Path, /, *, home: Path | None = None, passphrase_file: Path | None = None, force: Flag = False
) -> int:
    """Take the identity of a backup. It is the same node then: never run it in two places at once.

    When a node comes back to a home after it has run elsewhere, restore it there once more: so it goes on above the
    numbers that it has used in the meantime.

    Parameters
    ----------
    file
        The backup, or a file that `keys rotate` has kept.
    home
        Folder of the node.
    passphrase_file
        File whose first line is the passphrase ($SHOAL_PASSPHRASE serves too).
    force
        Put an identity that is there aside.
    """
    place = Home.make(home)
    with place.lock():
        restored = read_backup(file, passphrase_of(passphrase_file))
        _say(_restore(place.identity, restored, force))
        if place.database.exists():
            leap(place.database, time.time())
    return 0


def _restore(path: Path, restored: Identity, force: bool) -> str:
    """Put a restored identity in its place, and return what was done in words."""
    done = f"{path}: identity {short(restored.key)}"
    if not path.exists():
        restored.save(path)
        return done
    try:
        here = Identity.load(path).key
    except EnvironmentFault as error:
        if not force:
            raise EnvironmentFault(f"{error}; --force puts what is there aside") from error
        here = b""
    if here == restored.key:
        return f"{done} was there already"
    if not force:
        raise UsageError(f"{path} holds another identity ({short(here)}): --force puts it aside")
    return f"{done}; what was here is kept as {put_in_place(restored, path)}"


@app.command
def rotate(*, home: Path | None = None) -> int:
    """Begin a new identity; the old one is put aside.

    To others this is another node: it has to be admitted or invited again, and its good name begins anew. A swarm that
    the old identity founded can be revised with the old one only; `keys restore` takes it back from where it is kept.

    Parameters
    ----------
    home
        Folder of the node.
    """
    place = Home.find(home)
    place.require_identity()
    identity = Identity.generate()
    with place.lock():
        aside = put_in_place(identity, place.identity)
    _say(f"new key  {identity.key.hex()}\nold key  kept as {aside}")
    _say("To others this is another node: have it admitted or invited again where that is needed.")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
