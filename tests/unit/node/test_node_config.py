"""Settings are checked whole before anything is loaded, with a message that says what to do."""

from dataclasses import replace
from typing import Any

import pytest

from shoal.node.config import Cut, SimulateConfig, check, parse_attack, parse_partition
from shoal.protocol.errors import UsageError


def changed(group: str, **values: Any) -> SimulateConfig:
    config = SimulateConfig()
    return replace(config, **{group: replace(getattr(config, group), **values)})


def test_the_defaults_are_valid() -> None:
    check(SimulateConfig())


@pytest.mark.parametrize(
    ("group", "values", "says"),
    [
        ("swarm", {"nodes": 0}, "--nodes 0"),
        ("swarm", {"nodes": 33}, "1 to 32"),
        ("swarm", {"rounds": 0}, "--rounds"),
        ("swarm", {"nodes": 1}, "needs peers"),
        ("swarm", {"own_skill": 1.5}, "--own-skill"),
        ("swarm", {"max_lag": -1}, "--max-lag"),
        ("swarm", {"attack": ("text:1.0",)}, "no honest node"),
        ("swarm", {"attack": ("text",)}, "NAME:SHARE"),
        ("mixing", {"local": 0, "external": 0}, "nothing to train on"),
        ("mixing", {"local": 4, "external": 3}, "do not divide"),
        ("mixing", {"group_size": 1}, "2 to 64"),
        ("mixing", {"tasks_per_node": 2}, "fewer than --local"),
        ("mixing", {"local": 0, "external": 8, "mix": "joined"}, "--mix joined"),
        ("mixing", {"shared_prompts": 9}, "--shared-prompts"),
        ("mixing", {"centre": "median"}, "odd --group-size"),
        ("mixing", {"noise": 0.5}, "--noise"),
        ("mixing", {"damping": 0.0}, "--damping"),
        ("mixing", {"start_gate": 1.1}, "--start-gate"),
        ("learning", {"lr": 0.0}, "--lr"),
        ("learning", {"lr": float("nan")}, "--lr"),
        ("learning", {"temperature": 0.0}, "--temperature"),
        ("learning", {"max_tokens": 0}, "--max-tokens"),
        ("learning", {"minibatches": 0}, "--minibatches"),
        ("links", {"round_seconds": 0}, "--round-seconds"),
        ("links", {"loss": 1.0}, "--loss"),
        ("links", {"delay": 60.0}, "--delay"),
        ("links", {"wait_fraction": 1.1}, "--wait-fraction"),
        ("links", {"partition": ("5-5:0|1",)}, "not before"),
        ("run", {"arms": ()}, "--arms"),
        ("run", {"eval_every": 0}, "--eval-every"),
        ("run", {"threads": 0}, "--threads"),
    ],
)
def test_bad_settings_are_refused_by_name(group: str, values: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as error:
        check(changed(group, **values))
    assert says in str(error.value)
    assert error.value.exit_code == 2


def test_attacks_and_partitions_are_read() -> None:
    assert parse_attack("text:0.25") == ("text", 0.25)
    assert parse_partition("10-20:0,1|2", 3) == Cut(10, 20, (frozenset({0, 1}), frozenset({2})))


@pytest.mark.parametrize("text", ["10:0|1", "1-2:0|0", "1-2:0|7", "1-2:", "1-2:a|b", "2-1:0|1", "1-2:0,|1"])
def test_bad_partitions_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_partition(text, 4)


def test_joined_groups_share_all_prompts_and_whole_sets_none() -> None:
    assert SimulateConfig().mixing.shared == 0
    assert changed("mixing", mix="joined").mixing.shared == 8
    assert changed("mixing", mix="joined", shared_prompts=3).mixing.shared == 3
