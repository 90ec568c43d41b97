"""The home of a node: a folder with everything that is its own, and a lock that lets one process at a time live there.

identity.key   config.toml   shoal.db   checkpoints/   blobs/   swarms/   log/   lock   control.sock
"""

import contextlib
import fcntl
import hashlib
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from shoal.node.paths import home_dir
from shoal.protocol.errors import EnvironmentFault, UsageError

OWNER_ONLY = 0o700
LONGEST_SOCKET_PATH = 100  # bytes; the system allows 107


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of one node; names of what lies in it, whether it is there or not."""

    path: Path

    @staticmethod
    def find(path: Path | None = None) -> "Home":
        """Return the home that was named, or the user's; the same from any working directory."""
        return Home(home_dir(path))

    @staticmethod
    def make(path: Path | None = None) -> "Home":
        """Return the home and make its folders, for their owner only. Raises EnvironmentFault."""
        home = Home.find(path)
        try:
            for folder in (home.path, home.checkpoints, home.blobs, home.swarms, home.log):
                folder.mkdir(mode=OWNER_ONLY, parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentFault(
                f"cannot make the home {home.path}: {error.strerror}; name another with --home"
            ) from error
        return home

    @property
    def identity(self) -> Path:
        """The private key."""
        return self.path / "identity.key"

    @property
    def config(self) -> Path:
        """The settings of the node."""
        return self.path / "config.toml"

    @property
    def database(self) -> Path:
        """The ledger."""
        return self.path / "shoal.db"

    @property
    def checkpoints(self) -> Path:
        """States of the training."""
        return self.path / "checkpoints"

    @property
    def blobs(self) -> Path:
        """Rollouts, by content."""
        return self.path / "blobs"

    @property
    def swarms(self) -> Path:
        """Manifests and invites."""
        return self.path / "swarms"

    @property
    def log(self) -> Path:
        """Log files."""
        return self.path / "log"

    @property
    def socket(self) -> Path:
        """The control socket; in a short folder of the user's when the home's path is too long for one."""
        inside = self.path / "control.sock"
        if len(os.fsencode(inside)) <= LONGEST_SOCKET_PATH:
            return inside
        runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
        return runtime / f"shoal-{hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]}.sock"

    def require_identity(self) -> Path:
        """Return the file of the identity; raise UsageError with what to do when there is none."""
        if not self.identity.is_file():
            raise UsageError(
                f"there is no node in {self.path} yet: run `shoal init` first, or name its folder with --home"
            )
        return self.identity

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the home; raise UsageError that names the process which holds it already.

        The kernel's lock decides, so that what a dead process left behind is no obstacle.
        """
        try:
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise EnvironmentFault(f"cannot use the home {self.path}: {error.strerror}") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"another process lives in {self.path}: {_holder(descriptor)}") from None
            except OSError as error:  # a file system without locks
                raise EnvironmentFault(
                    f"cannot lock the home {self.path}: {error.strerror}; name one on a local disk with --home"
                ) from error
            about = {
                "pid": os.getpid(),
                "since": datetime.now(UTC).isoformat(timespec="seconds"),
                "host": socket.gethostname(),
            }
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(about).encode() + b"\n", 0)
            yield
        finally:
            os.close(descriptor)


def _holder(descriptor: int) -> str:
    try:
        about = json.loads(os.pread(descriptor, 4096, 0))
        return f"pid {about['pid']} on {about['host']}, since {about['since']}"
    except (ValueError, KeyError, TypeError):
        return "it has not said which"
