"""The eight built-in tasks: answers worked out by hand, and what counts as the answer of a completion."""

import pytest

from shoal.trainer.tasks.strings import DISTRACTORS, KINDS, StringTask, distractor


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("reverse", "abc", "cba"),
        ("duplicate", "ab", "abab"),
        ("next", "azm", "ban"),
        ("sort", "3121", "1123"),
        ("rotate", "abcd", "bcda"),
        ("swap", "abcd", "dbca"),
        ("copy", "abc", "abc"),
        ("last", "abc", "c"),
    ],
)
def test_answers(kind: str, given: str, expected: str) -> None:
    assert KINDS[kind].solve(given) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_prompt_holds_its_own_input(kind: str) -> None:
    task = StringTask(kind)
    for index in range(50):
        prompt = task.prompt(7, index)
        given = prompt.entry["given"]
        assert prompt.text == f"{kind} {given}="
        assert prompt.answer == KINDS[kind].solve(given)
        assert KINDS[kind].shortest <= len(given) <= KINDS[kind].longest


def test_prompts_differ_by_seed_and_index() -> None:
    task = StringTask("copy")
    texts = {task.prompt(seed, index).text for seed in range(20) for index in range(20)}
    assert len(texts) > 300  # short inputs repeat now and then


def test_last_word_is_the_answer() -> None:
    task = StringTask("reverse")
    prompt = task.prompt(1, 1)
    assert prompt.answer is not None
    assert task.grade(prompt, prompt.answer) == 1.0
    assert task.grade(prompt, f"so it is {prompt.answer} ") == 1.0
    assert task.grade(prompt, f"{prompt.answer} or not") == 0.0
    assert task.grade(prompt, prompt.answer + prompt.answer) == 0.0
    assert task.grade(prompt, "") == 0.0
    assert task.grade(prompt, "  ") == 0.0


@pytest.mark.parametrize("habit", DISTRACTORS)
@pytest.mark.parametrize("kind", KINDS)
def test_habits_are_wrong(kind: str, habit: str) -> None:
    task = StringTask(kind)
    prompt = task.prompt(3, 5)
    assert task.grade(prompt, distractor(habit, prompt.entry["given"])) == 0.0
