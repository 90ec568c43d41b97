from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocol.envelope import Announcement, Header, Kind, seal
from shoal.protocol.identity import GROUP_ORDER, Identity
from shoal.protocol.validity import forwardable

SWARM = bytes([1]) * 32
IDENTITY = Identity.from_seed(bytes(range(32)))
HEADER = Header(Kind.ROLLOUT, 1, SWARM, IDENTITY.key, 7, 8, bytes([2]) * 32, 9, 100, bytes([3]) * 32)
GOOD = seal(IDENTITY, HEADER).encode()


@pytest.fixture
def valid() -> Callable[[bytes], bool | None]:
    return forwardable(SWARM)


def sealed(**fields: object) -> bytes:
    return seal(IDENTITY, replace(HEADER, **fields)).encode()


def test_a_signed_announcement_passes_whatever_round_it_names(valid: Callable[[bytes], bool | None]):
    assert valid(GOOD) is True
    assert valid(sealed(round=2**62, policy_version=0, sequence=2**62)) is True


def test_what_is_blamed_on_the_forwarder(valid: Callable[[bytes], bool | None]):
    low_order = Announcement(replace(HEADER, key=bytes(32)), bytes(64)).encode()
    scalar = int.from_bytes(GOOD[-32:], "little") + GROUP_ORDER
    for bad in (
        b"",
        GOOD[:-1],
        GOOD + b"\0",
        GOOD[:18],
        bytes(16) + GOOD[16:],
        sealed(swarm_id=bytes(32)),
        sealed(kind=Kind.RECORD),
        GOOD[:-1] + bytes([GOOD[-1] ^ 1]),
        GOOD[:-32] + scalar.to_bytes(32, "little"),
        low_order,
    ):
        assert valid(bad) is False, bad


def test_another_version_is_ignored_without_blame(valid: Callable[[bytes], bool | None]):
    """A later version may have another size and another layout behind the version itself."""
    later = sealed(version=2)
    assert valid(later) is None
    assert valid(later[:18]) is None
    assert valid(later + bytes(300)) is None
    assert valid(later + bytes(2048)) is False


@given(st.one_of(st.binary(max_size=300), st.binary(max_size=300).map(lambda tail: GOOD[: 238 - len(tail)] + tail)))
def test_it_never_raises(data: bytes):
    assert forwardable(SWARM)(data) in (True, False, None)
