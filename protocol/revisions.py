"""The revisions of one swarm that a node knows: which is in force in a round, and which is the newest."""

from __future__ import annotations

from shoal.protocol.errors import ProtocolError
from shoal.protocol.manifest import Manifest, check_follows

MAX_PENDING = 16  # revisions that wait for their round; only the founder can make them, and has no use for more


class RevisionLine:
    """Revisions in order. The manifests that come in are verified already, by whoever read them.

    The first is in force from the start. A later one is in force from its round on, and what it overtakes is forgotten:
    a clock that steps back brings nothing back.
    """

    def __init__(self, first: Manifest) -> None:
        self._known = [first]

    @property
    def newest(self) -> Manifest:
        """The highest revision that is known, in force or not."""
        return self._known[-1]

    def add(self, later: Manifest) -> bool:
        """Take a revision; False for one that is known or overtaken.

        Raises UsageError when it cannot follow, ProtocolError manifest_conflict when the founder signed two manifests
        under one number (the first one seen stays; a higher revision heals it), or too_many_revisions.
        """
        if later.swarm_id == self.newest.swarm_id and later.revision <= self.newest.revision:
            for known in self._known:
                if known.revision == later.revision and known.canonical() != later.canonical():
                    raise ProtocolError("manifest_conflict", f"two manifests are signed as revision {later.revision}")
            return False
        check_follows(self.newest, later)
        if len(self._known) > MAX_PENDING:
            raise ProtocolError("too_many_revisions", f"{MAX_PENDING} wait for their round already")
        self._known.append(later)
        return True

    def at(self, round: int) -> Manifest:
        """The revision in force in a round, of those that were not overtaken in an earlier call."""
        due = [place for place, known in enumerate(self._known) if place and known.effective_round <= round]
        if due:
            del self._known[: due[-1]]
        return self._known[0]
