"""Identities outside their home: backups as PKCS8, with a passphrase or without, and keys that are put aside."""

import os
import re
import secrets
from collections.abc import Iterator
from itertools import count
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
KEPT = re.compile(rb"\s*[0-9a-f]{64}\s*")  # as `Identity.save` writes it


def write_backup(identity: Identity, path: Path, passphrase: bytes | None) -> None:
    """Write an identity as a PEM file for its owner only, never over another file. Raises EnvironmentFault."""
    protection = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    private = Ed25519PrivateKey.from_private_bytes(identity.seed)
    data = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise EnvironmentFault(f"{path} exists: a backup is never overwritten, name another file") from error
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        path.unlink(missing_ok=True)  # half a backup is worse than none
        raise EnvironmentFault(f"cannot write {path}: {error.strerror}") from error


def read_backup(path: Path, passphrase: bytes | None) -> Identity:
    """Read an identity of a backup, or of a file as `put_in_place` keeps it.

    Raises EnvironmentFault for a file that is neither, UsageError for a wrong passphrase.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_BACKUP)
    except OSError as error:
        raise EnvironmentFault(f"cannot read {path}: {error.strerror}") from error
    if KEPT.fullmatch(data):
        return Identity.from_seed(bytes.fromhex(data.decode("ascii")))
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


def put_in_place(identity: Identity, path: Path) -> Path:
    """Put an identity where another one is, which is kept beside it; return the name under which it is kept.

    One of the two is in its place at every instant: neither a crash nor a full disk loses any. Raises EnvironmentFault.
    """
    partial = path.with_name(f".{path.name}.new.{secrets.token_hex(8)}")
    identity.save(partial)
    try:
        aside = _keep(path)
        partial.replace(path)
    except OSError as error:
        raise EnvironmentFault(f"cannot put another identity in the place of {path}: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    return aside


def _keep(path: Path) -> Path:
    """Give a file of an identity a second name that says which one it is, and return that name."""
    content = path.read_bytes()
    for aside in _names(path):
        try:
            os.link(path, aside)
        except FileExistsError:
            if aside.read_bytes() != content:
                continue
        return aside
    raise AssertionError  # there is always a next name


def _names(path: Path) -> Iterator[Path]:
    try:
        which = short(Identity.load(path).key)
    except EnvironmentFault:
        which = "damaged"
    yield path.with_name(f"{path.name}.{which}")
    for number in count(2):
        yield path.with_name(f"{path.name}.{which}.{number}")


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
