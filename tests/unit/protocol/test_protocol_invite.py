"""Invites: what the founder signs, what an invite's holder can do with it, and what no one else can."""

from typing import Any

import msgspec
import pytest

from shoal.protocol import canonical
from shoal.protocol.errors import ProtocolError, UsageError
from shoal.protocol.identity import Identity
from shoal.protocol.invite import (
    MAX_CHAIN,
    Chain,
    Invite,
    Token,
    bind,
    issue_invite,
    open_invite,
    read_token,
    token_text,
)
from shoal.protocol.limits import DEFAULT_LIMITS
from shoal.protocol.manifest import Admission, Manifest

SEED = bytes([9]) * 32
NODE = Identity.from_seed(bytes([5]) * 32)
OTHER = Identity.from_seed(bytes([6]) * 32)
EXPIRES = 1000


@pytest.fixture
def swarm(manifest: Manifest, founder: Identity) -> Manifest:
    return msgspec.structs.replace(manifest, admission=Admission(mode="invite")).sign(founder)


@pytest.fixture
def token(swarm: Manifest, founder: Identity) -> Token:
    return issue_invite(founder, swarm.swarm_id, "ada", EXPIRES, SEED)


def refused(chain: bytes, manifest: Manifest, key: bytes = NODE.key, round: int = 0) -> str:
    with pytest.raises(ProtocolError) as caught:
        open_invite(chain, manifest, key, round)
    return caught.value.reason


def altered(chain: bytes, **fields: Any) -> bytes:
    """The chain with other fields in its invite, its signatures as they were."""
    read = canonical.decode(chain, Chain, DEFAULT_LIMITS)
    return canonical.encode(Chain(msgspec.structs.replace(read.invite, **fields), read.signature))


def test_an_invite_travels_as_one_word_and_makes_its_holder_the_operator(swarm: Manifest, token: Token):
    text = token_text(token)
    assert text.startswith("shoal-invite-1-")
    assert text.split() == [text]
    assert read_token(f" {text}\n") == token
    chain = bind(read_token(text), NODE.key)
    assert open_invite(chain, swarm, NODE.key, current_round=0) == "ada"


def test_one_invite_serves_several_keys_as_one_operator(swarm: Manifest, token: Token):
    assert {open_invite(bind(token, node.key), swarm, node.key, 0) for node in (NODE, OTHER)} == {"ada"}


def test_it_serves_to_the_end_of_its_last_round(swarm: Manifest, token: Token):
    chain = bind(token, NODE.key)
    assert open_invite(chain, swarm, NODE.key, EXPIRES) == "ada"
    assert refused(chain, swarm, round=EXPIRES + 1) == "invite_expired"


def test_a_chain_is_of_one_key(swarm: Manifest, token: Token):
    assert refused(bind(token, OTHER.key), swarm, NODE.key) == "invite_not_for_this_key"


@pytest.mark.parametrize(
    "fields", [{"operator": "eve"}, {"expires": EXPIRES + 1}, {"key": OTHER.key}, {"signature": bytes(64)}]
)
def test_every_field_is_signed_by_the_founder(fields: dict[str, Any], swarm: Manifest, token: Token):
    assert refused(altered(bind(token, NODE.key), **fields), swarm) == "invite_not_of_the_founder"


def test_only_the_founder_invites_and_only_into_this_swarm(swarm: Manifest, founder: Identity):
    own = issue_invite(OTHER, swarm.swarm_id, "eve", EXPIRES, SEED)
    assert refused(bind(own, NODE.key), swarm) == "invite_not_of_the_founder"
    elsewhere = issue_invite(founder, bytes(32), "ada", EXPIRES, SEED)
    assert refused(bind(elsewhere, NODE.key), swarm) == "invite_not_of_the_founder"


def test_an_invite_cannot_be_passed_on_by_who_has_only_seen_its_chain(swarm: Manifest, token: Token):
    """The chain is public: it travels in every record. Its second signature needs the secret."""
    read = canonical.decode(bind(token, NODE.key), Chain, DEFAULT_LIMITS)
    forged = Token(swarm.swarm_id, read.invite, bytes([3]) * 32)
    with pytest.raises(ValueError, match="sealed only"):
        bind(forged, OTHER.key)
    by_member = Chain(read.invite, NODE.sign(b"anything"))
    assert refused(canonical.encode(by_member), swarm, OTHER.key) == "invite_not_for_this_key"


