"""The red team's answers in front of real verifier workers: costly, deep, backtracking, code, hedged, partial, hostile.

Each is bounded or worthless here, and shown to be neither without the fence, as far as that is safe to show.
"""

import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import reasoning_gym
from test_verifier_fence import TASK, grade, grader, plugin  # noqa: F401 (fixtures)

from shoal.defenses.attacks import ATTACKS, Draft
from shoal.defenses.attacks.verifier import BACKTRACKING, CODE, EMPTY, NESTED, TOWERS, fragments, hedges
from shoal.trainer.tasks.base import Prompt
from shoal.trainer.tasks.registry import TASK_SETS, TaskSpec
from shoal.trainer.verify import Grader, Score

NINE = [spec.name for spec in TASK_SETS["sapo9"]]
OTHERS = ["jsonl/sums", "rg/simple_integration", "rg/puzzle24", "rg/n_queens", "rg/countdown", "strings/copy"]
BEYOND = sorted({*NINE, *OTHERS})
CPU_SECONDS = 0.4
ESCAPED = Path(f"/tmp/shoal-escape-{os.getuid()}")
KERNEL = platform.system() == "Linux" and platform.machine() == "x86_64"  # where the filter of system calls exists


@pytest.fixture(scope="module")
def scorers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grader]:
    path = tmp_path_factory.mktemp("sums") / "sums.jsonl"
    path.write_text("".join(json.dumps({"question": f"{i}+1?", "answer": str(i + 1)}) + "\n" for i in range(9)))
    extra = [TaskSpec(name) for name in OTHERS[1:]]
    specs = [*TASK_SETS["sapo9"], TaskSpec("jsonl/sums", config={"path": str(path)}), *extra]
    with Grader(specs, cpu_seconds=CPU_SECONDS, wall_seconds=60.0) as shipped:
        yield shipped


def scored(scorers: Grader, prompt: Prompt, texts: list[str]) -> list[Score]:
    """The scores of texts, each in a call of its own budget; the reference after them still earns its reward."""
    *scores, right = scorers.grade([(prompt, text) for text in [*texts, prompt.answer or ""]])
    assert right.reward == 1.0, "whatever came before, the next answer is graded"
    return scores


# --- costly formulas


def test_towers_are_stopped_and_never_right(scorers: Grader) -> None:
    prompt = scorers.registry.prompt("jsonl/sums", 1, 0)
    scores = scored(scorers, prompt, list(TOWERS))
    assert not any(score.reward for score in scores)
    stopped = [score for score in scores if score.reward is None]
    assert len(stopped) >= 8
    assert {score.reason for score in stopped} <= {"cpu_time", "memory", "crashed"}


def test_nested_formulas_are_stopped_or_wrong(scorers: Grader) -> None:
    prompt = scorers.registry.prompt("jsonl/sums", 1, 0)
    assert not any(score.reward for score in scored(scorers, prompt, list(NESTED)))


def test_one_rollout_of_them_costs_two_kills(scorers: Grader) -> None:
    prompt = scorers.registry.prompt("jsonl/sums", 1, 1)
    reasons = [score.reason for score in scorers.grade([(prompt, text) for text in TOWERS], most_killed=2)]
    assert sum(reason in {"cpu_time", "memory", "crashed"} for reason in reasons) == 2
    assert reasons[-1] == "budget"


_UNFENCED = """
import resource
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
def graded(text):
    targets = [LatexExtractionConfig(), ExprExtractionConfig()]
    return verify(parse("$6$", targets, parsing_timeout=0), parse(text, targets, parsing_timeout=0), timeout_seconds=0)
assert graded("$6$") and not graded("$7$")
used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
resource.setrlimit(resource.RLIMIT_CPU, (used + 3, used + 3))
graded("$9^{9^{9^9}}$")
"""


def test_without_a_limit_a_tower_does_not_end() -> None:
    done = subprocess.run([sys.executable, "-c", _UNFENCED], check=False, capture_output=True, timeout=300)
    assert done.returncode in {-signal.SIGXCPU, -signal.SIGKILL}, done.stderr.decode()[-400:]


# --- backtracking, code


@pytest.mark.parametrize("task", BEYOND)
def test_texts_that_make_patterns_backtrack_are_worthless_and_cheap(scorers: Grader, task: str) -> None:
    scores = scored(scorers, scorers.registry.prompt(task, 1, 2), list(BACKTRACKING))
    assert not any(score.reward for score in scores)
    assert {score.reason for score in scores} <= {"", "too_long"}, "none of them needs to be stopped"


@pytest.mark.parametrize("task", BEYOND)
def test_answers_that_are_programs_do_nothing_and_are_no_answers(scorers: Grader, task: str, tmp_path: Path) -> None:
    texts = [text.replace("{place}", str(tmp_path)) for text in CODE]
    prompt = scorers.registry.prompt(task, 1, 1)
    scores = scored(scorers, prompt, texts)
    assert {score.reason for score in scores} <= {"", "too_long"}, "none of them is even begun"
    assert not any(score.reward for score in scores)
    assert list(tmp_path.iterdir()) == []


def test_the_librarys_own_scorer_runs_them(tmp_path: Path) -> None:
    """What the own scorers replace: an answer that is a program is run, and can say that it is right."""
    dataset = reasoning_gym.create_dataset("binary_matrix", size=1, seed=1)
    dataset.score_answer(CODE[2].replace("{place}", str(tmp_path)).strip("[]"), dataset[0])
    assert (tmp_path / "escaped").exists()
    assert eval(CODE[9]) == dataset[0]["answer"], "and an object that is equal to everything equals the reference"


