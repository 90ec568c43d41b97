"""Every attack has an expectation and a test that exists: the ones in the registry and those of the laboratory."""

import ast
from functools import cache
from pathlib import Path

import pytest

from shoal.defenses.attacks import ATTACKS
from shoal.defenses.attacks.laboratory import LABORATORY
from shoal.defenses.verdict import LAYERS

REPOSITORY = Path(__file__).parents[3]
# What attacks on bytes, keys, clocks and verifiers there are, and the names under which each is tried.
LIST = {
    "replay": ("replay",),
    "cross-swarm replay": ("cross-swarm",),
    "equivocation": ("equivocation",),
    "S+L malleability": ("malleable",),
    "small-order and non-canonical keys": ("weak-keys",),
    "non-canonical msgpack": ("non-canonical",),
    "length header lies": ("length-lies",),
    "depth, count and zstd bombs": ("bombs",),
    "pickle": ("pickle",),
    "NaN and infinity": ("not-finite",),
    "ids that do not decode to the text": ("ids-differ",),
    "special-token strings": ("injection",),
    "a hundred keys": ("hundred-keys", "hundred-fresh-keys"),
    "eclipse": ("eclipse",),
    "key and record squatting": ("key-squatting", "record-squatting"),
    "clock": ("clock-skew", "wrong-own-clock"),
    "false version": ("false-version",),
    "key theft race": ("key-theft",),
    "false accusation": ("false-accusation", "muted-neighbours"),
    "flood": ("flood", "useless", "malformed", "bad-signature"),
    "forged answer, tests and reward": ("forged-answer", "forged-tests", "forged-reward", "foreign-tests"),
    "prompt picking": ("prompt-picking",),
    "copies and free riders": ("copies", "free-rider"),
    "sympy tower": ("sympy-tower", "verifier-bombs"),
    "nested formulas": ("nested-formula",),
    "ReDoS": ("redos",),
    "partial answers": ("partial-answer", "partial-answers"),
    "answers that are code": ("answer-as-code", "code-answers", "exit", "false-equality"),
    "file and network access": ("file-access", "network-access"),
    "memory, fork, output, signals": ("memory-bomb", "fork-bomb", "output-flood", "signals", "poisoned-worker"),
}


@cache
def functions(module: str) -> frozenset[str]:
    """The names of the tests in a module."""
    tree = ast.parse((REPOSITORY / module).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("name", LABORATORY)
def test_what_is_tried_in_the_laboratory_has_tests_that_exist(name: str):
    trial = LABORATORY[name]
    assert trial.expected.layer in {*LAYERS, "partial", "none"}
    assert trial.expected.why
    assert trial.tests
    for test in trial.tests:
        module, function = test.split("::")
        assert function.startswith("test_")
        assert function in functions(module), test


def test_each_attack_of_the_list_is_tried_under_a_name():
    names = [name for names in LIST.values() for name in names]
    assert set(names) <= {*ATTACKS, *LABORATORY}
    assert set(LABORATORY) <= set(names), "and nothing is tried that is not listed"
    assert not {*ATTACKS} & {*LABORATORY}


@pytest.mark.parametrize("name", ATTACKS)
def test_each_attack_of_the_registry_is_named_by_a_test(name: str):
    modules = [*(REPOSITORY / "tests/unit/defenses").glob("*.py"), *(REPOSITORY / "tests/integration").glob("*.py")]
    cited = f'"{name}"'
    assert any(cited in module.read_text(encoding="utf-8") for module in modules if module != Path(__file__))
