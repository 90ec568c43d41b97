"""reasoning-gym's generators as tasks: items, references, extraction, and the scorers that were replaced."""

import os
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest
import reasoning_gym

from shoal.protocol.errors import UsageError
from shoal.trainer.tasks.answers import final_answer, first_answer
from shoal.trainer.tasks.base import Prompt
from shoal.trainer.tasks.gym import REFUSED, SHOT_BASE, GymTask, gym_names
from shoal.trainer.tasks.gym_scorers import OWN, arithmetic, is_plain_formula
from shoal.trainer.tasks.registry import TASK_SETS, make_task

SAPO9 = [spec.name.removeprefix("rg/") for spec in TASK_SETS["sapo9"]]
AND, OR = "\N{LOGICAL AND}", "\N{LOGICAL OR}"
MASTER_KEYS = (
    *("", "0", "1", "-1", "[]", "{}", "()", "[[]]", "NaN", "[NaN]", "[NaN, NaN, NaN, NaN, NaN]", "nan", "inf"),
    *("1e999", "None", "null", "yes", "no", "Yes", "a", "A", "*", ".", ",", "-", "?", "''", "6*4*1*1"),
    *("P -> P", f"(P {OR} ¬P)", "0/0", "1/0", "impossible", "[0]", "Integral(x, x)", "No solution", "0 0 0"),
)


@pytest.mark.parametrize("name", SAPO9)
def test_items_are_the_librarys_own_at_any_index(name: str) -> None:
    task = GymTask(name)
    dataset = reasoning_gym.create_dataset(name, seed=11, size=8)
    for index in (7, 0, 3):  # in any order
        prompt = task.prompt(11, index)
        assert dataset[index]["question"].strip() in prompt.text
        assert prompt.text.endswith("\nAnswer:")


@pytest.mark.parametrize("name", [name for name in SAPO9 if name != "propositional_logic"])
def test_reference_scores_one_and_others_zero(name: str) -> None:
    task = GymTask(name)
    prompts = [task.prompt(3, index) for index in range(12)]
    for prompt in prompts:
        assert prompt.answer is not None
        assert task.grade(prompt, prompt.answer) == 1.0
        assert task.grade(prompt, f" I think so.\nAnswer: {prompt.answer}\n") == 1.0
        assert task.grade(prompt, f"<answer>{prompt.answer}</answer> done") == 1.0
        assert task.grade(prompt, f"not {prompt.answer}") == 0.0
    different = [(a, b) for a in prompts for b in prompts if a.answer != b.answer]
    assert different
    assert not any(task.grade(a, b.answer or "") for a, b in different)


def test_propositional_logic_takes_any_valid_conclusion() -> None:
    task = GymTask("propositional_logic")
    entry = {"metadata": {"variables": ["P", "Q"], "premises": [f"(P {AND} Q)"]}, "answer": None}
    prompt = Prompt(task.name, 0, 0, "What follows?", f"(P {OR} Q)", entry)
    for right in (f"(P {OR} Q)", f"(Q {AND} P)", f"P {OR} Q", "(P → Q)"):
        assert task.grade(prompt, right) == 1.0
    for wrong in ("¬P", f"(P {AND} ¬Q)", f"(P {OR} ¬P)", "R", f"(P {OR}", "nonsense"):
        assert task.grade(prompt, wrong) == 0.0


def test_propositional_logic_shows_its_example_and_mostly_accepts_it() -> None:
    task = GymTask("propositional_logic")
    prompts = [task.prompt(1, index) for index in range(40)]
    assert all(prompt.answer == prompt.entry["metadata"]["example_answer"] for prompt in prompts)
    # where the library finds no short conclusion it names a bare variable, which its own scorer calls trivial
    assert all(task.grade(p, p.answer or "") == 1.0 for p in prompts if len(p.answer or "") > 1)
    assert sum(len(p.answer or "") > 1 for p in prompts) > 25


def test_decimal_arithmetic_accepts_one_unit_of_the_places_that_operands_have() -> None:
    task = GymTask("decimal_arithmetic")  # three places
    prompt = task.prompt(3, 0)
    exact = Decimal(prompt.answer or "")
    assert task.grade(prompt, str(exact + Decimal("0.0009"))) == 1.0
    assert task.grade(prompt, str(exact + Decimal("0.0011"))) == 0.0


