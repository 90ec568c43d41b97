"""The signed manifest: what a swarm is, who may take part, and within which limits."""

from __future__ import annotations

import hashlib
import json
import struct
from functools import cached_property
from typing import Annotated, Any

import msgspec

from shoal.protocol import manifest_rules, manifest_toml
from shoal.protocol.envelope import (
    NO_HASH,
    PROTOCOL_VERSION,
    Announcement,
    Header,
    Kind,
    payload_hash,
    seal,
    verify_announcement,
)
from shoal.protocol.errors import BadSignature, UsageError
from shoal.protocol.identity import Identity
from shoal.protocol.manifest_parts import Admission, Natural, Positive, SwarmLimits, TaskEntry

__all__ = ["Admission", "Manifest", "SwarmLimits", "TaskEntry", "check_follows", "check_successor"]

_SWARM_DOMAIN = b"shoal/swarm/1"


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """A swarm. `founder` is a public key in hex, genesis in seconds since 1970, `signature` the founder's in hex."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    founder: str
    genesis: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    round_seconds: Positive
    tasks: list[TaskEntry]
    lineages: list[str] = []  # hex; none: any
    limits: SwarmLimits = msgspec.field(default_factory=SwarmLimits)
    admission: Admission = msgspec.field(default_factory=Admission)
    bootstraps: list[str] = []
    protocol_versions: list[int] = msgspec.field(default_factory=lambda: [PROTOCOL_VERSION])
    revision: Natural = 0
    effective_round: Natural = 0
    revoked: list[str] = []  # public keys in hex
    signature: str = ""

    @cached_property
    def swarm_id(self) -> bytes:
        """SHA-256 of founder, genesis and name: later revisions keep it, another founder cannot take it."""
        fixed = struct.pack(">32sQ", bytes.fromhex(self.founder), self.genesis)
        return hashlib.sha256(_SWARM_DOMAIN + fixed + self.name.encode("utf-8")).digest()

    @cached_property
    def _operators(self) -> dict[bytes, str]:
        return {bytes.fromhex(key): name for name, keys in self.admission.operators.items() for key in keys}

    @cached_property
    def _revoked(self) -> frozenset[bytes]:
        return frozenset(bytes.fromhex(key) for key in self.revoked)

    def is_revoked(self, key: bytes) -> bool:
        """Whether the founder has withdrawn a key."""
        return key in self._revoked

    def operator_of(self, key: bytes) -> str | None:
        """The operator behind a key, or None when it is not admitted. In open swarms an unlisted key is its own."""
        if key in self._revoked:
            return None
        operator = self._operators.get(key)
        if operator is None and self.admission.mode == "open":
            return key.hex()
        return operator

    def canonical(self) -> bytes:
        """The bytes that the signature covers: every field but the signature, as JSON with sorted keys."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        del fields["signature"]
        return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")

    def check(self) -> None:
        """Raise UsageError for a manifest that breaks a rule, naming the field."""
        manifest_rules.check_public_key(self.founder, "founder")
        for key in self.revoked:
            manifest_rules.check_public_key(key, "revoked")
        manifest_rules.check_lineages(self.lineages)
        manifest_rules.check_operators(self.admission)
        manifest_rules.check_tasks(self.tasks)
        manifest_rules.check_limits(self.limits)
        manifest_rules.check_bootstraps(self.bootstraps)
        try:
            self.canonical()
        except (TypeError, ValueError, RecursionError) as error:  # an infinity or deep tables in a task's config
            raise UsageError(f"manifest: a value has no canonical form: {error}") from error

    def sign(self, founder: Identity) -> Manifest:
        """This manifest with the founder's signature. Raises UsageError for one that breaks a rule."""
        self.check()
        sealed = seal(founder, self._header())
        return msgspec.structs.replace(self, signature=sealed.signature.hex())

    def verify(self) -> None:
        """Raise UsageError when a rule is broken, InvalidKey or BadSignature when the founder did not sign this."""
        self.check()
        try:
            signature = bytes.fromhex(self.signature)
        except ValueError as error:
            raise BadSignature("bad_signature", "the manifest's signature is not hex") from error
        verify_announcement(Announcement(self._header(), signature))

    def _header(self) -> Header:
        canonical = self.canonical()
        return Header(
            kind=Kind.MANIFEST,
            version=PROTOCOL_VERSION,
            swarm_id=self.swarm_id,
            key=bytes.fromhex(self.founder),
            round=self.effective_round,
            policy_version=0,
            prompt_hash=NO_HASH,
            sequence=self.revision,
            payload_length=len(canonical),
            payload_hash=payload_hash(canonical),
        )

    def to_toml(self) -> str:
        """The manifest as TOML, for people; temperatures and top_p as decimal numbers."""
        return manifest_toml.dump(msgspec.to_builtins(self))

    @staticmethod
    def from_toml(text: str) -> Manifest:
        """Read a manifest and check its rules, not its signature: see verify. Raises UsageError."""
        manifest = manifest_toml.load(text, Manifest)
        manifest.check()
        return manifest


def check_follows(earlier: Manifest, later: Manifest) -> None:
    """Raise UsageError unless `later` is a later revision of `earlier` that a running node can take over.

    What every round and every prompt is derived from never changes, and no base model is shut out: that needs a new
    swarm. A node that was cut off takes a revision whose round is over: see check_successor for who makes one.
    """
    if later.swarm_id != earlier.swarm_id:
        raise UsageError("manifest: another swarm (founder, name and genesis never change)")
    if later.revision <= earlier.revision:
        raise UsageError(f"manifest: revision {later.revision} is not above {earlier.revision}")
    if later.round_seconds != earlier.round_seconds:
        raise UsageError("manifest: round_seconds never changes, all rounds would be numbered anew: make a new swarm")
    if later.tasks != earlier.tasks:
        raise UsageError("manifest: tasks never change, all prompts are derived from them: make a new swarm")
    if later.lineages and not (earlier.lineages and set(earlier.lineages) <= set(later.lineages)):
        raise UsageError("manifest: a lineage that was allowed stays allowed: make a new swarm to leave one out")


def check_successor(earlier: Manifest, later: Manifest, current_round: int) -> None:
    """Raise UsageError unless `later` may be made of `earlier` now: it follows, with effect from a future round."""
    check_follows(earlier, later)
    if later.effective_round <= current_round:
        raise UsageError(f"manifest: effective_round {later.effective_round} is not after round {current_round}")
