"""Hostile scorers in real worker processes: each is bounded and unscorable, and the answers after it get their score.

docs: field failures 24 (a scorer without a timeout wedges the run) and 25 (queue time counted as run time).
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.trainer.tasks.base import Prompt
from shoal.trainer.tasks.registry import TaskSpec
from shoal.trainer.verify import Grader, Score

TASK = "hostile/acts"
SHARED = "hostile/shared"
CPU_SECONDS = 0.4


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Install the plug-in as a distribution on sys.path, as a person would by pip."""
    place = tmp_path_factory.mktemp("site")
    source = Path(__file__).with_name("hostile_plugin.py")
    (place / "hostile_plugin.py").write_text(source.read_text())
    information = place / "hostile-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile\nVersion: 1\n")
    entries = f"[shoal.tasks]\n{TASK} = hostile_plugin:Hostile\n{SHARED} = hostile_plugin:Hostile\n"
    (information / "entry_points.txt").write_text(entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        patch.setenv("SHOAL_TEST_SECRET", "1")
        yield place


@pytest.fixture(scope="module")
def grader(plugin: Path) -> Iterator[Grader]:
    specs = [TaskSpec(TASK), TaskSpec(SHARED, config={"isolate": False})]
    with Grader(specs, cpu_seconds=CPU_SECONDS, memory_bytes=2**26, wall_seconds=60.0) as grader:
        yield grader


def grade(grader: Grader, act: str, task: str = TASK, index: int = 0) -> Score:
    return grader.grade([(grader.registry.prompt(task, 1, index), act)])[0]


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        ("loop", "cpu_time"),
        ("loop in C", "cpu_time"),
        ("loop without timer", "cpu_time"),
        ("loop ignoring everything", "cpu_time"),
        ("allocate", "memory"),
        ("gobble", "memory"),
        ("recurse", "crashed"),
        ("socket", "refused"),
        ("swallow", "refused"),
        ("write", "refused"),
        ("read", "refused"),
        ("remove", "refused"),
        ("system", "refused"),
        ("popen", "refused"),
        ("exec", "refused"),
        ("fork", "refused"),
        ("kill the worker", "refused"),
        ("lift the memory limit", "refused"),
        ("dlopen", "refused"),
        ("leave", "crashed"),
        ("leave politely", "crashed"),
        ("raise", "crashed"),
        ("abort", "crashed"),
        ("give up", "no_gold"),
        ("nan", "bad_score"),
        ("two", "bad_score"),
        ("text", "crashed"),
    ],
)
def test_hostile_act_is_unscorable_and_the_next_answer_is_graded(grader: Grader, act: str, reason: str) -> None:
    stopped, right, wrong = grader.grade(
        [(grader.registry.prompt(TASK, 2, 0), text) for text in (act, "right", "wrong")]
    )
    assert (stopped.reward, stopped.reason) == (None, reason)
    assert (right.reward, wrong.reward) == (1.0, 0.0)


@pytest.mark.parametrize("act", ["loop", "gobble", "write", "raise", "leave"])
def test_the_shared_child_is_replaced_too(grader: Grader, act: str) -> None:
    texts = ["right", act, "right", "wrong"]
    scores = grader.grade([(grader.registry.prompt(SHARED, 3, index), text) for index, text in enumerate(texts)])
    assert [score.reward for score in scores] == [1.0, None, 1.0, 0.0]


def test_an_answer_that_only_waits_is_given_up(plugin: Path) -> None:
    with Grader([TaskSpec(TASK)], cpu_seconds=0.2, wall_seconds=0.5) as grader:
        prompt = grader.registry.prompt(TASK, 1, 0)
        assert [score.reason for score in grader.grade([(prompt, "wait"), (prompt, "right")])] == ["wall_time", ""]
        # not remembered: the machine's load may have been the cause
        assert grader.grade([(prompt, "wait")])[0].reason == "wall_time"
        assert grader.counters["remembered"] == 0


def test_nothing_was_written(grader: Grader) -> None:
    grade(grader, "write", index=7)
    assert not Path(f"/tmp/shoal-escape-{os.getuid()}").exists()


def test_a_thread_cannot_start(grader: Grader) -> None:
    # Python 3.11 has no audit event for threads, and NPROC does not bind root: either way it gains no time
    assert grade(grader, "thread").reason in {"crashed", "refused", ""}


def test_one_answer_cannot_change_how_the_next_is_graded(grader: Grader) -> None:
    assert grade(grader, "poison the next").reward == 1.0
    assert grade(grader, "wrong", index=11).reward == 0.0


