"""Every metric of a node, declared once: the collector and the documentation are made from this table."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shoal.node import health
from shoal.node.view import PHASES, VERDICTS, find, number

Status = Mapping[str, Any]
Samples = Iterable[tuple[tuple[str, ...], float]]

MAX_SERIES = 256  # of one metric: what is beyond goes into one series "other", so that no peer can swell a database
OTHER = "other"
_LABEL = re.compile(r"[a-z0-9_.:-]{1,64}")
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: `read` gives label values and number for each series; what is not known yet has no series."""

    name: str
    kind: Literal["gauge", "counter"]
    labels: tuple[str, ...]
    help: str
    read: Callable[[Status], Samples]


def _at(path: str, scale: float = 1.0) -> Callable[[Status], Samples]:
    """Read one number at a dotted path of the status."""

    def read(status: Status) -> Samples:
        value = number(status, path)
        return [] if value is None else [((), value * scale)]

    return read


def _one_of(path: str, words: tuple[str, ...]) -> Callable[[Status], Samples]:
    """Read one of several words as a series each: 1 for the present one, 0 for the others."""

    def read(status: Status) -> Samples:
        present = find(status, path)
        return [] if present is None else [((word,), float(word == present)) for word in words]

    return read


def _by_name(path: str, labels: int = 1) -> Callable[[Status], Samples]:
    """Read numbers by name; with two labels a name is layer/reason. Odd names and those beyond the bound: "other"."""

    def read(status: Status) -> Samples:
        series: dict[tuple[str, ...], float] = {}
        for name, value in (find(status, path) or {}).items():
            key = tuple(name.partition("/")[::2]) if labels == 2 else (name,)
            fits = all(_LABEL.fullmatch(label) for label in key) and (key in series or len(series) < MAX_SERIES)
            key = key if fits else (OTHER,) * labels
            series[key] = series.get(key, 0.0) + value
        return series.items()

    return read


def _info(status: Status) -> Samples:
    values = [find(status, path) for path in ("version", "key", "mode", "swarm.id")]
    return [(tuple(str(value or "") for value in values), 1.0)]


def _lag(status: Status) -> Samples:
    for name, quantile in (("p50", "0.5"), ("p99", "0.99"), ("max", "1")):
        value = number(status, f"loop_lag_ms.{name}")
        if value is not None:
            yield (quantile,), value / 1000


