"""The metrics as Prometheus reads them, and their page."""

import re
from pathlib import Path

from fake_view import FakeView
from prometheus_client.parser import text_string_to_metric_families

from shoal.node.metrics import PROCESS, document, exposition, registry
from shoal.node.metrics_table import MAX_SERIES, METRICS

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(view: FakeView) -> Series:
    text = exposition(registry(view)).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(series: Series, name: str, **labels: str) -> float:
    return series[name, tuple(sorted(labels.items()))]


def test_a_status_becomes_numbers_with_units() -> None:
    series = scraped(FakeView())
    assert value(series, "shoal_steps_total") == 59
    assert value(series, "shoal_step_failures_total") == 1
    assert value(series, "shoal_stepping") == 1
    assert value(series, "shoal_ready") == 1
    assert value(series, "shoal_step_limit_seconds") == 180
    assert value(series, "shoal_memory_bytes") == 512 * 2**20
    assert value(series, "shoal_event_loop_lag_seconds", quantile="0.99") == 0.0125
    assert value(series, "shoal_step_phase_seconds", phase="gather") == 5
    assert value(series, "shoal_verdicts_total", layer="text", reason="zero_width") == 2
    assert value(series, "shoal_transport_events_total", event="dropped_queue_full") == 3
    assert value(series, "shoal_store", item="blob_bytes") == 65536
    assert value(series, "shoal_phase", phase="gathering") == 1
    assert value(series, "shoal_phase", phase="updating") == 0
    assert value(series, "shoal_reachability", verdict="private") == 1
    assert value(series, "shoal_clock_offset_seconds") == -0.25
    info = {"version": "0.1.0", "key": "ab" * 32, "mode": "train", "swarm": "cd" * 32}
    assert value(series, "shoal_node_info", **info) == 1


def test_every_declared_metric_comes_from_a_whole_status_and_nothing_else_does() -> None:
    names = {name for name, _ in scraped(FakeView())}
    assert names == {metric.name for metric in METRICS} | {name for name, _, _ in PROCESS}


def test_what_is_not_known_yet_has_no_series() -> None:
    view = FakeView()
    view.state = {"phase": "starting", "step": None, "expected_step_seconds": None, "network": {"reachability": None}}
    series = scraped(view)
    assert ("shoal_policy_version", ()) not in series
    assert ("shoal_expected_step_seconds", ()) not in series
    assert value(series, "shoal_ready") == 0


def test_a_scrape_reads_the_state_of_its_moment_and_two_nodes_do_not_meet() -> None:
    one, two = FakeView(), FakeView()
    mine, other = registry(one), registry(two)
    one.state["steps_total"] = 77
    assert b"shoal_steps_total 77.0" in exposition(mine)
    assert b"shoal_steps_total 59.0" in exposition(other)


def test_cardinality_is_bounded_and_nothing_is_lost() -> None:
    view = FakeView()
    view.state["counts"] = {f"text/reason_{n}": 1 for n in range(1000)}
    view.state["transport"] = {"fine": 1, 'bad"} 1\nshoal_steps_total 5': 2, "x" * 100: 3}
    series = scraped(view)
    verdicts = {labels: count for (name, labels), count in series.items() if name == "shoal_verdicts_total"}
    assert len(verdicts) == MAX_SERIES + 1
    assert sum(verdicts.values()) == 1000
    assert value(series, "shoal_transport_events_total", event="fine") == 1
    assert value(series, "shoal_transport_events_total", event="other") == 5
    assert value(series, "shoal_steps_total") == 59


def test_names_follow_prometheus() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"shoal_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") is (metric.kind == "counter"), metric.name
        assert not re.search(r"_(ms|mb|minutes|hours)$", metric.name), "base units only"
        assert metric.help.endswith(".")


def test_the_page_of_metrics_is_not_stale() -> None:
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    assert page.read_text(encoding="utf-8") == document(), "run: python -m shoal.node.metrics > docs/metrics.md"
