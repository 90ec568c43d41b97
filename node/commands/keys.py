"""`shoal keys show | backup | restore | rotate`: the identity of a node, which is its name in every swarm."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from shoal.protocol.errors import UsageError

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
    from shoal.node.commands.output import print_json
    from shoal.node.home import Home
    from shoal.protocol.identity import Identity, short
    from shoal.protocol.libp2p.keys import peer_id
    from shoal.protocol.records import GOSSIP, TRANSPORT

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
    from shoal.node.backup import passphrase_of, write_backup
    from shoal.node.home import Home
    from shoal.protocol.identity import Identity, short

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

    Parameters
    ----------
    file
        The backup.
    home
        Folder of the node.
    passphrase_file
        File whose first line is the passphrase ($SHOAL_PASSPHRASE serves too).
    force
        Put an identity that is there aside.
    """
    from shoal.node.backup import passphrase_of, put_aside, read_backup
    from shoal.node.home import Home
    from shoal.protocol.identity import Identity, short

    place = Home.make(home)
    with place.lock():
        restored = read_backup(file, passphrase_of(passphrase_file))
        if place.identity.exists():
            here = Identity.load(place.identity)
            if here.key == restored.key:
                sys.stdout.write(f"{place.identity}: is this identity already\n")
                return 0
            if not force:
                raise UsageError(f"{place.identity} holds another identity ({short(here.key)}): --force puts it aside")
            sys.stdout.write(f"the identity that was here is now {put_aside(place.identity)}\n")
        restored.save(place.identity)
    sys.stdout.write(f"{place.identity}: identity {short(restored.key)}\n")
    return 0


@app.command
def rotate(*, home: Path | None = None) -> int:
    """Begin a new identity; the old one is put aside.

    To others this is another node: it has to be admitted or invited again, and its good name begins anew.

    Parameters
    ----------
    home
        Folder of the node.
    """
    from shoal.node.backup import put_aside
    from shoal.node.home import Home
    from shoal.protocol.identity import Identity

    place = Home.find(home)
    place.require_identity()
    with place.lock():
        aside = put_aside(place.identity)
        identity = Identity.generate()
        identity.save(place.identity)
    sys.stdout.write(
        f"new key  {identity.key.hex()}\nold key  {aside}\n"
        "To others this is another node: have it admitted or invited again where that is needed.\n"
    )
    return 0
