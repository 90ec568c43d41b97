"""Invites: the founder signs a key for an operator, and that key signs the keys of the operator's nodes.

    founder ── signs ──► invite (operator, its own public key, last round) ── signs ──► key of a node

Whoever holds an invite's secret (it is handed over as a token) may bind any number of keys: all of them are one
operator. The two signatures travel as a *chain* in the peer record of the key, and the record's own signature is that
key's consent: a chain counts only from a verified record. Anyone can check it offline against the manifest.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

import msgspec

from shoal.protocol import canonical
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
from shoal.protocol.errors import BadSignature, Malformed, ProtocolError, TooLarge, UsageError
from shoal.protocol.identity import SIGNATURE_SIZE, Identity
from shoal.protocol.limits import DEFAULT_LIMITS
from shoal.protocol.manifest import Manifest
from shoal.protocol.manifest_rules import usable_operator
from shoal.protocol.wire import Hash, Number

MAX_CHAIN = 512  # bytes, in a record of 2 KiB
TOKEN_PREFIX = "shoal-invite-1-"
MAX_TOKEN = 2048  # characters

_Signature = Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_SIZE, max_length=SIGNATURE_SIZE)]


class Invite(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What the founder signed; it serves to the end of round `expires`."""

    operator: str
    key: Hash
    expires: Number
    signature: _Signature


class Chain(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """An invite, and the signature of its key over the key of a node."""

    invite: Invite
    signature: _Signature


class Token(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """An invite with its secret, for one swarm. Never log it: whoever reads it is the operator."""

    swarm_id: Hash
    invite: Invite
    seed: Hash


class _Terms(msgspec.Struct, array_like=True, frozen=True):
    operator: str
    key: bytes
    expires: int


def issue_invite(founder: Identity, swarm_id: bytes, operator: str, expires: int, seed: bytes) -> Token:
    """A new invite, signed by the founder, to the end of round `expires`; `seed` is 32 fresh random bytes.

    Raises UsageError for a name that no operator may have.
    """
    if not usable_operator(operator):
        raise UsageError(f"operator {operator[:80]!r}: 1 to 64 printable characters, and nothing like a key")
    key = Identity.from_seed(seed).key
    header = _invite_header(founder.key, swarm_id, _Terms(operator, key, expires))
    return Token(swarm_id, Invite(operator, key, expires, seal(founder, header).signature), seed)


def token_text(token: Token) -> str:
    """The token as one word, to be handed over."""
    return TOKEN_PREFIX + base64.urlsafe_b64encode(canonical.encode(token)).decode("ascii").rstrip("=")


def read_token(text: str) -> Token:
    """Read a token; raises UsageError when it is cut, altered or something else. The founder is checked later."""
    text = text.strip()
    if not text.startswith(TOKEN_PREFIX) or len(text) > MAX_TOKEN:
        raise UsageError(f"not an invite: it begins with {TOKEN_PREFIX}")
    body = text.removeprefix(TOKEN_PREFIX)
    try:
        data = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        token = canonical.decode(data, Token, DEFAULT_LIMITS)
    except (binascii.Error, ValueError, ProtocolError) as error:
        raise UsageError("the invite is damaged: copy it whole, it is one long word") from error
    if Identity.from_seed(token.seed).key != token.invite.key:
        raise UsageError("the invite is damaged: its secret does not belong to it")
    return token


def bind(token: Token, key: bytes) -> bytes:
    """The chain by which `key` (32 bytes) belongs to the token's operator; at most MAX_CHAIN bytes."""
    header = _member_header(token.swarm_id, token.invite, key)
    return canonical.encode(Chain(token.invite, seal(Identity.from_seed(token.seed), header).signature))


def read_chain(chain: bytes, manifest: Manifest, key: bytes) -> Invite:
    """The invite by which `key` belongs to an operator of the swarm, whatever the round.

    Raises TooLarge, Malformed, or BadSignature: invite_not_of_the_founder, invite_not_for_this_key.
    """
    if len(chain) > MAX_CHAIN:
        raise TooLarge("invite_too_large", f"{len(chain)} bytes")
    read = canonical.decode(chain, Chain, DEFAULT_LIMITS)
    invite, founder = read.invite, bytes.fromhex(manifest.founder)
    if not usable_operator(invite.operator):
        raise Malformed("invite_operator")
    terms = _Terms(invite.operator, invite.key, invite.expires)
    _require_signed(_invite_header(founder, manifest.swarm_id, terms), invite.signature, "invite_not_of_the_founder")
    _require_signed(_member_header(manifest.swarm_id, invite, key), read.signature, "invite_not_for_this_key")
    return invite


def check_invite(invite: Invite, manifest: Manifest, current_round: int) -> None:
    """Raise ProtocolError invite_revoked or invite_expired for an invite that does not serve in a round."""
    if manifest.is_revoked(invite.key):
        raise ProtocolError("invite_revoked")
    if current_round > invite.expires:
        raise ProtocolError("invite_expired", f"its last round was {invite.expires}, this is {current_round}")


def open_invite(chain: bytes, manifest: Manifest, key: bytes, current_round: int) -> str:
    """The operator to whom `key` belongs by this chain in this round; raises ProtocolError with the reason."""
    invite = read_chain(chain, manifest, key)
    check_invite(invite, manifest, current_round)
    return invite.operator


def _invite_header(founder: bytes, swarm_id: bytes, terms: _Terms) -> Header:
    return _header(Kind.INVITE, swarm_id, founder, terms.expires, canonical.encode(terms))


def _member_header(swarm_id: bytes, invite: Invite, key: bytes) -> Header:
    return _header(Kind.MEMBER, swarm_id, invite.key, invite.expires, key)


def _header(kind: Kind, swarm_id: bytes, signer: bytes, expires: int, payload: bytes) -> Header:
    """What is signed. It does not travel: whoever checks knows everything in it."""
    return Header(
        kind=kind,
        version=PROTOCOL_VERSION,
        swarm_id=swarm_id,
        key=signer,
        round=expires,
        policy_version=0,
        prompt_hash=NO_HASH,
        sequence=0,
        payload_length=len(payload),
        payload_hash=payload_hash(payload),
    )


def _require_signed(header: Header, signature: bytes, reason: str) -> None:
    try:
        verify_announcement(Announcement(header, signature))
    except ProtocolError as error:  # an unusable key of an invite is no better than a wrong signature
        raise BadSignature(reason) from error
