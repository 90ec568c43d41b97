"""From a peer's bytes to the rows that train: only its text counts."""

from dataclasses import replace
from typing import Any

import pytest

from shoal.defenses.attacks.lab import Laboratory
from shoal.defenses.pointer import Pointer
from shoal.defenses.screen import Screened, screen
from shoal.defenses.verdict import Counters
from shoal.node.config import Mixing
from shoal.node.mix import Mixer
from shoal.node.regrade import Regrader
from shoal.protocol.staleness import Clock, LagClock
from shoal.protocol.wire import pack_floats, pack_ints
from shoal.trainer.batch import Row
from shoal.trainer.model import DEFAULT_MODEL, Policy, load_policy
from shoal.trainer.tasks.registry import TASK_SETS, TaskRegistry
from shoal.trainer.verify import Grader

TEXTS = ("cba", "abc", "?", "zx cba")


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(DEFAULT_MODEL)


def rows_of(policy: Policy, texts: tuple[str, ...] = TEXTS, **changes: Any) -> list[Row]:
    """Send one rollout through seal, gate, screen and regrading, and return the rows it becomes."""
    lab = Laboratory()
    sent = lab.sealed(0, lab.rollout(texts, **changes))
    pointer = lab.gate.admit(sent.announcement, b"somebody")
    assert isinstance(pointer, Pointer)
    screened = screen(pointer, sent.blob, lab.context, lab.memory)
    assert isinstance(screened, Screened)
    # The laboratory's prompts are no real task: what is graded and read is one of the built-in ones.
    named = replace(screened, prompt=replace(screened.prompt, task="strings/reverse", seed=1, index=0))
    registry = TaskRegistry(TASK_SETS["strings"])
    with Grader(registry) as grader:
        peer = Regrader(registry, grader, Counters()).regrade(pointer, named)
    mixer = Mixer(Mixing(), policy, Clock(lambda: lab.now, 0.0, 10.0), LagClock(), 1.0)
    return mixer.peer_rows(0, peer, peer.completions)


@pytest.mark.parametrize(
    "changes",
    [
        {"rewards": pack_floats([1.0, 1.0, 1.0, 1.0])},
        {"mean_logps": pack_floats([-9.0, -0.1, -5.0, -2.0])},
        {
            "tokenizer": bytes([9]) * 32,
            "token_ids": tuple(pack_ints([7, 8, 9]) for _ in TEXTS),
            "logps": tuple(pack_floats([-1.0, -2.0, -3.0]) for _ in TEXTS),
        },
    ],
    ids=["claimed rewards", "mean log-probs", "token ids"],
)
def test_nothing_but_the_text_of_a_peer_reaches_a_row(policy: Policy, changes: dict[str, Any]) -> None:
    changed, plain = rows_of(policy, **changes), rows_of(policy)
    assert [fields(row) for row in changed] == [fields(row) for row in plain]


def test_another_text_is_another_row(policy: Policy) -> None:
    other = rows_of(policy, texts=("cba", "abc", "!", "zx cba"))
    assert [fields(row) for row in other] != [fields(row) for row in rows_of(policy)]


def fields(row: Row) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__slots__}
