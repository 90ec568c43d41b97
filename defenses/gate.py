"""The one admission gate: every announcement passes here or nowhere, cheapest checks first."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.defenses.config import DefenseConfig
from shoal.defenses.memory import GateMemory
from shoal.defenses.newcomers import PrefixOf, no_prefix
from shoal.defenses.pointer import Held, Pointer
from shoal.defenses.reputation import Reputation, key_subject, sender_subject
from shoal.defenses.verdict import ACCEPTED, Counters, Verdict, reject
from shoal.protocol.envelope import PROTOCOL_VERSION, Announcement, Header, Kind, verify_announcement
from shoal.protocol.errors import InvalidKey, ProtocolError
from shoal.protocol.limits import Limits
from shoal.protocol.manifest import Manifest
from shoal.protocol.staleness import Clock, Freshness, freshness

# How many rounds the seen-set outlives the staleness bound: a clock that steps back opens no door for replays.
SEEN_MARGIN = 2
# Where the envelope's layout keeps its version, in every version to come.
_DOMAIN = b"shoal:"
_VERSION = slice(16, 18)


@dataclass(frozen=True, slots=True)
class GateContext:
    """What the gate judges by: the swarm's manifest, whose gate it is, the caps, the switches, and where keys live."""

    manifest: Manifest
    own_key: bytes
    limits: Limits = field(default_factory=Limits)
    config: DefenseConfig = field(default_factory=DefenseConfig)
    prefix_of: PrefixOf = no_prefix


