"""When to try again what did not work: later and later, never all at the same time, and not for ever."""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import NamedTuple

MAX_REMEMBERED = 4096


class _State(NamedTuple):
    failures: int
    due: float


class Backoff:
    """Remembers failures by name, in a clock's seconds that the caller passes in.

    The wait doubles from `first` to `last`, plus up to a quarter by chance. After `patience` failures in a row a name
    is given up until `relent` grants one more try; 0 never gives up.
    """

    def __init__(self, first: float, last: float, patience: int = 0) -> None:
        self._first, self._last, self._patience = first, last, patience
        self._states: OrderedDict[str, _State] = OrderedDict()

    def due(self, name: str, now: float) -> bool:
        """Whether a try is due: at once for what has not failed."""
        state = self._states.get(name)
        return state is None or (now >= state.due and not self._given_up(state))

    def failed(self, name: str, now: float) -> None:
        """Note a failure."""
        failures = self.failures(name) + 1
        wait = min(self._last, self._first * 2.0 ** min(failures - 1, 30)) * random.uniform(1.0, 1.25)
        self._note(name, _State(failures, now + wait))

    def succeeded(self, name: str, now: float, again: float = 0.0) -> None:
        """Forget the failures; the next try is due `again` seconds from now."""
        self._states.pop(name, None)
        if again:
            self._note(name, _State(0, now + again))

    def relent(self, name: str) -> None:
        """Grant one more try to what was given up, once its wait is over."""
        state = self._states.get(name)
        if state is not None and self._given_up(state):
            self._note(name, _State(self._patience - 1, state.due))

    def hurry(self, due: float) -> None:
        """Let nothing wait longer than until `due`: the world has changed."""
        for name, state in self._states.items():
            self._states[name] = _State(state.failures, min(state.due, due))

    def failures(self, name: str) -> int:
        """Failures in a row."""
        state = self._states.get(name)
        return state.failures if state else 0

    def _given_up(self, state: _State) -> bool:
        return 0 < self._patience <= state.failures

    def _note(self, name: str, state: _State) -> None:
        self._states[name] = state
        self._states.move_to_end(name)
        while len(self._states) > MAX_REMEMBERED:
            self._states.popitem(last=False)