METRICS: tuple[Metric, ...] = (
    Metric("shoal_node_info", "gauge", ("version", "key", "mode", "swarm"), "Who this node is; always 1.", _info),
    Metric("shoal_start_time_seconds", "gauge", (), "Unix time at which the process started.", _at("started")),
    Metric("shoal_uptime_seconds", "gauge", (), "Time since the process started.", _at("uptime_seconds")),
    Metric(
        "shoal_stepping",
        "gauge",
        (),
        "1 while the node does its work, as /healthz has it; 0 when it is stuck.",
        lambda status: [((), float(health.stepping(status)[0]))],
    ),
    Metric(
        "shoal_ready",
        "gauge",
        (),
        "1 while the node takes part in the swarm, as /readyz has it.",
        lambda status: [((), float(health.ready(status)[0]))],
    ),
    Metric("shoal_paused", "gauge", (), "1 while paused by a person.", _at("paused")),
    Metric(
        "shoal_phase", "gauge", ("phase",), "1 for the phase the node is in, 0 for others.", _one_of("phase", PHASES)
    ),
    Metric("shoal_round", "gauge", (), "Present round of swarm time.", _at("swarm.round")),
    Metric(
        "shoal_round_remaining_seconds", "gauge", (), "Time until the present round ends.", _at("swarm.seconds_left")
    ),
    Metric("shoal_manifest_revision", "gauge", (), "Revision of the manifest in force.", _at("swarm.revision")),
    Metric("shoal_steps_total", "counter", (), "Steps that ended well since the start.", _at("steps_total")),
    Metric("shoal_step_failures_total", "counter", (), "Steps that failed since the start.", _at("failures_total")),
    Metric(
        "shoal_step_failures_in_a_row", "gauge", (), "Failed steps since the last good one.", _at("failures_in_a_row")
    ),
    Metric(
        "shoal_last_step_age_seconds",
        "gauge",
        (),
        "Time since a step last ended well.",
        _at("last_step_age_seconds"),
    ),
    Metric("shoal_expected_step_seconds", "gauge", (), "Usual length of a step here.", _at("expected_step_seconds")),
    Metric(
        "shoal_step_limit_seconds",
        "gauge",
        (),
        "Time without a good step after which shoal_stepping turns 0.",
        lambda status: [((), health.step_limit(status))],
    ),
    Metric("shoal_policy_version", "gauge", (), "Completed updates of the policy.", _at("step.policy_version")),
    Metric(
        "shoal_step_reward",
        "gauge",
        (),
        "Mean reward (0 to 1) of the newest step's own completions.",
        _at("step.reward"),
    ),
    Metric("shoal_step_loss", "gauge", (), "Loss of the newest step.", _at("step.loss")),
    Metric(
        "shoal_step_mismatch",
        "gauge",
        ("measure",),
        "Log-probs of the sampler against the trainer's, newest step's own tokens: mean and max difference in nats, kl "
        "per token, off: share beyond 0.1, broken: tokens without a number, capped: share at the importance cap.",
        _by_name("step.mismatch"),
    ),
    Metric("shoal_step_own_sets", "gauge", (), "Own rollouts in the newest step.", _at("step.own_sets")),
    Metric("shoal_step_peer_sets", "gauge", (), "Peers' rollouts in the newest step.", _at("step.peer_sets")),
    Metric("shoal_step_peer_rows", "gauge", (), "Peers' completions in the newest step.", _at("step.peer_rows")),
    Metric(
        "shoal_step_phase_seconds",
        "gauge",
        ("phase",),
        "Time of each part of the newest step.",
        _by_name("step.seconds"),
    ),
    Metric("shoal_peers", "gauge", (), "Live peers known.", _at("network.peers")),
    Metric("shoal_peers_connected", "gauge", (), "Peers with an open connection.", _at("network.connected")),
    Metric("shoal_bootstraps_connected", "gauge", (), "Bootstraps that answer.", _at("network.bootstraps_connected")),
    Metric("shoal_transport_alive", "gauge", (), "1 while the transport runs.", _at("network.daemon_alive")),
    Metric(
        "shoal_transport_restarts_total",
        "counter",
        (),
        "Times that the transport died and was started again.",
        _at("network.daemon_restarts"),
    ),
    Metric(
        "shoal_reachability",
        "gauge",
        ("verdict",),
        "1 for how the node can be reached from outside, 0 for others.",
        _one_of("network.reachability.verdict", VERDICTS),
    ),
    Metric(
        "shoal_clock_offset_seconds",
        "gauge",
        (),
        "The peers' clocks (median) minus ours.",
        _at("network.clock_offset_seconds"),
    ),
    Metric(
        "shoal_verdicts_total",
        "counter",
        ("layer", "reason"),
        "What was accepted, refused or dropped, by the layer that decided and its reason.",
        _by_name("counts", labels=2),
    ),
    Metric(
        "shoal_canary_evidence",
        "gauge",
        (),
        "What speaks for something picked up from peers, in nats; the canary alarms at 9.",
        _at("canary.evidence"),
    ),
    Metric(
        "shoal_canary_frozen_rounds",
        "gauge",
        (),
        "Rounds for which nothing more is taken from peers after an alarm of the canary.",
        _at("canary.frozen_rounds"),
    ),
    Metric("shoal_transport_events_total", "counter", ("event",), "Counters of the transport.", _by_name("transport")),
    Metric(
        "shoal_store", "gauge", ("item",), "Sizes of the store; an item's name ends in its unit.", _by_name("store")
    ),
    Metric("shoal_memory_bytes", "gauge", (), "Resident memory of the node.", _at("memory_mb", _MIB)),
    Metric(
        "shoal_event_loop_lag_seconds",
        "gauge",
        ("quantile",),
        "How late the event loop wakes up, over its newest samples; quantile 1 is the longest.",
        _lag,
    ),
)
