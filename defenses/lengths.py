"""Layer 8, LENGTH: how long a rewarded completion may honestly be, and how many long ones one operator may lift.

The measure is a task's usual upper length: of each operator, the node itself being one, the length that nine in ten of
its rewarded completions stay below; of these the median, and of two middle ones the nearer to the own length, or the
lower one. Fewer than half of the operators cannot raise it, and one other alone cannot lower it.
Longer rows pass as long as they are few. Above the quota they weigh less, so that all long rows of an operator or a
prompt count as much as the quota allows; far above the usual length they are refused.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from shoal.defenses.bounded import BoundedMap
from shoal.defenses.config import DefenseConfig
from shoal.defenses.verdict import ACCEPTED, Action, Counters, Verdict, reject

OWN = ""  # the operator that is this node
UPPER = 0.9
ENOUGH = 3  # operators that may set a cap without this node's own lengths


class LengthMemory:
    """The last rewarded lengths of each operator in each task, and the long rows of recent prompts; bounded."""

    def __init__(self, config: DefenseConfig, counters: Counters) -> None:
        self._config = config
        self._counters = counters
        self._tasks: BoundedMap[str, BoundedMap[str, list[int]]] = BoundedMap(
            config.length_tasks, partial(counters.add, "invariants", "evicted_length_task")
        )
        self._prompts: BoundedMap[bytes, tuple[int, int]] = BoundedMap(
            config.prompts, partial(counters.add, "invariants", "evicted_length_prompt")
        )

    def own(self, task: str, tokens: int, rewarded: bool) -> None:
        """Note the length of one own completion; only rewarded ones say how long an answer is."""
        if rewarded:
            self._note(task, OWN, tokens)

    def judge(self, task: str, operator: str, tokens: int, prompt: bytes = b"") -> Verdict:
        """Judge the length of a peer's rewarded completion, and remember it.

        `operator` is not empty. With `prompt`, the quota also holds for all operators' rows of that prompt together.
        """
        usual = self.usual(task)
        lengths = self._note(task, operator, tokens)
        if usual is None or tokens <= usual:
            self._quota(prompt, above=False)
            return ACCEPTED
        share = max(_share(sum(length > usual for length in lengths), len(lengths)), self._quota(prompt, above=True))
        grounded = self._is_grounded(task, operator)
        if grounded and tokens > self._config.length_cap * usual + self._config.length_slack:
            return reject("invariants", "too_long")
        if share <= self._config.length_quota:
            return ACCEPTED
        weight = self._config.length_quota / share * ((usual / tokens) ** 2 if grounded else 1.0)
        return Verdict(Action.WEIGH, "invariants", "long", weight)

    def usual(self, task: str) -> int | None:
        """Return the task's usual upper length; None while nobody has had enough rewarded completions."""
        known = {name: _upper(lengths) for name, lengths in self._known(task)}
        if not known:
            return None
        uppers = sorted(known.values())
        low, high = uppers[(len(uppers) - 1) // 2], uppers[len(uppers) // 2]
        return min(max(low, known.get(OWN, low)), high)

    def _known(self, task: str) -> list[tuple[str, list[int]]]:
        operators = self._tasks.get(task)
        if operators is None:
            return []
        return [(name, lengths) for name, lengths in operators.items() if len(lengths) >= self._config.length_least]

    def _is_grounded(self, task: str, judged: str) -> bool:
        """Whether the usual length rests on own completions or on several other operators, not on one or two."""
        names = {name for name, _ in self._known(task)} - {judged}
        return OWN in names or len(names) >= ENOUGH

    def _note(self, task: str, operator: str, tokens: int) -> list[int]:
        operators = self._tasks.get(task)
        if operators is None:
            operators = self._operators()
        self._tasks.put(task, operators)
        lengths = operators.get(operator) or []
        lengths.append(tokens)
        del lengths[: -self._config.length_window]
        operators.put(operator, lengths)
        mine = operators.get(OWN)
        if mine is not None:
            operators.put(OWN, mine)  # strangers, however many, do not displace what this node knows of itself
        return lengths

    def _operators(self) -> BoundedMap[str, list[int]]:
        return BoundedMap(
            self._config.length_operators, partial(self._counters.add, "invariants", "evicted_length_operator")
        )

    def _quota(self, prompt: bytes, above: bool) -> float:
        """Note a row of a prompt and return the share of its rows that are long; 0 where no prompt is named."""
        if not prompt:
            return 0.0
        rows, long = self._prompts.get(prompt) or (0, 0)
        rows, long = rows + 1, long + above
        self._prompts.put(prompt, (rows, long))
        return _share(long, rows)

    def state(self) -> dict[str, Any]:
        """Return everything remembered as plain lists."""
        return {
            "tasks": [
                [task, [[name, list(lengths)] for name, lengths in operators.items()]]
                for task, operators in self._tasks.items()
            ],
            "prompts": [[prompt, *counts] for prompt, counts in self._prompts.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        held: list[tuple[str, BoundedMap[str, list[int]]]] = []
        for task, operators in state["tasks"]:
            known = self._operators()
            known.replace((str(name), [int(length) for length in lengths]) for name, lengths in operators)
            held.append((str(task), known))
        self._tasks.replace(iter(held))
        self._prompts.replace((bytes(prompt), (int(rows), int(long))) for prompt, rows, long in state["prompts"])


def _upper(lengths: list[int]) -> int:
    """Return the length that nine in ten stay at or below."""
    ranked = sorted(lengths)
    return ranked[min(int(UPPER * len(ranked)), len(ranked) - 1)]


def _share(long: int, rows: int) -> float:
    """Return the share of long rows as if five short ones had come before: one long row alone is no habit."""
    return long / (rows + 5)