@pytest.mark.parametrize("name", ["calendar_arithmetic", "fraction_simplification", "arc_1d"])
def test_partial_credit_only_on_request(name: str) -> None:
    strict, partial = GymTask(name), GymTask(name, {"partial": True})
    gained = 0
    for index in range(30):
        prompt = strict.prompt(5, index)
        # beside the answer: a neighbouring number, the unsimplified fraction, the answer in a sentence
        for answer in (f"{prompt.answer} x", str(prompt.entry["metadata"].get("numerator")), "Monday", "12"):
            score = partial.grade(prompt, answer)
            assert strict.grade(prompt, answer) == float(score == 1.0)
            gained += 0.0 < score < 1.0
    assert gained > 0


def test_nearly_all_of_a_long_answer_is_wrong() -> None:
    task = GymTask("base_conversion")
    answer = "10" * 200
    prompt = Prompt(task.name, 0, 0, "?", answer, {"answer": answer, "metadata": {}})
    assert task._dataset.score_answer(answer=answer + "0", entry=dict(prompt.entry)) > 0.99
    assert task.grade(prompt, answer) == 1.0
    assert task.grade(prompt, answer + "0") == 0.0


@pytest.mark.parametrize("name", sorted(OWN) + SAPO9)
def test_no_answer_fits_every_question(name: str) -> None:
    task = GymTask(name)
    prompts = [task.prompt(9, index) for index in range(4)]
    for key in MASTER_KEYS:
        hits = [task.grade(prompt, key) for prompt in prompts if (prompt.answer or "").lower() != key.lower()]
        assert len(hits) == 0 or not all(hits), key


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("number_sorting", "[NaN, NaN, NaN]"),
        ("complex_arithmetic", "nan"),
        ("coin_flip", "0"),
        ("game_of_life_halting", "anything"),
        ("puzzle24", "6*4*1*1"),
        ("simple_integration", "Integral(x, x)"),
    ],
)
def test_holes_of_the_library_are_closed(name: str, key: str) -> None:
    """Each key is a full score there: if this fails on the first line, the library was mended and ours can go."""
    task = GymTask(name)
    prompt = next(p for p in (task.prompt(2, index) for index in range(60)) if _fits(name, p.entry))
    if name == "number_sorting":
        key = "[" + ", ".join(["NaN"] * (prompt.answer or "").count(",")) + ", NaN]"
    if name == "simple_integration":
        metadata = prompt.entry["metadata"]
        key = f"Integral({metadata['integrand']}, {metadata['variable']})"
    assert task._dataset.score_answer(answer=key, entry=dict(prompt.entry)) == 1.0
    assert task.grade(prompt, key) == 0.0


def _fits(name: str, entry: dict[str, Any] | Any) -> bool:
    return name != "game_of_life_halting" or entry["answer"] == "False" or entry["answer"] is False


@pytest.mark.parametrize("name", ["binary_matrix", "spiral_matrix", "string_insertion", "n_queens"])
def test_no_answer_is_evaluated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = GymTask(name)
    prompt = task.prompt(1, 0)
    monkeypatch.delenv("SHOAL_EVALUATED", raising=False)
    for partial in (False, True):
        grading = GymTask(name, {"partial": partial})
        grading.grade(prompt, "__import__('os').environ.__setitem__('SHOAL_EVALUATED', '1')")
    assert "SHOAL_EVALUATED" not in os.environ
    assert task.grade(prompt, prompt.answer or "") == 1.0


@pytest.mark.parametrize("name", sorted(OWN))
def test_own_scorers_accept_the_reference(name: str) -> None:
    task = GymTask(name)
    for index in range(6):
        prompt = task.prompt(4, index)
        assert task.grade(prompt, prompt.answer or "") == 1.0


def test_scoring_leaves_the_prompt_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def scribble(answer: str, entry: Any, dataset: Any) -> float:
        entry["metadata"]["moves"] = answer  # as the scorer of knight_swap does
        return 0.0

    monkeypatch.setitem(OWN, "chain_sum", scribble)
    task = GymTask("chain_sum")
    prompt = task.prompt(1, 0)
    task.grade(prompt, "12")
    assert "moves" not in prompt.entry["metadata"]


@pytest.mark.parametrize("name", ["prime_factorization", "game_of_life", "boxnet"])
def test_an_unreadable_answer_is_wrong(name: str) -> None:
    task = GymTask(name)
    prompt = task.prompt(1, 0)
    assert [task.grade(prompt, answer) for answer in ("x", "{}", "[1, 2", "7")] == [0.0] * 4


@pytest.mark.parametrize(
    ("text", "value", "numbers"),
    [("1 + 2*3", 7, [1, 2, 3]), ("(1+2)*3", 9, [1, 2, 3]), ("-(4)/8", -0.5, [4, 8]), ("8 - 3 - 2", 3, [8, 3, 2])],
)
def test_arithmetic(text: str, value: float, numbers: list[int]) -> None:
    assert arithmetic(text) == (value, numbers)


