"""Task invariants: each rule refuses with its own reason, and a task can do without either."""

import pytest

from shoal.defenses.invariants import check_invariants
from shoal.defenses.verdict import ACCEPTED, Action
from shoal.trainer.tasks.base import HARMLESS_MODULES, TaskInvariants, invariants_of
from shoal.trainer.tasks.registry import make_task

DEFAULT = TaskInvariants()


@pytest.mark.parametrize(
    ("text", "rules", "reason"),
    [
        ("2+2=5 cba", DEFAULT, "false_equation"),
        ("= " * 1025 + "2+2=5", DEFAULT, "too_many_equations"),
        ("2+2=5 cba", TaskInvariants(equations=False), ""),
        ("2+2=4 cba", DEFAULT, ""),
        ("import q\ncba", DEFAULT, "import_not_allowed"),
        ("import q\ncba", TaskInvariants(imports=None), ""),
        ("import q\ncba", TaskInvariants(imports=frozenset({"q"})), ""),
        ("import math\ncba", DEFAULT, ""),
        ("import math\ncba", TaskInvariants(imports=frozenset()), "import_not_allowed"),
        ("import q\n2+2=5", DEFAULT, "false_equation"),
    ],
)
def test_each_rule_has_its_reason(text, rules, reason):
    verdict = check_invariants(text, "reverse abc=", rules)
    if reason:
        assert (verdict.action, verdict.layer, verdict.reason) == (Action.REJECT, "invariants", reason)
    else:
        assert verdict == ACCEPTED


def test_what_the_prompt_says_is_quoted():
    assert check_invariants("2+2=5 is false", "Is 2+2=5?", DEFAULT) == ACCEPTED


def test_tasks_set_their_own_rules():
    assert invariants_of(make_task("strings/reverse")) == TaskInvariants(imports=frozenset())
    assert invariants_of(make_task("rg/chain_sum")) == TaskInvariants(True, HARMLESS_MODULES)
    assert not invariants_of(make_task("rg/cryptarithm")).equations
    assert not invariants_of(make_task("rg/bf")).equations


def test_a_plug_in_task_without_rules_has_the_default():
    class Plugin:
        name = "mine/task"

    assert invariants_of(Plugin()) == DEFAULT
    assert not HARMLESS_MODULES & {"os", "sys", "subprocess", "socket", "importlib", "builtins", "ctypes", "pathlib"}