# --- many answers in one, parts of one, none


def two_prompts(scorers: Grader, task: str) -> tuple[Prompt, Prompt]:
    """Two questions of a task with different answers."""
    first = scorers.registry.prompt(task, 1, 0)
    others = (scorers.registry.prompt(task, 1, index) for index in range(1, 100))
    return first, next(other for other in others if other.answer != first.answer)


@pytest.mark.parametrize("task", sorted({*BEYOND} - {"rg/propositional_logic"}))  # where one text may answer both
def test_no_completion_is_right_for_two_questions(scorers: Grader, task: str) -> None:
    first, second = two_prompts(scorers, task)
    texts = [*hedges(first.answer or "", second.answer or ""), *hedges(second.answer or "", first.answer or "")]
    pairs = zip(scored(scorers, first, texts), scored(scorers, second, texts), strict=True)
    both = [text for text, pair in zip(texts, pairs, strict=True) if all(score.reward for score in pair)]
    assert both == []


@pytest.mark.parametrize("task", BEYOND)
def test_nothing_and_half_of_an_answer_are_not_answers(scorers: Grader, task: str) -> None:
    prompt = scorers.registry.prompt(task, 1, 3)
    answer = prompt.answer or ""
    parts = [] if task == "rg/decimal_arithmetic" else fragments(answer)  # which has a tolerance
    if task == "rg/fraction_simplification":  # which does not look at what stands behind a fraction in LaTeX
        parts = [part for part in parts if not part.startswith(answer)]
    texts = [*EMPTY, *parts]
    earned = [text for text, score in zip(texts, scored(scorers, prompt, texts), strict=True) if score.reward]
    assert earned == []


def test_the_attacks_send_these_texts() -> None:
    draft = Draft("6?", "6", "jsonl/sums", ("6",) * 16, (1.0,) * 16, (True,) * 16)
    for name, texts in (
        ("verifier-bombs", {*TOWERS, *NESTED, *BACKTRACKING}),
        ("code-answers", {text.replace("{place}", "/nowhere") for text in CODE}),
        ("partial-answers", {*EMPTY, *fragments("6"), *hedges("6", "61")}),
    ):
        sent = ATTACKS[name]().poison(draft, Random(0))
        assert set(sent.completions) <= texts
        assert len(set(sent.completions)) == 16
        assert sent.rewards == (1.0,) * 16


# --- programs inside of a scorer

REFUSED = [
    *("make a pipe in the file system", "make a node", "make shared memory", "write a history"),
    *("kill the worker by its handle", "slow the worker down", "another interpreter writes"),
    *("another interpreter calls", "another interpreter kills", "another interpreter lifts a limit"),
]


@pytest.mark.parametrize("act", REFUSED)
def test_what_the_audit_hook_does_not_see_the_kernel_refuses(grader: Grader, act: str) -> None:  # noqa: F811
    score = grade(grader, act)
    assert (score.reward, score.reason) == ((None, "refused") if KERNEL else (score.reward, score.reason))
    assert grade(grader, "right").reward == 1.0
    if KERNEL:
        assert not ESCAPED.exists()
        assert not Path("/dev/shm/shoal-escape").exists()


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        ("fork bomb", "refused"),
        ("exit by exception", "crashed"),
        ("equal to all", "bad_score"),
        ("interrupt", "crashed"),
        ("terminate", "crashed"),
    ],
)
def test_bombs_exits_signals_and_false_objects_are_unscorable(grader: Grader, act: str, reason: str) -> None:  # noqa: F811
    assert grade(grader, act) == Score(None, reason)
    assert grade(grader, "right").reward == 1.0


def test_an_answer_that_stops_itself_is_given_up(plugin: Path) -> None:  # noqa: F811
    with Grader([TaskSpec(TASK)], cpu_seconds=0.2, wall_seconds=0.5) as short:
        prompt = short.registry.prompt(TASK, 1, 0)
        assert [score.reason for score in short.grade([(prompt, "stop"), (prompt, "right")])] == ["wall_time", ""]


_CHILD = """
import sys
from hostile_plugin import ACTS
from shoal.trainer import verify_fence, verify_kernel
if sys.argv[2] == "off":
    verify_kernel.confine = lambda: False
verify_fence.enter(5.0, 2**28, True)
ACTS[sys.argv[1]]()
"""
WRITING = ["make a pipe in the file system", "make a node", "write a history", "another interpreter writes"]


@pytest.mark.parametrize("act", WRITING)
def test_without_the_kernels_part_of_the_fence_it_is_done(act: str) -> None:
    place = os.pathsep.join([str(Path(__file__).parent), *(path for path in sys.path if path)])
    codes: list[int] = []
    written: list[bool] = []
    for kernel in ("off", "on"):
        ESCAPED.unlink(missing_ok=True)
        command = [sys.executable, "-B", "-c", _CHILD, act, kernel]
        codes.append(subprocess.run(command, check=False, env={**os.environ, "PYTHONPATH": place}).returncode)
        written.append(ESCAPED.exists())
        ESCAPED.unlink(missing_ok=True)
    assert (codes[0], written[0]) == (0, True)
    assert not KERNEL or (codes[1], written[1]) == (-signal.SIGSYS, False)