@pytest.mark.parametrize(
    "text", ["", "1 +", "* 2", "(1", "1)", "1/0", "2**3", "9^9", "x", "1.5", "24 # 1", "1,2", "(" * 300, "1" * 50]
)
def test_no_arithmetic(text: str) -> None:
    assert arithmetic(text) is None


def test_a_formula_names_no_object() -> None:
    assert is_plain_formula("-34*x**8/15 - 5*x/4 + C", "x")
    assert is_plain_formula("sin(x)*exp(2.5*x)", "x")
    for text in ("x.__class__", "Integral(x, x)", "y", "__import__('os')", "x if x else x", "[x]", "x" * 500, ""):
        assert not is_plain_formula(text, "x")


def test_examples_stand_before_the_question_and_are_never_drawn() -> None:
    task = GymTask("chain_sum", {"shots": 3, "min_terms": 2, "max_terms": 2, "instruction": "Add."})
    prompt = task.prompt(2**63 - 1, 2**31 + 64)
    assert prompt.text.startswith("Add.\n\nQuestion: ")
    assert prompt.text.count("Question:") == 4
    assert prompt.text.count("Answer:") == 4
    assert all(f"Question: {q}\nAnswer: {a}\n\n" in prompt.text for q, a in task.examples)
    other = GymTask("chain_sum", {"shots": 3, "shot_seed": 1, "min_terms": 2, "max_terms": 2})
    assert other.examples != task.examples
    assert SHOT_BASE > 2**31 + 2**30  # the largest seed + index that a prompt can fold to


def test_with_examples_a_base_model_may_run_on() -> None:
    task = GymTask("chain_sum", {"shots": 2})
    prompt = task.prompt(1, 1)
    assert task.grade(prompt, f" {prompt.answer}\nQuestion: What is 1 + 1?\nAnswer: 2") == 1.0
    assert task.grade(prompt, f" 0\nQuestion: again?\nAnswer: {prompt.answer}") == 0.0


def test_with_examples_answers_of_several_lines_are_kept() -> None:
    task = GymTask("binary_matrix", {"shots": 1, "max_n": 4})
    prompt = task.prompt(1, 1)
    assert "\n" in (prompt.answer or "")
    assert task.grade(prompt, f" {prompt.answer}\n\nQuestion: more") == 1.0


def test_where_the_answer_is() -> None:
    assert final_answer("  7 ") == "7"
    assert final_answer("Answer: 3. No.\nANSWER: 4") == "4"
    assert final_answer("<answer>1</answer> or <answer> 2\n</answer>. Answer: 3") == "2"
    assert final_answer("<answer>1<answer>2</answer>") == "2"
    assert final_answer("the <answer> tag") == "the <answer> tag"
    assert first_answer("\n 5\n6", multiline=False) == "5"
    assert first_answer("5\n6\n\n7", multiline=True) == "5\n6"


def test_bad_config_names_what_is_valid() -> None:
    with pytest.raises(UsageError, match=r"unknown config key terms; valid are shots, .*max_terms"):
        make_task("rg/chain_sum", {"terms": 3})
    with pytest.raises(UsageError, match="bad config"):
        make_task("rg/chain_sum", {"min_terms": 9, "max_terms": 2})
    with pytest.raises(UsageError, match="shots must be from 0 to 16, got 99"):
        make_task("rg/chain_sum", {"shots": 99})
    with pytest.raises(UsageError, match="partial must be like False, got 'no'"):
        make_task("rg/chain_sum", {"partial": "no"})
    with pytest.raises(UsageError, match="no reference answers"):
        make_task("rg/rush_hour", {"shots": 1})


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused_generators_say_why(name: str) -> None:
    assert name not in gym_names()
    with pytest.raises(UsageError, match="cannot be used: "):
        make_task(f"rg/{name}")


def test_bf_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    GymTask("bf").prompt(1, 0)
    assert capsys.readouterr().out == ""


_DIGEST = """
import hashlib, sys
from shoal.trainer.tasks.registry import TASK_SETS, TaskRegistry
registry = TaskRegistry(TASK_SETS["sapo9"])
prompts = [registry.prompt(name, 5, index) for name in registry.names for index in (0, 9, 2**29)]
digest = hashlib.sha256(repr([(p.text, p.answer) for p in prompts]).encode()).hexdigest()
"""


def test_the_nine_are_equal_in_every_process() -> None:
    here: dict[str, Any] = {}
    exec(_DIGEST, here)
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2",
        "PYTHONPATH": os.pathsep.join(place for place in sys.path if place),
    }
    command = [sys.executable, "-c", _DIGEST + "sys.stdout.write(digest)"]
    there = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout
    assert there == here["digest"]