class Gate:
    """Admits announcements; bounded in memory, silent about nothing, and never raising for what a peer sent.

    `lag(round)` tells how many updates this node has completed since that round began.
    """

    def __init__(
        self,
        context: GateContext,
        clock: Clock,
        lag: Callable[[int], int],
        reputation: Reputation | None = None,
        counters: Counters | None = None,
    ) -> None:
        self.context = context
        self.counters = counters if counters is not None else Counters()
        config = context.config
        self.reputation = reputation if reputation is not None else Reputation(config, self.counters)
        self.memory = GateMemory(context.manifest, config, self.counters, context.prefix_of)
        self.admissions, self.equivocations = self.memory.admissions, self.memory.equivocations
        self._clock = clock
        self._lag = lag
        self._round = 0
        self._arrival = 0

    def admit(self, data: bytes, sender: bytes) -> Pointer | Held | Verdict:
        """Judge one announcement that `sender` (the transport's name for who handed it on) delivered."""
        self._advance()
        outcome = self._judge(data, sender)
        if isinstance(outcome, Pointer):
            self.counters.add("gate", "accepted")
        elif isinstance(outcome, Held):
            self.counters.add("gate", "held")
        else:
            self.counters.add(outcome.layer, outcome.reason)
        return outcome

    def release(self, round_number: int) -> list[Pointer]:
        """Admit the held announcements whose round has begun.

        Sender and signature were judged when they came: nobody is charged a second time, and what is refused now
        counts apart from first refusals.
        """
        self._advance()
        due = self.memory.held.release(min(round_number, self._round))  # set back, it releases nothing early
        outcomes = [self._readmit(data) for data, _ in due]
        return [outcome for outcome in outcomes if outcome is not None]

    def _readmit(self, data: bytes) -> Pointer | None:
        announcement = Announcement.decode(data)
        header = announcement.header
        outcome = self._standing(header) or self._quota(header) or self._enter(announcement, _digest(header))
        if isinstance(outcome, Verdict):
            self.counters.add(outcome.layer, f"{outcome.reason}_held")
            return None
        self.counters.add("gate", "released")
        return outcome

    def recheck(self, pointer: Pointer) -> Verdict:
        """Judge a pooled pointer again at the moment of use: it has aged, and its key may be revoked or muted since."""
        self._advance()
        header = pointer.announcement.header
        refusal = self._standing(header)
        if refusal is None and self._early(header):
            refusal = reject("header", "early")  # the clock was set back: its round has not begun any more
        if refusal is None:
            return ACCEPTED
        self.counters.add(refusal.layer, f"{refusal.reason}_pooled")  # it was admitted once: no second refusal
        return refusal

    def adopt(self, manifest: Manifest) -> None:
        """Judge by a new revision of the manifest from now on."""
        self.context = replace(self.context, manifest=manifest)
        self.memory.adopt(manifest)

    def _judge(self, data: bytes, sender: bytes) -> Pointer | Held | Verdict:
        refusal = self._sender(data, sender)
        if refusal is not None:
            return refusal
        if _speaks_otherwise(data):
            return reject("header", "unknown_version")
        try:
            announcement = Announcement.decode(data)
        except ProtocolError as error:
            self._blame(sender)
            return reject("header", error.reason)
        header = announcement.header
        digest = _digest(header)
        refusal = (
            self._foreign(header)
            or self._standing(header)
            or self._known(digest)
            or self._quota(header)
            or self._signature(announcement, sender)
            or self._equivocation(announcement)
        )
        if refusal is not None:
            return refusal
        return self._hold(header, digest, data, sender) or self._enter(announcement, digest)

    def _sender(self, data: bytes, sender: bytes) -> Verdict | None:
        """What costs next to nothing: muted or over-spent senders, and the size."""
        if self._on("reputation") and self.reputation.muted(sender_subject(sender)):
            return reject("reputation", "muted_sender")
        if self._on("quota") and not self.memory.senders.charge(sender, len(data)):
            return reject("quota", "bytes_per_sender")
        if len(data) > self.context.limits.announcement_bytes:
            self._blame(sender)
            return reject("header", "announcement_too_large")
        return None

    def _foreign(self, header: Header) -> Verdict | None:
        """What is not meant for this node; nobody is blamed. These checks cannot be switched off."""
        if header.kind is not Kind.ROLLOUT:
            return reject("header", "wrong_kind")
        if header.version not in self.context.manifest.protocol_versions:
            return reject("header", "unknown_version")
        if self._on("header") and header.swarm_id != self.context.manifest.swarm_id:
            return reject("header", "wrong_swarm")
        return reject("header", "own_key") if header.key == self.context.own_key else None

    def _standing(self, header: Header) -> Verdict | None:
        """What may change while an announcement is kept: who is admitted or muted, and how old it is."""
        return self._admission(header) or self._reputation(header) or self._staleness(header)

    def _admission(self, header: Header) -> Verdict | None:
        if not self._on("admission"):
            return None
        reason = self.admissions.refusal(header.key, self._round)
        return reject("admission", reason) if reason else None

    def _reputation(self, header: Header) -> Verdict | None:
        if not self._on("reputation"):
            return None
        if self.equivocations.banned(header.key):
            return reject("reputation", "equivocated")
        return reject("reputation", "muted_key") if self.reputation.muted(key_subject(header.key)) else None

    def _staleness(self, header: Header) -> Verdict | None:
        """Age in rounds and lag in own updates; what is one round early passes here and is held later."""
        if not self._on("header"):
            return None
        limits = self.context.manifest.limits
        fresh = freshness(self._round, header.round, limits.max_age_rounds)
        if fresh in (Freshness.STALE, Freshness.AHEAD):
            return reject("header", fresh.value)
        if fresh is Freshness.FRESH and self._lag(header.round) > limits.max_lag:
            return reject("header", "lag")
        return None

    def _early(self, header: Header) -> bool:
        return self._on("header") and header.round == self._round + 1

    def _known(self, digest: bytes) -> Verdict | None:
        known = self._on("header") and self.memory.known(digest)
        return reject("header", "seen") if known else None

    def _quota(self, header: Header) -> Verdict | None:
        if not self._on("quota"):
            return None
        if header.payload_length > self.context.limits.blob_bytes:
            return reject("quota", "blob_bytes")
        reason = self.memory.keys.room(header.key, header.round, header.payload_length)
        return reject("quota", reason) if reason else None

    def _signature(self, announcement: Announcement, sender: bytes) -> Verdict | None:
        if not self._on("header"):
            return None
        try:
            verify_announcement(announcement)
        except InvalidKey as error:
            self._blame(sender)
            return reject("admission", error.reason)
        except ProtocolError as error:
            self._blame(sender)
            return reject("header", error.reason)
        return None

    def _equivocation(self, announcement: Announcement) -> Verdict | None:
        """Compare with what the key signed before. Without the header layer nothing is verified, and nothing proved."""
        if not (self._on("header") and self._on("reputation")):
            return None
        operator = self.operator_of(announcement.header.key) or ""
        return reject("reputation", "equivocated") if self.equivocations.witness(announcement, operator) else None

    def _hold(self, header: Header, digest: bytes, data: bytes, sender: bytes) -> Held | Verdict | None:
        """Keep what is of the coming round. It is verified already: nobody fills another key's places."""
        if not self._early(header):
            return None
        kept = self.memory.held.keep(digest, (header.round, header.key), data, sender)
        return Held(header.round) if kept else reject("quota", "held")

    def _enter(self, announcement: Announcement, digest: bytes) -> Pointer | Verdict:
        """Charge and remember: only here, after the signature, does a message cost its key anything."""
        header = announcement.header
        if self._unlisted(header.key):
            self.memory.newcomers.meet(header.key, self._round)
        operator = self.operator_of(header.key) or header.key.hex()
        if self._on("header"):
            try:
                self.memory.accept_sequence(operator, header)
            except ProtocolError as error:
                return reject("header", error.reason)
        self.memory.keys.charge(header.key, header.round, header.payload_length)
        self.memory.see(operator, digest, header.round)
        self._arrival += 1
        return Pointer(announcement, operator, self._round, self._arrival)

    def operator_of(self, key: bytes) -> str | None:
        """Return whom a key counts for now, None for one that is not admitted; see `newcomers` for open swarms."""
        if not self._on("admission"):
            return key.hex()
        if self._unlisted(key):
            return self.memory.newcomers.operator_of(key, self._round)
        return self.admissions.operator_of(key, self._round)

    def _unlisted(self, key: bytes) -> bool:
        """Whether this is a key of an open swarm that nobody vouches for."""
        return self._on("admission") and self.admissions.operator_of(key, self._round) == key.hex()

    def _advance(self) -> None:
        """Begin a new round: new accounts for senders, and what is too old to come again is forgotten."""
        current = self._clock.round()
        if current == self._round:
            return
        self._round = current
        self.reputation.advance(current)
        self.memory.begin(current, current - self.context.manifest.limits.max_age_rounds - SEEN_MARGIN)

    def _blame(self, sender: bytes) -> None:
        if self._on("reputation"):
            self.reputation.offend(sender_subject(sender))

    def _on(self, layer: str) -> bool:
        return self.context.config.on(layer)

    def state(self) -> dict[str, Any]:
        """Return everything remembered as plain types; counters and reputation keep their own."""
        return {"round": self._round, "arrival": self._arrival, **self.memory.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self._round = int(state["round"])
        self._arrival = int(state["arrival"])
        self.memory.restore(state)


def _digest(header: Header) -> bytes:
    """The name of an announcement: never of its signature, since a key can sign one header in many ways."""
    return hashlib.sha256(header.encode()).digest()


def _speaks_otherwise(data: bytes) -> bool:
    """Whether this is an envelope of another protocol version: ignored whatever its size, and nobody's offence."""
    version = data[_VERSION]
    return data.startswith(_DOMAIN) and len(version) == 2 and int.from_bytes(version, "big") != PROTOCOL_VERSION
