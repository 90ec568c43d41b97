"""Identities outside their home: backups as PKCS8, with a passphrase or without, and keys that are put aside."""

import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.protocol.identity import Identity, short

LARGEST_BACKUP = 16 * 1024


def write_backup(identity: Identity, path: Path, passphrase: bytes | None) -> None:
    """Write an identity as a PEM file for its owner only, never over another file. Raises EnvironmentFault."""
    protection = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    private = Ed25519PrivateKey.from_private_bytes(identity.seed)
    data = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
    except FileExistsError as error:
        raise EnvironmentFault(f"{path} exists: a backup is never overwritten, name another file") from error
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror}") from error


def read_backup(path: Path, passphrase: bytes | None) -> Identity:
    """Read an identity. Raises EnvironmentFault for a file that is no backup, UsageError for a wrong passphrase."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_BACKUP)
    except OSError as error:
        raise EnvironmentFault(f"cannot read {path}: {error.strerror}") from error
    try:
        private = load_pem_private_key(data, passphrase or None)
    except TypeError as error:
        needed = "it needs one: give --passphrase-file" if b"ENCRYPTED" in data else "it has none: leave it out"
        raise UsageError(f"{path}: the passphrase does not fit; {needed}") from error
    except ValueError as error:
        wrong = UsageError(f"{path}: the passphrase is wrong, or the file is damaged")
        raise (wrong if b"ENCRYPTED" in data else EnvironmentFault(f"{path} is not a backup of an identity")) from error
    if not isinstance(private, Ed25519PrivateKey):
        raise EnvironmentFault(f"{path} holds another kind of key, not an Ed25519 one")
    return Identity.from_seed(private.private_bytes_raw())


def put_aside(path: Path) -> Path:
    """Move an identity out of the way, under a name that says which it is, and return that name."""
    aside = path.with_name(f"{path.name}.{short(Identity.load(path).key)}")
    if aside.exists():
        raise EnvironmentFault(f"{aside} exists: move it away first")
    path.rename(aside)
    return aside


def passphrase_of(file: Path | None) -> bytes | None:
    """Return the passphrase: the first line of a file, else $SHOAL_PASSPHRASE, else None."""
    if file is None:
        return os.environ.get("SHOAL_PASSPHRASE", "").encode() or None
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise EnvironmentFault(f"cannot read {file}: {error.strerror}") from error
    if not lines or not lines[0]:
        raise UsageError(f"{file}: its first line is empty, and should be the passphrase")
    return lines[0]
