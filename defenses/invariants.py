"""Layer 8: what must hold of a completion whatever earned its reward, as a property of the task.

A verifier looks at the final answer and lifts every token before it. So the statements on the way are checked where
that can be done exactly: literal equations are recomputed, and code imports only what the task allows.
"""

from typing import Protocol

from shoal.defenses.equations import UNCHECKED, first_false
from shoal.defenses.imports import forbidden_import
from shoal.defenses.verdict import ACCEPTED, Verdict, reject


class Invariants(Protocol):
    """What the completions of a task must obey; the task's own `TaskInvariants` has these fields."""

    @property
    def equations(self) -> bool:
        """Whether every literal equation is recomputed."""
        ...

    @property
    def imports(self) -> frozenset[str] | None:
        """The modules that code may import; None: code is not looked at."""
        ...


def check_invariants(text: str, prompt: str, rules: Invariants) -> Verdict:
    """Judge one completion: "false_equation", "too_many_equations", "import_not_allowed", or accepted."""
    false = first_false(text, prompt) if rules.equations else None
    if false is not None:
        return reject("invariants", "too_many_equations" if false == UNCHECKED else "false_equation")
    if rules.imports is not None and forbidden_import(text, rules.imports) is not None:
        return reject("invariants", "import_not_allowed")
    return ACCEPTED
