"""Ed25519 identities: the one place where keys are made, loaded and judged, and signatures verified."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from shoal.protocol.errors import EnvironmentFault, InvalidKey

KEY_SIZE = 32
SEED_SIZE = 32
SIGNATURE_SIZE = 64

FIELD_PRIME = 2**255 - 19
GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493
# The eight points of small order have five y coordinates: 1 (order 1), -1 (order 2), 0 (order 4, both signs) and two of
# order 8 (both signs). A signature under such a key can be made to fit any message. RFC 8032, section 5.1.
_ORDER_8_Y = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
SMALL_ORDER_Y = frozenset({0, 1, FIELD_PRIME - 1, _ORDER_8_Y, FIELD_PRIME - _ORDER_8_Y})


class Identity:
    """The private key of one node. Its public key is the node's name; the seed never leaves this object but to disk."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_SIZE:
            raise ValueError(f"an identity seed has {SEED_SIZE} bytes, not {len(seed)}")
        self._seed = seed
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self.key: bytes = self._private.public_key().public_bytes_raw()

    @staticmethod
    def from_seed(seed: bytes) -> Identity:
        """The identity of a 32-byte seed; the same seed gives the same key."""
        return Identity(seed)

    @staticmethod
    def generate() -> Identity:
        """A new identity from the system's randomness."""
        return Identity(secrets.token_bytes(SEED_SIZE))

    @staticmethod
    def load(path: Path) -> Identity:
        """Read an identity file. Raises EnvironmentFault when it is missing, readable by others or damaged."""
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
            text = path.read_bytes()
        except OSError as error:
            raise EnvironmentFault(f"cannot read the identity {path}: {error.strerror}") from error
        if mode & 0o077:
            raise EnvironmentFault(f"the identity {path} can be read by others: run chmod 600 {path}")
        try:
            return Identity(bytes.fromhex(text.decode("ascii").strip()))
        except ValueError as error:
            raise EnvironmentFault(f"{path} is not an identity file: restore it from a backup") from error

    def save(self, path: Path) -> None:
        """Write the identity, readable by its owner only, whole or not at all; an existing file is never replaced.

        Raises EnvironmentFault when the file exists or cannot be written.
        """
        partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            try:
                _write_private(partial, self._seed.hex().encode("ascii") + b"\n")
                os.link(partial, path)  # unlike a rename, a link fails when the name is taken
            finally:
                partial.unlink(missing_ok=True)
            _sync_folder(path.parent)
        except FileExistsError as error:
            raise EnvironmentFault(f"{path} exists: an identity is never overwritten, move it away first") from error
        except OSError as error:
            raise EnvironmentFault(f"cannot write the identity {path}: {error.strerror}") from error

    @property
    def seed(self) -> bytes:
        """The secret itself: for backups, and for nothing that travels or is shown."""
        return self._seed

    def sign(self, message: bytes) -> bytes:
        """The 64-byte Ed25519 signature of a message. What is signed begins with a domain tag: see envelope."""
        return self._private.sign(message)

    def derive(self, purpose: str) -> bytes:
        """Another 32-byte seed for one purpose (HKDF-SHA256, RFC 5869): who learns it learns nothing about this one."""
        return HKDF(SHA256(), SEED_SIZE, salt=None, info=b"shoal/derive/" + purpose.encode("ascii")).derive(self._seed)


def _write_private(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_key(key: bytes) -> None:
    """Raise InvalidKey for a public key of wrong length, non-canonical encoding or small order.

    The library accepts all three kinds (measured on `cryptography`): two encodings of one key would be two peers.
    """
    if len(key) != KEY_SIZE:
        raise InvalidKey("key_length", f"{len(key)} bytes")
    y = int.from_bytes(key, "little") & (2**255 - 1)
    if y >= FIELD_PRIME:
        raise InvalidKey("key_not_canonical")
    if y in SMALL_ORDER_Y:
        raise InvalidKey("key_small_order")


def verify(key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether `signature` is the key's signature of `message`: the one verifier. Never raises on what a peer sent."""
    if len(signature) != SIGNATURE_SIZE or int.from_bytes(signature[32:], "little") >= GROUP_ORDER:
        return False  # S + L would be a second signature of the same message; not left to the library's version
    try:
        check_key(key)
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidKey, InvalidSignature, ValueError):
        return False
    return True


def short(key: bytes) -> str:
    """The first 8 hex characters of a key, for display only."""
    return key[:4].hex()
