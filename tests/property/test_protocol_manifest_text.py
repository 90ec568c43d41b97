"""Invites and manifests of strangers: whatever the bytes are, there is a reason and never another error."""

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from shoal.protocol.errors import ProtocolError, UsageError
from shoal.protocol.identity import Identity
from shoal.protocol.invite import MAX_CHAIN, bind, issue_invite, open_invite, read_token, token_text
from shoal.protocol.manifest import Admission, Manifest, TaskEntry
from shoal.protocol.revisions import RevisionLine

FOUNDER = Identity.from_seed(bytes(range(32)))
NODE = Identity.from_seed(bytes([5]) * 32)
SWARM = Manifest(
    name="any",
    founder=FOUNDER.key.hex(),
    genesis=0,
    round_seconds=60,
    tasks=[TaskEntry(name="strings/reverse")],
    admission=Admission(mode="invite"),
).sign(FOUNDER)
TOKEN = issue_invite(FOUNDER, SWARM.swarm_id, "ada", 1000, bytes([9]) * 32)
CHAIN = bind(TOKEN, NODE.key)
TEXT = SWARM.to_toml()

changes = st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=4)


def mutated(data: bytes, masks: list[tuple[int, int]]) -> bytes:
    changed = bytearray(data)
    for place, mask in masks:
        changed[place % len(changed)] ^= mask
    return bytes(changed)


@given(st.one_of(st.binary(max_size=MAX_CHAIN + 8), changes.map(lambda masks: mutated(CHAIN, masks))))
def test_no_chain_but_the_real_one_admits(chain: bytes):
    if chain == CHAIN:  # two changes may undo each other
        return
    try:
        open_invite(chain, SWARM, NODE.key, 0)
    except ProtocolError:
        return
    raise AssertionError("a chain that nobody signed has admitted a key")


@given(st.text(max_size=400).map(lambda text: "shoal-invite-1-" + text))
def test_a_token_is_read_or_named_a_mistake(text: str):
    with suppress(UsageError):
        assert token_text(read_token(text))


@given(
    st.one_of(
        st.text(max_size=300),
        st.tuples(st.integers(0, len(TEXT)), st.text(max_size=40)).map(
            lambda at: TEXT[: at[0]] + at[1] + TEXT[at[0] :]
        ),
        changes.map(lambda masks: mutated(TEXT.encode(), masks).decode("utf-8", errors="replace")),
    )
)
def test_a_manifest_of_a_stranger_never_replaces_the_one_in_force(text: str):
    line = RevisionLine(SWARM)
    with suppress(UsageError, ProtocolError):
        manifest = Manifest.from_toml(text)
        manifest.verify()
        line.add(manifest)
    assert line.at(10**9) == SWARM
