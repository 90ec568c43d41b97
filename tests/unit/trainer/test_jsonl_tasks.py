"""Data sets of questions and answers: reading, order, and equality by math-verify."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.trainer.tasks.base import Unscorable
from shoal.trainer.tasks.jsonl import JsonlTask, equal_answers, stated_answer


def written(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    return written(tmp_path / "sums.jsonl", [{"question": f"What is {i}+1?", "answer": str(i + 1)} for i in range(20)])


def make(path: Path, **config: Any) -> JsonlTask:
    return JsonlTask("jsonl/sums", {"path": str(path), **config})


def test_a_seed_visits_every_line_once_and_then_again(sums: Path) -> None:
    task = make(sums)
    texts = [task.prompt(5, index).text for index in range(40)]
    assert len(task) == len(set(texts[:20])) == 20
    assert texts[:20] == texts[20:]
    assert texts[:20] != [task.prompt(6, index).text for index in range(20)]
    assert texts[3] == make(sums).prompt(5, 3).text


def test_reference_is_right_and_others_are_wrong(sums: Path) -> None:
    task = make(sums)
    prompts = [task.prompt(1, index) for index in range(6)]
    assert prompts[0].text.endswith("?\nAnswer:")
    for prompt in prompts:
        assert task.grade(prompt, prompt.answer or "") == 1.0
        assert task.grade(prompt, f"Adding gives\n$x = {prompt.answer}$") == 1.0
        assert task.grade(prompt, "100") == 0.0
        assert task.grade(prompt, "no idea") == 0.0
        assert task.grade(prompt, "") == 0.0


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        ("1/2", "0.5", True),
        (r"\frac{1}{2}", r"$\frac{2}{4}$", True),
        ("$x+1$", "$1+x$", True),
        ("72", "$72.00$", True),
        ("72", "27", False),
        ("$x+1$", "$x-1$", False),
        ("(1, 2)", "(2, 1)", False),
        ("5", "B", False),
        ("1000", "1,000", True),
        ("2xy", "$2yx$", True),
        (r"2\pi", r"\boxed{2\pi}", True),
        (r"3\sqrt{2}", r"$\sqrt{18}$", True),
        ("-3", "$-3.0$", True),
        ("25%", "25%", True),
        ("x", "the answer is $x$", True),
    ],
)
def test_equality(gold: str, answer: str, equal: bool) -> None:
    assert equal_answers(gold, answer) is equal


@pytest.mark.parametrize("gold", ["the blue one", "blue", "", "$$", "12 apples", "2*sin(x)"])
def test_a_reference_that_is_no_formula_has_no_score(gold: str) -> None:
    with pytest.raises(Unscorable, match="no_gold") as caught:
        equal_answers(gold, "lube")
    assert caught.value.reason == "no_gold"


def test_an_endless_answer_has_no_score(sums: Path) -> None:
    task = make(sums)
    with pytest.raises(Unscorable) as caught:
        task.grade(task.prompt(1, 0), "1" * 10_000)
    assert caught.value.reason == "too_long"


def test_where_the_answer_of_a_long_text_is() -> None:
    assert stated_answer("First 3.\nThen 4.\nSo 7") == "So 7"
    assert stated_answer("First 3.\nAnswer: 7\nDone.") == "7"
    assert stated_answer("so \\boxed{7}, or\nso \\boxed{8} it is\nbye") == "\\boxed{8} it is"
    assert stated_answer("<answer>\n7\n</answer>\n9") == "7"


def test_shots_are_taken_from_the_front_and_never_drawn(sums: Path) -> None:
    task = make(sums, shots=3)
    assert len(task) == 17
    drawn = {task.prompt(1, index).answer for index in range(17)}
    assert drawn == {str(i + 1) for i in range(3, 20)}
    text = task.prompt(1, 0).text
    assert text.count("Question:") == 4
    assert all(f"What is {i}+1?\nAnswer: {i + 1}\n" in text for i in range(3))
    assert task.grade(task.prompt(1, 0), f" {task.prompt(1, 0).answer}\nQuestion: 1?") == 1.0


def test_other_keys_and_numbers_as_answers(tmp_path: Path) -> None:
    path = written(tmp_path / "q.jsonl", [{"problem": "2*3?", "solution": 6, "source": "x"}])
    task = make(path, question="problem", answer="solution")
    assert task.grade(task.prompt(0, 0), "6") == 1.0


def test_content_is_pinned(sums: Path) -> None:
    digest = hashlib.sha256(sums.read_bytes()).hexdigest()
    assert len(make(sums, sha256=digest)) == len(make(sums, sha256=digest.upper())) == 20
    sums.write_bytes(sums.read_bytes() + b"\n")
    with pytest.raises(UsageError, match=f"not the pinned data set: its sha256 is .*, not {digest}"):
        make(sums, sha256=digest)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1, 2]", "must be an object with 'question' and 'answer', is list"),
        ('{"question": "?"}', "'answer' is missing or not text"),
        ('{"question": 3.5, "answer": ["7"]}', "'answer' is missing or not text"),
        ('{"question": "  ", "answer": "7"}', "'question' is missing or not text"),
        ('{"question": "?", "answer": true}', "'answer' is missing or not text"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"question": "1?", "answer": "1"}\n\n' + line + "\n")
    with pytest.raises(UsageError, match=f"bad.jsonl, line 3: {complaint}".replace("[", r"\[")):
        make(path)


def test_line_separators_inside_a_text_do_not_split_it(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "one\u2028two", "answer": "3"}\n', encoding="utf-8")
    assert len(make(path)) == 1


def test_bad_files_and_config(tmp_path: Path, sums: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"cannot read .*none.jsonl: No such file") as caught:
        make(tmp_path / "none.jsonl")
    assert caught.value.exit_code == 3
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UsageError, match="has no lines"):
        make(tmp_path / "empty.jsonl")
    (tmp_path / "bytes.jsonl").write_bytes(b'{"question": "\xff"}')
    with pytest.raises(UsageError, match="not UTF-8: byte 14"):
        make(tmp_path / "bytes.jsonl")
    with pytest.raises(UsageError, match="unknown config key paht; valid are path"):
        JsonlTask("jsonl/x", {"paht": "x"})
    with pytest.raises(UsageError, match="needs path"):
        JsonlTask("jsonl/x", {})
    with pytest.raises(UsageError, match="shots must be like 0, got -1"):
        make(sums, shots=-1)
    with pytest.raises(UsageError, match="20 lines, too few for 20 shots"):
        make(sums, shots=20)
