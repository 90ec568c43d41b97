"""The swarm that a node lives in: its manifest found and kept, its revisions taken up in their rounds, its invite."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from shoal.defenses.text import safe
from shoal.node.shelf import Shelf
from shoal.node.sources import is_link, is_url, parse_link, read_manifest, read_text
from shoal.protocol.errors import EnvironmentFault, ProtocolError, ShoalError, UsageError
from shoal.protocol.identity import Identity
from shoal.protocol.invite import bind, open_invite, read_token
from shoal.protocol.manifest import Manifest
from shoal.protocol.revisions import RevisionLine
from shoal.protocol.staleness import round_at

log = logging.getLogger(__name__)


class SwarmHome(Protocol):
    """What is needed of a home: the file of its identity, and the folder of its swarms."""

    @property
    def identity(self) -> Path: ...
    @property
    def swarms(self) -> Path: ...


class Revisions:
    """The manifest of one swarm as time goes on: what is in force, what is served, and what this node shows of itself.

    New revisions come from peers (`offer`) or from a command on the same home, which leaves them on the shelf.
    """

    def __init__(self, manifest: Manifest, home: SwarmHome | None = None) -> None:
        self._line = RevisionLine(manifest)
        self._home = home
        self._shelf = None if home is None else Shelf(home.swarms)
        self._kept: Manifest | None = None  # what the shelf holds as in force
        self._refused: set[str] = set()
        self._round: int | None = None
        self.invite = b""
        """The chain that the node's record shows; b"" without one."""
        self._look()

    @property
    def name(self) -> str:
        """The swarm's name, as its founder wrote it."""
        return safe(self._line.newest.name)

    @property
    def newest(self) -> int:
        """The highest revision known, in force or not: what the node's record says, so that others ask for it."""
        return self._line.newest.revision

    def round_at(self, now: float) -> int:
        """Return the swarm's round at an instant in seconds since 1970; genesis and length of rounds never change."""
        return round_at(now, self._line.newest.genesis, self._line.newest.round_seconds)

    def document(self) -> bytes:
        """Return what is served to peers: the newest revision, signed, as TOML."""
        return self._line.newest.to_toml().encode()

    def offer(self, text: str) -> bool:
        """Take a manifest as TOML from a peer; False when it is nothing new.

        Raises UsageError or a ProtocolError for one that is not signed by the founder or cannot follow.
        """
        later = Manifest.from_toml(text)
        later.verify()
        return self.take(later)

    def take(self, later: Manifest) -> bool:
        """Take a manifest whose signature is verified; False when it is nothing new. Raises as `offer`."""
        taken = self._line.add(later)
        if taken and self._shelf is not None:
            self._guarded(self._shelf.put, later)
        return taken

    def current(self, round: int) -> Manifest:
        """Return the manifest in force in a round; looks once a round for what a command left on the shelf."""
        if round != self._round:
            self._round = round
            self._look()
        manifest = self._line.at(round)
        if self._shelf is not None and self._home is not None and manifest is not self._kept:
            self._guarded(self._shelf.keep, manifest)
            self._kept = manifest
            warn_of_refusal(manifest, self._home)
        return manifest

    def _guarded(self, write: Callable[[Manifest], None], manifest: Manifest) -> None:
        """Write, or say why not: a full disk does not keep a revision from coming into force."""
        try:
            write(manifest)
        except EnvironmentFault as fault:
            log.warning("%s", fault)

    def _look(self) -> None:
        if self._shelf is None:
            return
        swarm_id = self._line.newest.swarm_id
        try:
            self.invite = self._shelf.invite(swarm_id)
            for path in self._shelf.later(swarm_id, self.newest):
                if path.name not in self._refused:
                    self._take(path)
        except OSError as error:
            log.warning("cannot look for new revisions: %s", error)
        except EnvironmentFault as fault:
            log.warning("%s", fault)

    def _take(self, path: Path) -> None:
        try:
            self._line.add(read_text(path.read_bytes(), str(path)))
        except (UsageError, ProtocolError) as error:
            self._refused.add(path.name)
            log.warning("a revision is not taken up: %s", error)


def load_manifest(source: str, home: SwarmHome) -> Manifest:
    """Return the manifest in force of the swarm at a FILE, URL or shoal:// link, and keep it in the home.

    What is kept serves when the source does not answer, and when it is behind what peers have told. Raises UsageError
    for what is no manifest of its founder, or another swarm than the same address named before; EnvironmentFault when
    nothing can be had.
    """
    shelf = Shelf(home.swarms)
    known = _known_id(source, shelf)
    try:
        manifest = read_manifest(source)
    except ShoalError as error:
        kept = shelf.kept(known) if known is not None else None
        if kept is None:
            raise
        log.warning("%s; the manifest of the last time serves", error)
        manifest = kept
    if known is not None and manifest.swarm_id != known:
        raise UsageError(
            f"{source} names another swarm than before ({manifest.swarm_id.hex()}, not {known.hex()}): if that is "
            f"meant, take it with `shoal swarm join {source} --replace`"
        )
    return settle(manifest, source, home)


