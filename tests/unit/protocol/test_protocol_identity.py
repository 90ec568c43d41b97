"""Keys and signatures; the curve arithmetic is apart from the library: RFC 8032, section 5.1, in plain integers."""

import hmac
import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from shoal.protocol.errors import EnvironmentFault, InvalidKey
from shoal.protocol.identity import GROUP_ORDER, SMALL_ORDER_Y, Identity, check_key, short, verify

P = 2**255 - 19
D = -121665 * pow(121666, P - 2, P) % P
Point = tuple[int, int]


def add(a: Point, b: Point) -> Point:
    k = D * a[0] * b[0] * a[1] * b[1]
    x = (a[0] * b[1] + a[1] * b[0]) * pow(1 + k, P - 2, P)
    y = (a[1] * b[1] + a[0] * b[0]) * pow(1 - k, P - 2, P)
    return x % P, y % P


def points_with(y: int) -> list[Point]:
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    root = pow(square, (P + 3) // 8, P)
    if (root * root - square) % P:
        root = root * pow(2, (P - 1) // 4, P) % P
    if (root * root - square) % P:
        return []
    return sorted({(root, y), (-root % P, y)})


def encode(point: Point) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


def small_order_points() -> list[Point]:
    return [point for y in sorted(SMALL_ORDER_Y) for point in points_with(y)]


def test_the_small_order_list_is_the_whole_torsion_group():
    points = small_order_points()
    assert len(points) == 8
    for point in points:
        doubled = add(point, point)
        fourfold = add(doubled, doubled)
        assert add(fourfold, fourfold) == (0, 1)
    assert {add(a, b) for a in points for b in points} == set(points)  # closed, so none is missing


@pytest.mark.parametrize("encoded", [encode(point) for point in small_order_points()], ids=lambda key: key.hex()[:8])
def test_small_order_keys_are_refused(encoded: bytes):
    with pytest.raises(InvalidKey) as caught:
        check_key(encoded)
    assert caught.value.reason == "key_small_order"
    flipped = encoded[:31] + bytes([encoded[31] ^ 0x80])
    with pytest.raises(InvalidKey):
        check_key(flipped)


@pytest.mark.parametrize("excess", range(19))
@pytest.mark.parametrize("sign", [0, 1])
def test_every_non_canonical_encoding_is_refused(excess: int, sign: int):
    key = (P + excess | sign << 255).to_bytes(32, "little")
    with pytest.raises(InvalidKey) as caught:
        check_key(key)
    assert caught.value.reason == "key_not_canonical"


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_has_32_bytes(size: int):
    with pytest.raises(InvalidKey, match="key_length"):
        check_key(bytes([9]) * size)


def test_a_signature_that_fits_any_message_is_refused():
    """Under the neutral element as key, R = S*B holds for every message: the library accepts this, Shoal must not."""
    key = encode((0, 1))
    signature = encode((0, 1)) + bytes(32)
    Ed25519PublicKey.from_public_bytes(key).verify(signature, b"any message at all")
    assert not verify(key, signature, b"any message at all")


def test_signatures_verify_for_their_message_and_key_only():
    identity, other = Identity.from_seed(bytes(32)), Identity.from_seed(bytes([1]) * 32)
    signature = identity.sign(b"message")
    assert verify(identity.key, signature, b"message")
    assert not verify(identity.key, signature, b"massage")
    assert not verify(other.key, signature, b"message")
    assert not verify(identity.key, signature[:63], b"message")


def test_the_rfc_8032_vector():
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    identity = Identity.from_seed(seed)
    assert identity.key.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert identity.sign(b"").hex() == (
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
        "d25bf5f0595bbe24655141438e7a100b"
    )


def test_a_derived_seed_is_hkdf_of_the_seed():
    """RFC 5869 with plain HMACs: extract under 32 zero bytes, then one block of expansion."""
    seed = bytes(range(32))
    extracted = hmac.digest(bytes(32), seed, "sha256")
    expanded = hmac.digest(extracted, b"shoal/derive/libp2p/gossip/1\x01", "sha256")
    assert Identity.from_seed(seed).derive("libp2p/gossip/1") == expanded
    assert Identity.from_seed(seed).derive("libp2p/transport/1") != expanded


def test_s_plus_l_is_no_second_signature():
    identity = Identity.from_seed(bytes(32))
    signature = identity.sign(b"message")
    raised = int.from_bytes(signature[32:], "little") + GROUP_ORDER
    assert not verify(identity.key, signature[:32] + raised.to_bytes(32, "little"), b"message")


def test_a_key_off_the_curve_verifies_nothing():
    y = next(y for y in range(2, 100) if not points_with(y))
    assert not verify(y.to_bytes(32, "little"), bytes(64), b"message")


def test_generated_identities_differ_and_pass_the_check():
    keys = {Identity.generate().key for _ in range(3)}
    assert len(keys) == 3
    for key in keys:
        check_key(key)
    assert short(bytes(range(32))) == "00010203"


def test_a_seed_has_32_bytes():
    with pytest.raises(ValueError, match="32 bytes"):
        Identity.from_seed(bytes(31))


def test_save_and_load_keep_the_identity_private(tmp_path: Path):
    path = tmp_path / "identity.key"
    identity = Identity.generate()
    identity.save(path)
    assert Identity.load(path).key == identity.key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["identity.key"]


def test_saving_never_replaces_an_identity(tmp_path: Path):
    path = tmp_path / "identity.key"
    first = Identity.generate()
    first.save(path)
    with pytest.raises(EnvironmentFault, match="never overwritten"):
        Identity.generate().save(path)
    assert Identity.load(path).key == first.key
    assert os.listdir(tmp_path) == ["identity.key"]


def test_an_unwritable_place_is_an_environment_fault(tmp_path: Path):
    with pytest.raises(EnvironmentFault, match="cannot write") as caught:
        Identity.generate().save(tmp_path / "missing" / "identity.key")
    assert caught.value.exit_code == 3


def test_a_missing_open_or_damaged_file_is_an_environment_fault(tmp_path: Path):
    path = tmp_path / "identity.key"
    with pytest.raises(EnvironmentFault, match="cannot read"):
        Identity.load(path)
    path.write_text("00" * 31)
    path.chmod(0o600)
    with pytest.raises(EnvironmentFault, match="not an identity"):
        Identity.load(path)
    path.write_bytes(b"\xff" * 64)
    with pytest.raises(EnvironmentFault, match="not an identity"):
        Identity.load(path)
    path.chmod(0o644)
    with pytest.raises(EnvironmentFault, match="chmod 600"):
        Identity.load(path)
