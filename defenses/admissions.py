"""Who stands behind a key: the manifest's operators and, in an invite swarm, whoever showed a verified invite."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.defenses.config import DefenseConfig
from shoal.defenses.verdict import Counters
from shoal.protocol.errors import ProtocolError
from shoal.protocol.invite import read_chain
from shoal.protocol.manifest import Manifest


@dataclass(frozen=True, slots=True)
class _Member:
    operator: str
    invite: bytes  # its public key, by which the founder revokes all that it bound
    expires: int
    chain: bytes


class Admissions:
    """Knows the operator of a key in a round, by the manifest in force and by the invites that peers showed.

    Bounded: each invite keeps its latest `members_per_invite` keys, so that nobody pushes out the keys of another
    invite by making keys of their own, and the invite with most keys gives way when all places are taken.
    """

    def __init__(self, manifest: Manifest, config: DefenseConfig, counters: Counters) -> None:
        self.manifest = manifest
        self._config = config
        self._counters = counters
        self._members: dict[bytes, _Member] = {}
        self._by_invite: dict[bytes, dict[bytes, None]] = {}  # keys in order of sight, latest last

    def adopt(self, manifest: Manifest) -> None:
        """Judge by a new revision from now on: what it revokes counts no longer."""
        self.manifest = manifest

    def learn(self, key: bytes, chain: bytes) -> None:
        """Take the invite from a peer's record, whose signature is verified: without it a chain proves no consent.

        What is wrong with an invite is counted, and nobody is blamed. Whether it serves is judged at each use.
        """
        if self.manifest.admission.mode != "invite" or not chain or self.manifest.operator_of(key) is not None:
            return
        known = self._members.get(key)
        if known is None or known.chain != chain:  # else it was verified already: records come again and again
            try:
                invite = read_chain(chain, self.manifest, key)
            except ProtocolError as error:
                self._counters.add("invite", error.reason)
                return
            known = _Member(invite.operator, invite.key, invite.expires, chain)
            self._counters.add("invite", "learned")
        self._put(key, known)

    def operator_of(self, key: bytes, current_round: int) -> str | None:
        """The operator behind a key, None for one that is not admitted. In open swarms an unlisted key is its own."""
        listed = self.manifest.operator_of(key)
        if listed is not None or self.refusal(key, current_round):
            return listed
        return self._members[key].operator

    def refusal(self, key: bytes, current_round: int) -> str:
        """Why a key is not admitted: revoked, invite_expired or not_admitted; "" for one that is."""
        if self.manifest.is_revoked(key):
            return "revoked"
        if self.manifest.operator_of(key) is not None:
            return ""
        member = self._members.get(key) if self.manifest.admission.mode == "invite" else None
        if member is None:
            return "not_admitted"
        if self.manifest.is_revoked(member.invite):
            return "revoked"
        return "invite_expired" if current_round > member.expires else ""

    def expire(self, oldest_round: int) -> None:
        """Forget the keys whose invites ended before a round."""
        for key in [key for key, member in self._members.items() if member.expires < oldest_round]:
            self._forget(key)

    def _put(self, key: bytes, member: _Member) -> None:
        if key in self._members:
            self._forget(key)
        kept = self._by_invite.get(member.invite, {})
        if len(kept) >= self._config.members_per_invite:
            self._evict(member.invite)
        elif len(self._members) >= self._config.members:
            self._evict(max(self._by_invite, key=lambda invite: len(self._by_invite[invite])))
        self._members[key] = member
        self._by_invite.setdefault(member.invite, {})[key] = None

    def _evict(self, invite: bytes) -> None:
        self._forget(next(iter(self._by_invite[invite])))
        self._counters.add("invite", "evicted_key")

    def _forget(self, key: bytes) -> None:
        invite = self._members.pop(key).invite
        del self._by_invite[invite][key]
        if not self._by_invite[invite]:
            del self._by_invite[invite]

    def state(self) -> list[Any]:
        """Return the keys that invites admitted as plain lists, in order of sight."""
        order = [key for keys in self._by_invite.values() for key in keys]
        members = [(key, self._members[key]) for key in order]
        return [[key, member.operator, member.invite, member.expires, member.chain] for key, member in members]

    def restore(self, state: Sequence[Any]) -> None:
        """Take over what `state` returned; what was verified then is not verified again."""
        self._members, self._by_invite = {}, {}
        for key, operator, invite, expires, chain in state:
            self._put(bytes(key), _Member(str(operator), bytes(invite), int(expires), bytes(chain)))
