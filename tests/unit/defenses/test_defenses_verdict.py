"""Verdicts, counters and switches."""

import os
from threading import Thread

import pytest

from shoal.defenses.config import DefenseConfig
from shoal.defenses.verdict import ACCEPTED, LAYERS, Action, Counters, Verdict, reject, unscorable
from shoal.protocol.errors import UsageError


def test_only_accept_and_weigh_are_usable():
    usable = {action for action in Action if Verdict(action, "text", "x").usable}
    assert usable == {Action.ACCEPT, Action.WEIGH}
    assert ACCEPTED.usable


def test_unscorable_is_a_reject_of_the_verifier_and_no_reward():
    verdict = unscorable("cpu_time")
    assert (verdict.action, verdict.layer, verdict.reason) == (Action.REJECT, "verifier", "unscorable_cpu_time")
    assert not verdict.usable
    assert unscorable("").reason == "unscorable"


def test_counters_count_by_layer_and_reason_and_come_back():
    counters = Counters()
    counters.add("text", "too_long")
    counters.add("text", "too_long", 2)
    counters.add("header", "stale")
    assert counters.state() == {"header/stale": 1, "text/too_long": 3}
    again = Counters()
    again.restore(counters.state())
    again.add("header", "stale")
    assert (again.get("header/stale"), counters.get("header/stale"), again.get("none/such")) == (2, 1, 0)


class Yielding(dict[str, int]):
    """Counts between whose reading and writing another thread gets its turn."""

    def get(self, key: str, default: int = 0) -> int:  # type: ignore[override]
        count = super().get(key, default)
        os.sched_yield()
        return count


def test_two_threads_lose_no_count():
    counters = Counters()
    counters.counts = Yielding()
    threads = [Thread(target=lambda: [counters.add("header", "stale") for _ in range(2000)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.state() == {"header/stale": 4000}


def test_layers_can_be_switched_off_by_name_only():
    config = DefenseConfig.without(["text", "quota"])
    assert [layer for layer in LAYERS if not config.on(layer)] == ["quota", "text"]
    with pytest.raises(UsageError, match="unknown defence layer 'fantasy'"):
        DefenseConfig.without(["fantasy"])


def test_the_schema_cannot_be_switched_off():
    with pytest.raises(UsageError, match="schema"):
        DefenseConfig.without(["schema"])


def test_reject_names_its_layer():
    assert reject("quota", "held") == Verdict(Action.REJECT, "quota", "held", 0.0)
