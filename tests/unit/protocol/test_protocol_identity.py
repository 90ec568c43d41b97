"""Keys and signatures; the curve arithmetic is apart from the library: RFC 8032, section 5.1, in plain integers."""

import hashlib
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


RFC_8032 = [  # section 7.1, tests 1, 2, 3 and SHA(abc): seed, public key, message, signature
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        (
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
            "d25bf5f0595bbe24655141438e7a100b"
        ),
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        (
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c"
            "387b2eaeb4302aeeb00d291612bb0c00"
        ),
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        (
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc659"
            "4a7c15e9716ed28dc027beceea1ec40a"
        ),
    ),
    (
        "833fe62409237b9d62ec77587520911e9a759cec1d19755b7da901b96dca3d42",
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        (
            "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd"
            "454d4423643ce80e2a9ac94fa54ca49f"
        ),
        (
            "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431e030"
            "3dca179c138ac17ad9bef1177331a704"
        ),
    ),
]


@pytest.mark.parametrize(("seed", "key", "message", "signature"), RFC_8032, ids=["1", "2", "3", "abc"])
def test_the_rfc_8032_vectors(seed: str, key: str, message: str, signature: str):
    identity = Identity.from_seed(bytes.fromhex(seed))
    assert identity.key.hex() == key
    assert identity.sign(bytes.fromhex(message)).hex() == signature
    assert verify(bytes.fromhex(key), bytes.fromhex(signature), bytes.fromhex(message))
    assert not verify(bytes.fromhex(key), bytes.fromhex(signature), bytes.fromhex(message) + b"\0")


def base_point() -> Point:
    return next(point for point in points_with(4 * pow(5, P - 2, P) % P) if point[0] % 2 == 0)


def times(number: int, point: Point) -> Point:
    result = (0, 1)
    while number:
        if number & 1:
            result = add(result, point)
        point, number = add(point, point), number >> 1
    return result


def hand_signed(secret: int, key: bytes, message: bytes, nonce: int, shift: Point = (0, 1)) -> bytes:
    """A signature by the equation alone, R moved by a point of small order."""
    r = encode(add(times(nonce, base_point()), shift))
    challenge = int.from_bytes(hashlib.sha512(r + key + message).digest(), "little")
    return r + ((nonce + challenge * secret) % GROUP_ORDER).to_bytes(32, "little")


def test_a_signature_whose_r_has_a_part_of_small_order_is_refused():
    """Cofactored verifiers take it: two kinds of node would disagree about what was said."""
    secret = 1234567
    key = encode(times(secret, base_point()))
    assert verify(key, hand_signed(secret, key, b"message", 77), b"message"), "the equation itself is right"
    for point in small_order_points():
        if point != (0, 1):
            assert not verify(key, hand_signed(secret, key, b"message", 77, point), b"message")


def test_a_key_with_a_part_of_small_order_speaks_for_nothing_but_itself():
    """It passes, as in every cofactorless verifier, for one message in eight; its holder alone can make them."""
    secret, eighth = 1234567, next(p for p in small_order_points() if times(4, p) != (0, 1))
    mixed = encode(add(times(secret, base_point()), eighth))
    check_key(mixed)
    plain = encode(times(secret, base_point()))
    passed = [nonce for nonce in range(1, 41) if verify(mixed, hand_signed(secret, mixed, b"m", nonce), b"m")]
    assert 0 < len(passed) < 20
    for nonce in passed:
        assert not verify(plain, hand_signed(secret, mixed, b"m", nonce), b"m")


def test_a_signature_with_another_spelling_of_r_is_refused():
    """R = the neutral point under S = h*a is a valid signature; its non-canonical spelling, y = p + 1, is not."""
    secret = 1234567
    key = encode(times(secret, base_point()))
    for spelling, valid in ((1, True), (P + 1, False), (1 | 1 << 255, False)):
        r = spelling.to_bytes(32, "little")
        challenge = int.from_bytes(hashlib.sha512(r + key + b"m").digest(), "little")
        s = (challenge * secret % GROUP_ORDER).to_bytes(32, "little")
        assert verify(key, r + s, b"m") is valid


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
