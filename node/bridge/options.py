"""What the bridge can be told; the docstring of a field is its help text."""

import re
from dataclasses import dataclass
from pathlib import Path

from shoal.protocol.errors import UsageError

_PEER = re.compile(r"/p2p/[1-9A-HJ-NP-Za-km-z]{40,64}\Z")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}\Z")
LARGEST_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class BridgeOptions:
    """The unsigned lane to peers of another swarm's client (gensyn-genrl 0.3.0)."""

    enabled: bool = False
    """Read what those peers share. Nothing of it is signed: anyone there can write in anyone's name."""
    bootstraps: tuple[str, ...] = ()
    """Addresses of that swarm, e.g. /ip4/192.0.2.1/tcp/31337/p2p/12D3Koo…; may be repeated."""
    write: bool = False
    """Share own sets there too, with their reference answers, as that format has it."""
    share: float = 0.125
    """Most that the whole lane may weigh, as a share of J."""
    peers: int = 16
    """Peers whose values are opened in one round, drawn uniformly."""
    start_round: int = 0
    """The round of that swarm at which the search for its current one begins."""
    max_age: int = 1
    """Oldest of its rounds that is still used, counted from its current one."""
    completions: int | None = None
    """Completions that a set must have (G when left out)."""
    data: Path | None = None
    """JSONL file of questions and answers whose questions are known too, besides this round's prompts."""
    data_sha256: str = ""
    """Pins the content of that file."""

    def check(self) -> None:
        """Raise UsageError for options that cannot be; nothing is looked up or loaded."""
        if self.enabled and not self.bootstraps:
            raise UsageError("the bridge needs an address of that swarm: give --bridge.bootstraps")
        for address in self.bootstraps:
            if not address.startswith("/") or not _PEER.search(address):
                raise UsageError(f"bridge: {address!r} is no multiaddr that ends in /p2p/PEER")
        if not 0.0 < self.share <= LARGEST_SHARE:
            raise UsageError(f"bridge: share must be above 0 and at most {LARGEST_SHARE}, got {self.share}")
        for name, value, least, most in (
            ("peers", self.peers, 1, 64),
            ("start_round", self.start_round, 0, 2**53),
            ("max_age", self.max_age, 0, 4),
            ("completions", self.completions or 2, 2, 64),
        ):
            if not least <= value <= most:
                raise UsageError(f"bridge: {name} must be from {least} to {most}, got {value}")
        if self.data_sha256 and (self.data is None or not _SHA256.match(self.data_sha256)):
            raise UsageError("bridge: data_sha256 is the 64 hexadecimal digits of the file that data names")
