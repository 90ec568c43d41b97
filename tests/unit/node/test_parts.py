"""What a node does in a round, as its settings and the swarm's manifest allow."""

import msgspec
import pytest
from live_node import manifest

from shoal.node.layers import load
from shoal.node.options import RunConfig
from shoal.node.parts import _habits, fitted
from shoal.protocol.errors import UsageError
from shoal.protocol.manifest import Admission, Manifest
from shoal.trainer.tasks.registry import TaskRegistry


def config(**flags: object) -> RunConfig:
    from pathlib import Path

    return load(Path("/nowhere"), {}, {name.replace("__", "."): value for name, value in flags.items()}).config


def swarm(mode: str = "open", **limits: object) -> Manifest:
    made = manifest()
    return msgspec.structs.replace(
        made, admission=Admission(mode=mode), limits=msgspec.structs.replace(made.limits, **limits)
    )


def habits(settings: RunConfig, manifest: Manifest):
    return _habits(settings, manifest, TaskRegistry(manifest.tasks))


def test_in_an_open_swarm_every_prompt_is_shared_in_every_pass() -> None:
    made = habits(config(life__passes=3), swarm("open"))
    assert [made.slots(done) for done in range(3)] == [
        (range(8), range(0)),
        (range(8, 16), range(0)),
        (range(16, 24), range(0)),
    ]
    closed = habits(config(life__passes=2), swarm("allow-list"))
    assert [closed.slots(done) for done in range(2)] == [(range(0), range(8)), (range(0), range(8, 16))]


@pytest.mark.parametrize(
    ("flags", "limits", "expected"),
    [
        ({}, {"shared_slots": 4}, "8 shared prompts a round are more than the 4"),
        ({"life__passes": 9}, {}, "72 shared prompts"),
        ({}, {"rollouts_per_key_per_round": 7}, "8 prompts a round are more than the 7"),
        ({"learning__temperature": 3.0}, {}, "--temperature 0 to 2"),
        ({"learning__max_tokens": 9000}, {}, "--max-tokens up to 4096"),
    ],
)
def test_what_peers_would_refuse_is_refused_at_the_start(flags: dict, limits: dict, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        habits(config(**flags), swarm("open", **limits))


def test_a_narrower_revision_makes_the_node_sample_less() -> None:
    settings = config(life__passes=2)
    made = habits(settings, swarm("open"))
    assert fitted(made, swarm("open")) is made
    narrow = fitted(made, swarm("open", shared_slots=3))
    assert (narrow.prompts, narrow.shared, narrow.passes) == (3, 3, 1)
    assert fitted(narrow, swarm("open", shared_slots=3)) is narrow
    closed = habits(settings, swarm("allow-list"))
    less = fitted(closed, swarm("allow-list", own_slots=5))
    assert (less.prompts, less.shared, less.passes) == (5, 0, 1)
    fewest = fitted(closed, swarm("allow-list", rollouts_per_key_per_round=2))
    assert (fewest.prompts, fewest.passes) == (2, 1)