def test_output_goes_nowhere(grader: Grader, capfd: pytest.CaptureFixture[str]) -> None:
    assert grade(grader, "flood").reward == 1.0
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_worker_holds_no_tensors_and_no_secrets(grader: Grader) -> None:
    assert grade(grader, "has torch").reward == 0.0
    assert grade(grader, "show secrets").reward == 0.0


def test_late_imports_work(grader: Grader) -> None:
    assert grade(grader, "load a module").reward == 1.0


def test_waiting_is_not_run_time(grader: Grader) -> None:
    """An answer whose grading waits longer than the CPU limit, and one queued behind others, keep their reward."""
    texts = ["loop", "wait a little", "right"]
    scores = grader.grade([(grader.registry.prompt(TASK, 4, 0), text) for text in texts])
    assert [score.reward for score in scores] == [None, 1.0, 1.0]
    assert scores[1].cpu_seconds < CPU_SECONDS


def test_a_lost_worker_is_replaced(grader: Grader) -> None:
    assert grade(grader, "right", index=21).reward == 1.0
    before = dict(grader.counters)
    for worker in grader._workers:
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
    lost, after = (grade(grader, "right", index=index) for index in (22, 23))
    assert (lost.reward, lost.reason) == (None, "crashed")
    assert after.reward == 1.0
    assert grader.counters["worker_losses"] == before.get("worker_losses", 0) + 1


def test_equal_answers_are_graded_once(grader: Grader) -> None:
    before = grader.counters["remembered"]
    prompt = grader.registry.prompt(TASK, 5, 0)
    scores = grader.grade([(prompt, "loop")] * 5 + [(prompt, "right")])
    again = grader.grade([(prompt, "loop"), (prompt, "right")])
    assert [score.reason for score in scores] == ["cpu_time"] * 5 + [""]
    assert [score.reward for score in again] == [None, 1.0]
    assert grader.counters["remembered"] == before + 2


def test_a_budget_of_kills_bounds_one_call(grader: Grader) -> None:
    items = [(grader.registry.prompt(TASK, 6, index), "loop") for index in range(20)]
    items.append((grader.registry.prompt(TASK, 6, 0), "right"))
    reasons = [score.reason for score in grader.grade(items, most_killed=2)]
    assert reasons == ["cpu_time"] * 2 + ["budget"] * 19
    again = [score.reason for score in grader.grade(items, most_killed=2)]
    assert again == reasons, "what was graded before must not change what a budget buys"


def test_results_keep_their_order_with_several_workers(plugin: Path) -> None:
    texts = ["wait a little", "right", "wrong", "loop", "right", "wrong"]
    with Grader([TaskSpec(TASK)], workers=2, cpu_seconds=CPU_SECONDS, wall_seconds=60.0) as grader:
        items = [(grader.registry.prompt(TASK, 7, index), text) for index, text in enumerate(texts)]
        assert [score.reward for score in grader.grade(items)] == [1.0, 1.0, 0.0, None, 1.0, 0.0]
        assert grader.counters["worker_starts"] == 2


_ORPHAN = """
import sys
from shoal.trainer.tasks.registry import TaskSpec
from shoal.trainer.verify import Grader
grader = Grader([TaskSpec("hostile/acts")], cpu_seconds=300.0, wall_seconds=600.0)
grader.start()
sys.stdout.write(f"{grader._workers[0].process.pid}\\n")
sys.stdout.flush()
grader.grade([(grader.registry.prompt("hostile/acts", 1, 0), "wait")])
"""


def _children(process: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.parametrize("victim", ["trainer", "worker"])
def test_no_process_outlives_the_one_it_works_for(plugin: Path, victim: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(place for place in sys.path if place)}
    with subprocess.Popen([sys.executable, "-c", _ORPHAN], stdout=subprocess.PIPE, env=environment) as trainer:
        assert trainer.stdout is not None
        worker = int(trainer.stdout.readline())
        children: list[int] = []
        while not children:  # the child comes with the answer, a moment later
            children = _children(worker)
        handles = [os.pidfd_open(worker), os.pidfd_open(children[0])]
        os.kill(trainer.pid if victim == "trainer" else worker, signal.SIGKILL)
        for descriptor in handles:  # readable once that process has ended
            assert select.select([descriptor], [], [], 60.0)[0], "a process is left over"
            os.close(descriptor)
        trainer.kill()


def test_close_ends_the_worker(plugin: Path) -> None:
    grader = Grader([TaskSpec(TASK)])
    grader.start()
    process = grader._workers[0].process
    grader.close()
    grader.close()
    assert process.returncode == 0


def test_prompt_names_are_all_that_travels(grader: Grader) -> None:
    """A worker rebuilds the prompt: what a caller claims in a Prompt cannot change the score."""
    forged = Prompt(TASK, 8, 0, "another question", "wrong", {"anything": object()})
    assert grader.grade([(forged, "wrong")])[0].reward == 0.0
