"""What the bridge can be told; the docstring of a field is its help text."""

import re
from dataclasses import dataclass

from shoal.node.config import require

_PEER = re.compile(r"/(ip4|ip6|dns|dns4|dns6|dnsaddr)/[^\s,]+/p2p/[1-9A-HJ-NP-Za-km-z]{40,64}")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
LARGEST_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class BridgeOptions:
    """The unsigned lane to peers of another swarm's client (gensyn-genrl 0.3.0); off by default."""

    bridge_read: bool = False
    """Learn from what those peers share. Nothing of it is signed: anyone there can write in anyone's name."""
    bridge_write: bool = False
    """Share own sets there too, with their reference answers, as that format has it. Needs --bridge-read."""
    bridge_bootstrap: tuple[str, ...] = ()
    """Addresses of that swarm as multiaddrs with /p2p/; may be repeated."""
    bridge_share: float = 0.125
    """Most that all of those peers together may weigh, as a share of J."""
    bridge_peers: int = 16
    """Peers whose values are opened in one round, drawn uniformly."""
    bridge_start_round: int = 0
    """The round of that swarm at which the search for its current one begins."""
    bridge_max_age: int = 1
    """Oldest of its rounds that is still used, counted back from its current one."""
    bridge_completions: int | None = None
    """Completions that a set of theirs must have (G when left out)."""
    bridge_data: str = ""
    """JSONL file of questions and answers: its questions are known too, beside this node's prompts of the round."""
    bridge_data_sha256: str = ""
    """Pins the content of that file."""

    @property
    def enabled(self) -> bool:
        """Whether there is a bridge at all."""
        return self.bridge_read


def check_bridge(options: BridgeOptions) -> None:
    """Raise UsageError for options that cannot be; nothing is looked up or loaded."""
    reads = options.bridge_read
    require(reads or not options.bridge_write, "--bridge-write needs --bridge-read: rounds are found by reading")
    require(not reads or bool(options.bridge_bootstrap), "--bridge-read needs an address: give --bridge-bootstrap")
    for address in options.bridge_bootstrap:
        require(
            _PEER.fullmatch(address) is not None,
            f"--bridge-bootstrap {address!r}: not a multiaddr such as /ip4/203.0.113.7/tcp/31337/p2p/12D3Koo…",
        )
    require(
        0.0 < options.bridge_share <= LARGEST_SHARE,
        f"--bridge-share {options.bridge_share}: must be above 0 and at most {LARGEST_SHARE}",
    )
    for name, value, least, most in (
        ("bridge-peers", options.bridge_peers, 1, 64),
        ("bridge-start-round", options.bridge_start_round, 0, 2**53),
        ("bridge-max-age", options.bridge_max_age, 0, 4),
        ("bridge-completions", options.bridge_completions or 2, 2, 64),
    ):
        require(least <= value <= most, f"--{name} {value}: must lie between {least} and {most}")
    pin = options.bridge_data_sha256
    require(not pin or _SHA256.fullmatch(pin) is not None, "--bridge-data-sha256: 64 hexadecimal digits")
    require(not pin or bool(options.bridge_data), "--bridge-data-sha256 pins the file of --bridge-data: name it")