def settle(manifest: Manifest, source: str, home: SwarmHome) -> Manifest:
    """Keep a manifest that a source gave beside what is known, and return the one that is in force now."""
    shelf = Shelf(home.swarms)
    if is_url(source):
        shelf.remember(source, manifest.swarm_id)
    kept = shelf.kept(manifest.swarm_id)
    if kept is None:
        shelf.keep(manifest)
        return manifest
    line = RevisionLine(kept)
    for later in shelf.revisions(kept.swarm_id, kept.revision):
        line.add(later)
    try:
        if line.add(manifest):
            shelf.put(manifest)
    except ProtocolError as error:
        raise UsageError(f"{source}: {error}; what this home knows is in {shelf.folder}") from error
    return line.at(round_at(time.time(), kept.genesis, kept.round_seconds))


def open_swarm(source: str | None, home: SwarmHome, invite: str | None = None) -> Revisions:
    """Return the swarm to live in: of a source, or the one that this home has joined; with an invite's token, join.

    Raises as load_manifest and redeem, and UsageError when no source is given and none or several were joined.
    """
    manifest = _only_one(Shelf(home.swarms)) if source is None else load_manifest(source, home)
    if invite is not None:
        redeem(invite, manifest, home)
    return Revisions(manifest, home)


def standing(manifest: Manifest, home: SwarmHome) -> tuple[bool, str]:
    """Return whether this home is admitted, and in words how or why not. Raises EnvironmentFault without identity."""
    mode, key = manifest.admission.mode, Identity.load(home.identity).key
    if manifest.is_revoked(key):
        return False, f"{mode}; the founder has revoked this home's key"
    operator = manifest.operator_of(key)
    if operator is not None:
        return True, mode if operator == key.hex() else f"{mode}; this home is operator {operator}"
    if mode != "invite":
        return False, f"{mode}; this home's key {key.hex()} is not listed"
    chain = Shelf(home.swarms).invite(manifest.swarm_id)
    if not chain:
        return False, "invite; this home has none (`shoal swarm join --invite`)"
    try:
        operator = open_invite(chain, manifest, key, round_now(manifest))
    except ProtocolError as error:
        return False, f"invite; this home's does not serve: {error}"
    return True, f"invite; this home is operator {operator}"


def redeem(token_text: str, manifest: Manifest, home: SwarmHome) -> str:
    """Bind the home's key to an invite, keep the chain (not the invite's secret), and return the operator's name.

    Raises UsageError for an invite that is damaged, of another swarm or founder, expired or revoked.
    """
    token = read_token(token_text)
    if token.swarm_id != manifest.swarm_id:
        raise UsageError(f"the invite is for another swarm ({token.swarm_id.hex()}), not for {safe(manifest.name)}")
    if manifest.admission.mode != "invite":
        raise UsageError(f"{safe(manifest.name)} takes no invites: its admission is {manifest.admission.mode!r}")
    key = Identity.load(home.identity).key
    chain = bind(token, key)
    newest = Shelf(home.swarms).newest(manifest.swarm_id) or manifest  # it may revoke what is not revoked yet
    try:
        open_invite(chain, newest, key, round_now(newest))
    except ProtocolError as error:
        raise UsageError(f"the invite does not serve: {error}; ask the founder for a new one") from error
    Shelf(home.swarms).keep_invite(manifest.swarm_id, chain)
    return token.invite.operator


def warn_of_refusal(manifest: Manifest, home: SwarmHome) -> None:
    """Say it in the log when this home is not admitted: else its owner would wonder why nobody uses its work."""
    try:
        admitted, how = standing(manifest, home)
    except EnvironmentFault as fault:
        log.warning("%s", fault)
        return
    if not admitted:
        log.warning("this home is not admitted, so peers refuse what it shares: %s", how)


def round_now(manifest: Manifest) -> int:
    """Return the swarm's round by this machine's clock; negative before genesis."""
    return round_at(time.time(), manifest.genesis, manifest.round_seconds)


def _known_id(source: str, shelf: Shelf) -> bytes | None:
    """Return which swarm a source names, as far as that is settled before it is read: files may name any."""
    if is_link(source):
        return parse_link(source).swarm_id
    return shelf.remembered(source) if is_url(source) else None


def _only_one(shelf: Shelf) -> Manifest:
    joined = shelf.swarms()
    if len(joined) != 1:
        many = f"this home has joined {len(joined)} swarms" if joined else "this home has joined no swarm yet"
        raise UsageError(f"{many}: say which with --swarm FILE, URL or shoal://ID@MULTIADDR")
    manifest = shelf.kept(joined[0])
    assert manifest is not None
    line = RevisionLine(manifest)
    for later in shelf.revisions(manifest.swarm_id, manifest.revision):
        line.add(later)
    return line.at(round_now(manifest))
