"""How a running node is seen and steered: one interface, behind which health, metrics and the control socket stand.

The daemon implements `NodeView`. Everything that looks at a node reads the plain dict of `status()`, so that a page, a
metric and a command never tell different stories. A key that is not known yet is left out or None; nobody may rely on
any key being there, and nothing in it holds secrets.
"""

from collections.abc import Mapping
from typing import Any, Literal, Protocol, TypedDict

Mode = Literal["train", "rollouts_only", "observe", "bootstrap_only"]
Phase = Literal["starting", "waiting_for_genesis", "waiting", "sampling", "gathering", "updating", "paused", "draining"]

PHASES: tuple[str, ...] = (
    "starting",
    "waiting_for_genesis",
    "waiting",
    "sampling",
    "gathering",
    "updating",
    "paused",
    "draining",
)
STEPLESS: frozenset[str] = frozenset({"bootstrap_only"})
"""Modes in which a node makes no passes. One that only observes, or only samples, makes them: each counts as a step."""

VERDICTS: tuple[str, ...] = ("public", "relayed", "private", "unknown")
"""How the node can be reached from outside."""


class SwarmStatus(TypedDict, total=False):
    """The swarm and where its clock stands. `id` is hex; an empty or missing one means: no manifest yet."""

    name: str
    id: str
    revision: int
    round: int
    round_seconds: float
    seconds_left: float
    """Until the present round ends; before genesis, until genesis."""


StepStatus = TypedDict(
    "StepStatus",
    {
        "round": int,
        "pass": int,  # a keyword, hence this form
        "policy_version": int,
        "ended_at": float,  # unix seconds
        "reward": float | None,  # mean of the own completions, None when none could be scored
        "loss": float | None,
        "mismatch": dict[str, float],  # of sampler and trainer, by measure; empty when nothing was measured
        "own_sets": int,
        "peer_sets": int,
        "peer_rows": int,
        "note": str,  # why nothing was learned, e.g. "no signal: all groups uniform"; else empty
        "seconds": dict[str, float],  # by phase of the pass
    },
    total=False,
)
"""The newest step that ended well."""


class ReachabilityStatus(TypedDict, total=False):
    """The transport's verdict (one of `VERDICTS`), the addresses at which peers see us, and what to do about it."""

    verdict: str
    seen_as: list[str]
    advice: str


class NetworkStatus(TypedDict, total=False):
    """The transport. `peers` counts live peers, `connected` those with an open connection."""

    addresses: list[str]
    peers: int
    connected: int
    bootstraps_connected: int
    daemon_restarts: int
    daemon_alive: bool
    reachability: ReachabilityStatus
    clock_offset_seconds: float | None
    """The peers' clock (median) minus ours; None while no peer has told the time."""


class LagStatus(TypedDict, total=False):
    """How late the event loop wakes up, in milliseconds, over its newest samples."""

    p50: float
    p99: float
    max: float


class CanaryStatus(TypedDict, total=False):
    """The look at the own model. `evidence` (nats) is held against what rises; `frozen_rounds` are left of a freeze."""

    frozen_rounds: int
    evidence: float
    passes_since_run: int
    last_alarm: dict[str, Any] | None
    """Kind, text, shares, rounds and versions; its text was escaped, and may still be a peer's."""


class StatusDict(TypedDict, total=False):
    """What `NodeView.status()` returns. Durations are seconds of a monotonic clock: no jump of the clock ends a node.

    `steps_total` and `failures_total` count since this process started. A step that failed is no step: only one that
    ended well resets `last_step_age_seconds`. `active_seconds` is the time since the node last became able to step
    (it started, genesis came, it was resumed); without it, health counts from the start of the process.
    """

    version: str
    key: str  # hex
    mode: str  # one of `Mode`
    home: str
    pid: int
    started: float  # unix seconds
    uptime_seconds: float
    active_seconds: float
    swarm: SwarmStatus
    phase: str  # one of `Phase`
    step: StepStatus | None
    steps_total: int
    failures_in_a_row: int
    failures_total: int
    last_failure: str | None
    expected_step_seconds: float | None
    last_step_age_seconds: float | None
    network: NetworkStatus
    counts: dict[str, int]  # "layer/reason" → n
    transport: dict[str, int]  # the transport's counters
    canary: CanaryStatus  # missing for a node that takes nothing from peers
    store: dict[str, float]  # sizes; each name ends in its unit
    memory_mb: float  # resident, in units of 2**20 bytes
    loop_lag_ms: LagStatus
    paused: bool
    admission: str  # why peers refuse what this node shares; empty when it is admitted
    listening: dict[str, int]  # port and health_port as they are in force
    watchdog: str  # the health's verdict in words


class PeerDict(TypedDict, total=False):
    """One peer in `NodeView.peers()`. All text in it came from that peer: escape before showing."""

    key: str  # hex
    operator: str
    connected: bool
    last_seen: float  # unix seconds
    addresses: list[str]
    policy_version: int
    lineage: str  # hex
    same_model: bool | None  # the lineage is ours; None for a peer without a model
    revision: int
    used: int  # rollouts that were trained on
    refused: int
    reputation: float | None


class NodeView(Protocol):
    """A running node, as seen by health, metrics and the control socket. Called in the node's event loop only."""

    def status(self) -> StatusDict:
        """The present state; cheap, no input or output."""
        ...

    def peers(self) -> list[PeerDict]:
        """The peers known now."""
        ...

    def pause(self) -> None:
        """Take no new step until `resume`; the network goes on. Harmless when repeated."""
        ...

    def resume(self) -> None:
        """Step again. Harmless when repeated."""
        ...

    async def export(self, folder: str) -> str:
        """Write the policy as a Hugging Face directory to an absolute path, and return the path.

        Raises UsageError (the folder exists), EnvironmentFault (it cannot be written).
        """
        ...

    async def checkpoint(self) -> str:
        """Save the state after the step in hand, and return the path. Raises EnvironmentFault."""
        ...

    def stepping(self) -> tuple[bool, str]:
        """Whether the node does its work, and the reason in one line: see `health.stepping`."""
        ...

    def ready(self) -> tuple[bool, str]:
        """Whether the node takes part in the swarm, and the reason in one line: see `health.ready`."""
        ...


def find(status: Mapping[str, Any], path: str) -> Any:
    """Return what lies at a dotted path of a status, e.g. network.peers; None when it is not known."""
    value: Any = status
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def number(status: Mapping[str, Any], path: str) -> float | None:
    """Return the number at a dotted path of a status; None when there is none."""
    value = find(status, path)
    return float(value) if isinstance(value, int | float) else None
