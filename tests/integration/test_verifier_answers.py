"""Hostile answers against the shipped scorers, in real workers: bounded, unscorable where stopped, never in the way.

docs: `9^9^9^9`, an endless answer, sympy towers, answers that are code (issue 2, field failure 24).
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.trainer.tasks.registry import TASK_SETS, TaskSpec
from shoal.trainer.verify import Grader

NINE = [spec.name for spec in TASK_SETS["sapo9"]]
CODE = "__import__('os').system('touch {place}/escaped')"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def grader(place: Path) -> Iterator[Grader]:
    path = place / "sums.jsonl"
    path.write_text("".join(json.dumps({"question": f"{i}+1?", "answer": str(i + 1)}) + "\n" for i in range(9)))
    extra = [TaskSpec("jsonl/sums", config={"path": str(path)}), TaskSpec("rg/simple_integration")]
    extra += [TaskSpec("rg/puzzle24"), TaskSpec("rg/n_queens"), TaskSpec("strings/copy")]
    with Grader([*TASK_SETS["sapo9"], *extra], cpu_seconds=1.0, wall_seconds=60.0) as grader:
        yield grader


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        ("jsonl/sums", "9^9^9^9"),
        ("jsonl/sums", "9**9**9**9"),
        ("jsonl/sums", "$9^{9^{9^9}}$"),
        ("jsonl/sums", "$1000000000!$"),
        ("jsonl/sums", r"$\sum_{n=1}^{10^{100}} n^{n}$"),
        ("jsonl/sums", "(" * 150 + "1" + ")" * 150),
        ("jsonl/sums", "$" + "{" * 190 + "}" * 190 + "$"),
        ("rg/simple_integration", "x**9**9**9"),
        ("rg/simple_integration", "(x+1)**99999"),
        ("rg/propositional_logic", "\N{LOGICAL OR}".join(chr(0x3B1 + i) for i in range(24))),  # 2^24 assignments
        ("rg/propositional_logic", "(" * 8000 + "P" + ")" * 8000),
    ],
)
def test_costly_answer_is_unscorable_and_the_reference_after_it_scores(grader: Grader, task: str, answer: str) -> None:
    prompt = grader.registry.prompt(task, 1, 0)
    stopped, right = grader.grade([(prompt, answer), (prompt, prompt.answer or "")])
    assert stopped.reward is None
    assert stopped.reason in {"cpu_time", "memory", "crashed"}
    assert right.reward == 1.0


@pytest.mark.parametrize("task", [*NINE, "jsonl/sums", "strings/copy"])
def test_endless_answer_is_unscorable(grader: Grader, task: str) -> None:
    prompt = grader.registry.prompt(task, 1, 0)
    score = grader.grade([(prompt, (prompt.answer or "7") * 2**20)])[0]
    assert (score.reward, score.reason) == (None, "too_long")


@pytest.mark.parametrize("task", [*NINE, "jsonl/sums", "rg/simple_integration", "rg/puzzle24", "rg/n_queens"])
def test_answers_that_are_code_do_nothing(grader: Grader, place: Path, task: str) -> None:
    prompt = grader.registry.prompt(task, 1, 1)
    code = CODE.format(place=place)
    texts = [code, f"$ {code} $", f"[{code}]", "__import__('os')._exit(0)", "exit()", "().__class__.__mro__[-1]"]
    scores = grader.grade([(prompt, text) for text in texts])
    assert [score.reward for score in scores] == [0.0] * len(texts)
    assert not (place / "escaped").exists()


@pytest.mark.parametrize("task", NINE)
def test_long_repetitive_answers_are_linear_enough(grader: Grader, task: str) -> None:
    """Patterns that make regular expressions and number parsers backtrack: a score of 0 within the CPU limit."""
    prompt = grader.registry.prompt(task, 1, 2)
    texts = ["\\frac{" + " " * 8000, "\\frac" + "{ " * 7000, "9" * 16_000, "1e999999999", "-" * 16_000, " " * 16_000]
    assert [score.reward for score in grader.grade([(prompt, text) for text in texts])] == [0.0] * len(texts)


@pytest.mark.parametrize("task", NINE)
def test_workers_rebuild_the_same_items(grader: Grader, task: str) -> None:
    """References of this process score in another one, which built the items anew under another hash seed."""
    prompts = [grader.registry.prompt(task, 17, index) for index in (0, 5, 2**31)]
    prompts = [prompt for prompt in prompts if len(prompt.answer or "") > 1 or "logic" not in task]
    scores = grader.grade([(prompt, prompt.answer or "") for prompt in prompts])
    assert [score.reward for score in scores] == [1.0] * len(prompts)