def test_revoking_the_invite_revokes_all_its_keys(swarm: Manifest, founder: Identity, token: Token):
    later = msgspec.structs.replace(swarm, revoked=[token.invite.key.hex()]).sign(founder)
    for node in (NODE, OTHER):
        assert refused(bind(token, node.key), later, node.key) == "invite_revoked"


def test_an_invite_key_of_small_order_signs_nothing(swarm: Manifest, founder: Identity):
    """Under such a key any signature can be made to fit: not even the founder may invite it."""
    weak = bytes([1]) + bytes(31)
    token = issue_invite(founder, swarm.swarm_id, "ada", EXPIRES, SEED)
    chain = canonical.encode(Chain(msgspec.structs.replace(token.invite, key=weak), bytes(64)))
    assert refused(chain, swarm) == "invite_not_of_the_founder"


def test_the_longest_name_fits(swarm: Manifest, founder: Identity):
    token = issue_invite(founder, swarm.swarm_id, "\N{GRINNING FACE}" * 64, 2**63 - 1, SEED)
    chain = bind(read_token(token_text(token)), NODE.key)
    assert len(chain) <= MAX_CHAIN
    assert open_invite(chain, swarm, NODE.key, 0) == token.invite.operator


@pytest.mark.parametrize("name", ["", "a" * 65, "ab" * 32, "a\x1b[31m", "two\nlines"])
def test_names_that_no_operator_may_have(name: str, swarm: Manifest, founder: Identity, token: Token):
    with pytest.raises(UsageError, match="operator"):
        issue_invite(founder, swarm.swarm_id, name, EXPIRES, SEED)
    assert refused(altered(bind(token, NODE.key), operator=name), swarm) == "invite_operator"


@pytest.mark.parametrize("junk", [b"", b"x", bytes(MAX_CHAIN), b"\x92\x94\xa1a", b"\xdf\xff\xff\xff\xff"])
def test_junk_is_refused_with_a_reason(junk: bytes, swarm: Manifest):
    assert refused(junk, swarm)


def test_a_chain_over_the_cap_is_not_even_read(swarm: Manifest):
    assert refused(bytes(MAX_CHAIN + 1), swarm) == "invite_too_large"


def test_a_chain_has_one_form(swarm: Manifest, token: Token):
    chain = bind(token, NODE.key)
    assert refused(chain + b"\x00", swarm)
    longer = chain.replace(b"\xcd" + EXPIRES.to_bytes(2, "big"), b"\xce" + EXPIRES.to_bytes(4, "big"))
    assert refused(longer, swarm) == "not_canonical"


def test_a_damaged_token_is_a_mistake_that_is_named(token: Token):
    text = token_text(token)
    seedless = Token(token.swarm_id, token.invite, bytes(32))
    for cut in (text[:-4], text + "AAAA", token_text(seedless), "shoal-invite-1-", "shoal-invite-1-é"):
        with pytest.raises(UsageError, match="damaged"):
            read_token(cut)
    for other in ("", "hello", "shoal-invite-2-AAAA", "shoal-invite-1-" + "A" * 5000):
        with pytest.raises(UsageError, match="begins with"):
            read_token(other)


def test_a_token_altered_in_any_place_serves_nobody(swarm: Manifest, token: Token):
    text = token_text(token)
    for place in range(len("shoal-invite-1-"), len(text) - 1, 7):
        wrong = text[:place] + ("B" if text[place] == "A" else "A") + text[place + 1 :]
        with pytest.raises((UsageError, ProtocolError)):
            open_invite(bind(read_token(wrong), NODE.key), swarm, NODE.key, 0)


def test_an_invite_is_no_claim_of_another_kind(swarm: Manifest, founder: Identity, token: Token):
    """The founder's signature of an invite serves for nothing else: the domain tag carries the kind."""
    invite = token.invite
    swapped = Invite(invite.operator, invite.key, invite.expires, bytes.fromhex(swarm.signature))
    assert refused(canonical.encode(Chain(swapped, bytes(64))), swarm) == "invite_not_of_the_founder"
