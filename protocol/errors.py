"""Every error that Shoal raises on purpose.

    ShoalError                   exit 1
    ├── UsageError               exit 2   the person asked for something that cannot be
    ├── EnvironmentFault         exit 3   the machine cannot do it (disk, folder, missing file)
    ├── FetchFailed                       a blob did not come
    └── ProtocolError                     what a peer sent is wrong
        ├── Malformed                     bytes or fields that break a rule of the wire
        ├── TooLarge                      over a cap
        ├── BadSignature
        ├── InvalidKey
        ├── WrongSwarm
        └── UnknownVersion                a version this node does not speak: ignored, counted

A message says what was wrong, where, and what to do. A `reason` is a short snake_case code: it names a counter.
"""


class ShoalError(Exception):
    """Root of the errors that a person may see; `exit_code` is what the command line returns."""

    exit_code: int = 1


class UsageError(ShoalError):
    """A wrong option, configuration, task name or manifest: nothing has been started."""

    exit_code: int = 2


class EnvironmentFault(ShoalError):
    """The machine cannot do it: disk full, folder not writable, file missing."""

    exit_code: int = 3


class FetchFailed(ShoalError):
    """A blob did not arrive; `reason` is unreachable, not_found, too_large, timeout or wrong_digest."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class ProtocolError(ShoalError):
    """Something a peer sent is wrong; `reason` is the counter that it adds to. Never ends a run."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class Malformed(ProtocolError):
    """Bytes or fields that break a rule of the wire format."""


class TooLarge(ProtocolError):
    """Over a cap, in bytes or in number."""


class BadSignature(ProtocolError):
    """The signature does not belong to this header and key."""


class InvalidKey(ProtocolError):
    """A public key that no honest node has: wrong length, non-canonical or of small order."""


class WrongSwarm(ProtocolError):
    """Signed for another swarm."""


class UnknownVersion(ProtocolError):
    """A protocol version that this node does not speak."""
