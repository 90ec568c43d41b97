"""Escapes and hangs of verifiers, tried for real: what a scorer does to its own pipe, to time, memory and its worker.

Each is bounded and unscorable, and the answer after it gets its score, from the same worker where it lives on.
"""

import os
import platform
from pathlib import Path

import pytest
from test_verifier_fence import TASK, _children, grade, grader, plugin  # noqa: F401 (fixtures)

from shoal.trainer.tasks.registry import TaskSpec
from shoal.trainer.verify import Grader, Score

KERNEL = platform.system() == "Linux" and platform.machine() == "x86_64"
FORGED = ["forge a reason", "forge a reward", "forge seconds", "forge half an answer", "close and stay"]


@pytest.mark.parametrize("act", FORGED)
def test_what_no_scorer_says_is_no_score_and_the_child_is_ended(grader: Grader, act: str) -> None:  # noqa: F811
    assert grade(grader, "right", index=31).reward == 1.0
    [worker] = [worker.process.pid for worker in grader._workers]
    losses = grader.counters["worker_losses"]
    assert grade(grader, act) == Score(None, "crashed")
    assert _children(worker) == [], "it would have waited for an hour"
    assert grade(grader, "right", index=32).reward == 1.0
    assert [worker.process.pid for worker in grader._workers] == [worker]
    assert grader.counters["worker_losses"] == losses


@pytest.mark.parametrize(
    ("act", "reasons"),
    [
        ("huge number", {"cpu_time", "memory"}),
        ("digits of a huge number", {"cpu_time", "memory", "crashed"}),  # crashed: Python refuses so many digits
        ("recurse in C", {"crashed"}),
        ("backtrack", {"cpu_time"}),
        ("explode by sympy", {"cpu_time", "memory"}),
        ("flood for ever", {"cpu_time"}),
        ("interpreters without end", {"cpu_time", "memory", "crashed"}),
    ],
)
def test_blow_ups_are_stopped(grader: Grader, act: str, reasons: set[str]) -> None:  # noqa: F811
    score = grade(grader, act)
    assert score.reward is None
    assert score.reason in reasons
    assert grade(grader, "right", index=33).reward == 1.0


@pytest.mark.parametrize("act", ["stop the worker", "stop the group", "fork bomb", "kill the worker"])
def test_signals_and_forks_end_their_sender(grader: Grader, act: str) -> None:  # noqa: F811
    assert grade(grader, act) == Score(None, "refused")
    assert grade(grader, "right", index=34).reward == 1.0


def test_hostile_answers_leave_no_process_and_no_file(plugin: Path) -> None:  # noqa: F811
    acts = ["fork bomb", "write", "kill the worker", "loop", "gobble", "close and stay", "flood", "abort"]
    with Grader([TaskSpec(TASK)], cpu_seconds=0.2, memory_bytes=2**26, wall_seconds=60.0) as short:
        short.grade([(short.registry.prompt(TASK, 1, 0), act) for act in acts])
        [worker] = [worker.process.pid for worker in short._workers]
        assert _children(worker) == []
        assert len(os.listdir(f"/proc/{worker}/fd")) < 16, "a pipe is left over for each answer"
    assert not Path(f"/tmp/shoal-escape-{os.getuid()}").exists()
