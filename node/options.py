"""What `shoal run` can be told. Each class is a table of config.toml and a group of flags; its docs are help texts."""

import ipaddress
import math
import re
from dataclasses import dataclass, field
from typing import Annotated

from cyclopts import Parameter

from shoal.defenses.config import DefenseConfig
from shoal.node.bridge.options import BridgeOptions, check_bridge
from shoal.node.config import CanaryOptions, Learning, Mixing, check_canary, check_learning, check_mixing, require
from shoal.node.defense_options import DefenseOptions, check_defenses
from shoal.node.engine_options import EngineOptions, check_engine
from shoal.node.log import Level
from shoal.protocol.errors import UsageError

DEVICE = re.compile(r"cpu|mps|(cuda|xpu)(:\d{1,3})?")
MODES = ("bootstrap_only", "rollouts_only", "observe")


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Where this node listens, and whom it asks first."""

    host: str = "0.0.0.0"
    """Address to listen on."""
    port: int = 47700
    """The one port that must be open, TCP and UDP."""
    bootstrap: tuple[str, ...] = ()
    """Further bootstraps beside those of the manifest, as multiaddrs with /p2p/; may be repeated."""
    announce: tuple[str, ...] = ()
    """Addresses at which others shall reach this node, e.g. behind a forwarded port; may be repeated."""
    relays: Annotated[bool, Parameter(negative="--no-relays")] = True
    """Be reached through the bootstraps when this node is behind NAT."""


@dataclass(frozen=True, kw_only=True)
class HealthOptions:
    """Health and metrics."""

    health_host: str = "127.0.0.1"
    """Address for /healthz, /readyz and /metrics."""
    health_port: int = 47701
    """Its port; 0 for none."""


@dataclass(frozen=True, kw_only=True)
class LifeOptions:
    """How the node lives."""

    passes: int = 1
    """Most passes in one round, each with further prompts."""
    wait_fraction: float = 0.3
    """Longest wait for peers' rollouts, as a share of a round."""
    checkpoint_every: int = 10
    """Passes after which the state is saved; it is saved at the end in any case."""
    failures: int = 5
    """Passes that may fail in a row; then the node saves its state and ends with exit code 1."""
    keep_ledger_rounds: int = 10_000
    """Rounds that the ledger goes back."""
    keep_blobs_mb: int = 1024
    """Disk space for rollouts, own and fetched, in MiB."""
    defenses_off: tuple[str, ...] = ()
    """Defence layers to switch off: admission, quota, header, provenance, text, duplicates, verifier, invariants,
    likelihood, phrases, judge, mixing, reputation, canary; `all` for every one. Only for measurements. Without
    mixing, peers' rows enter the baseline and are divided by the group's std, as in the published recipe."""
    seed: int = 0
    """Seed of this node's random choices, beside its key."""
    threads: int = 1
    """Threads for tensor arithmetic."""
    until_round: int | None = None
    """Round at which to stop (never when left out)."""
    log_level: Level = "info"
    """Least weight of a line that is logged."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything `shoal run` was told."""

    swarm: str | None = None
    """The swarm: a manifest FILE, a URL, or shoal://ID@MULTIADDR (the one that this home has joined when left out)."""
    bootstrap_only: bool = False
    """Only relay and tell nodes of each other: no model, no tasks."""
    rollouts_only: bool = False
    """Sample and publish, never update the model."""
    observe: bool = False
    """Look on: fetch, screen and grade what peers publish; publish and update nothing."""
    mixing: Mixing = field(default_factory=Mixing)
    learning: Learning = field(default_factory=Learning)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    health: HealthOptions = field(default_factory=HealthOptions)
    life: LifeOptions = field(default_factory=LifeOptions)
    bridge: BridgeOptions = field(default_factory=BridgeOptions)
    canary: CanaryOptions = field(default_factory=CanaryOptions)
    defenses: DefenseOptions = field(default_factory=DefenseOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)


def check(config: RunConfig) -> None:
    """Validate a configuration whole, before anything is loaded or written; raise `UsageError` with what to do."""
    chosen = [mode for mode in MODES if getattr(config, mode)]
    flags = " and ".join("--" + mode.replace("_", "-") for mode in chosen)
    require(len(chosen) < 2, f"{flags} exclude each other: give one of them, or none to train")
    if config.swarm is not None:
        _check_swarm(config.swarm)
    check_mixing(config.mixing, config.learning.minibatches, peers=True)
    check_learning(config.learning)
    device = config.learning.device
    require(DEVICE.fullmatch(device) is not None, f"--device {device!r}: give cpu, cuda, or cuda:N with its number")
    _check_network(config.network, config.health)
    _check_life(config.life)
    check_bridge(config.bridge)
    check_canary(config.canary)
    check_defenses(config.defenses)
    check_engine(config.engine, config.learning.device)


def _check_swarm(source: str) -> None:
    from shoal.node.sources import check_source

    try:
        check_source(source)
    except UsageError as error:
        raise UsageError(f"--swarm {error}") from error


def _check_network(network: NetworkOptions, health: HealthOptions) -> None:
    require(_is_ip(network.host), f"--host {network.host!r}: give an IP address of this machine, or 0.0.0.0 for all")
    require(1 <= network.port <= 65535, f"--port {network.port}: a port lies between 1 and 65535")
    require(health.health_host.strip() != "", "--health-host is empty: give 127.0.0.1, or --health-port 0 for none")
    require(0 <= health.health_port <= 65535, f"--health-port {health.health_port}: a port lies between 0 and 65535")
    require(network.port != health.health_port, f"--port and --health-port are both {network.port}: give another one")
    _check_addresses(network)


def _check_addresses(network: NetworkOptions) -> None:
    if not network.bootstrap and not network.announce:
        return
    from shoal.protocol.libp2p.addresses import parse, split

    for address in network.bootstrap:
        try:
            split(address)
        except UsageError as error:
            raise UsageError(f"--bootstrap {error}") from error
    for address in network.announce:
        parsed = parse(address)
        require(
            parsed is not None and not parsed.unspecified,
            f"--announce {address!r}: not an address such as /ip4/203.0.113.7/tcp/47700 (or ip6, dns4, dns6; "
            "udp/PORT/quic-v1), without a peer id",
        )


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text  # a zone of IPv6 is no part of an address that others could use


def _check_life(life: LifeOptions) -> None:
    require(1 <= life.passes <= 16, f"--passes {life.passes}: must lie between 1 and 16")
    require(
        0 <= life.wait_fraction <= 1 and math.isfinite(life.wait_fraction),
        f"--wait-fraction {life.wait_fraction}: must lie between 0 and 1",
    )
    for name in ("checkpoint_every", "failures", "keep_ledger_rounds", "keep_blobs_mb", "threads"):
        value = getattr(life, name)
        require(value >= 1, f"--{name.replace('_', '-')} {value}: must be at least 1")
    require(life.threads <= 256, f"--threads {life.threads}: must be at most 256")
    require(life.until_round is None or life.until_round >= 0, f"--until-round {life.until_round}: cannot be negative")
    DefenseConfig.without(layer for layer in life.defenses_off if layer != "all")  # raises for an unknown one
