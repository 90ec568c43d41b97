"""A node in Prometheus' format: a registry of its own, whose one collector reads the status when it is scraped.

`python -m shoal.node.metrics` prints docs/metrics.md.
"""

import sys
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shoal.node.metrics_table import MAX_SERIES, METRICS
from shoal.node.view import NodeView


class StatusCollector(Collector):
    """Turns `view.status()` into metrics, once a scrape."""

    def __init__(self, view: NodeView) -> None:
        self._view = view

    def describe(self) -> list[Metric]:
        """Return nothing: else the registry would read the status of a node that has not started."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every metric that has a value now."""
        status = self._view.status()
        for metric in METRICS:
            family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            made = family(metric.name, metric.help, labels=metric.labels)
            for labels, value in metric.read(status):
                made.add_metric(labels, value)
            if made.samples:
                yield made


def registry(view: NodeView) -> CollectorRegistry:
    """Return a private registry for one node: several in one process do not meet, and no library adds to it."""
    private = CollectorRegistry(auto_describe=False)
    private.register(StatusCollector(view))
    ProcessCollector(registry=private)
    return private


def exposition(registry: CollectorRegistry) -> bytes:
    """Return the metrics as text, in the format that every Prometheus reads."""
    return generate_latest(registry)


PROCESS = (
    ("process_cpu_seconds_total", "counter", "CPU time of the process."),
    ("process_resident_memory_bytes", "gauge", "Resident memory of the process itself."),
    ("process_virtual_memory_bytes", "gauge", "Virtual memory of the process itself."),
    ("process_start_time_seconds", "gauge", "Unix time at which the process started."),
    ("process_open_fds", "gauge", "Open file descriptors."),
    ("process_max_fds", "gauge", "Most file descriptors that may be open."),
)

_HEAD = f"""# Metrics

`shoal run` serves these in Prometheus' text format on `http://127.0.0.1:47701/metrics` (`--health-host`,
`--health-port`; port 0 switches it off), and on the control socket of the home.

Times are in seconds and sizes in bytes, as the names say. Counters count since the process started. A value that is
not known yet has no series. Labels never hold what peers wrote; one metric has at most {MAX_SERIES} series, and what is
beyond that is added up under `other`.

| metric | type | labels | meaning |
|---|---|---|---|
"""

_TAIL = """
This page is made by `python -m shoal.node.metrics > docs/metrics.md` from `node/metrics_table.py`; a test fails when it
is stale.
"""


def document() -> str:
    """Return docs/metrics.md."""
    rows = [(m.name, m.kind, ", ".join(f"`{label}`" for label in m.labels) or "–", m.help) for m in METRICS]
    rows += [(name, kind, "–", text) for name, kind, text in PROCESS]
    return _HEAD + "".join(f"| `{name}` | {kind} | {labels} | {text} |\n" for name, kind, labels, text in rows) + _TAIL


if __name__ == "__main__":
    sys.stdout.write(document())
