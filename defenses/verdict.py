"""What a defence says: one action with the layer that decided, its reason, and a counter under both."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock

# Every layer that may ever decide, cheapest first. Only those of the first defences exist yet; the names of the
# others are fixed here so that counters, reports and ablations need no second list.
LAYERS = (
    "admission",
    "quota",
    "header",
    "schema",
    "provenance",
    "text",
    "duplicates",
    "verifier",
    "invariants",
    "likelihood",
    "phrases",
    "judge",
    "mixing",
    "reputation",
    "canary",
)


class Action(StrEnum):
    """What is done with the thing judged."""

    ACCEPT = "accept"
    WEIGH = "weigh"
    QUARANTINE = "quarantine"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One judgement: the action, the layer that decided, its reason (snake_case code), and a weight in [0, 1]."""

    action: Action
    layer: str
    reason: str
    weight: float = 1.0

    @property
    def usable(self) -> bool:
        """Whether what was judged may be trained on."""
        return self.action in (Action.ACCEPT, Action.WEIGH)


ACCEPTED = Verdict(Action.ACCEPT, "", "")


def reject(layer: str, reason: str) -> Verdict:
    """Return the verdict that `layer` refuses for `reason`."""
    return Verdict(Action.REJECT, layer, reason, 0.0)


def unscorable(reason: str) -> Verdict:
    """Return the verdict on a completion that the verifier could not score (`reason` is the grader's code).

    It is a reject of the row and never a reward of 0: a killed verifier says nothing about the answer.
    """
    return reject("verifier", f"unscorable_{reason}" if reason else "unscorable")


class Counters:
    """Counts by "layer/reason": nothing that is dropped, refused or evicted goes uncounted.

    Gate and screen may count from two threads: adding is not one step of the interpreter, hence the lock.
    """

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        self.counts: dict[str, int] = dict(counts or {})
        self._lock = Lock()

    def add(self, layer: str, reason: str, count: int = 1) -> None:
        """Count `count` events of one reason."""
        name = f"{layer}/{reason}"
        with self._lock:
            self.counts[name] = self.counts.get(name, 0) + count

    def get(self, name: str) -> int:
        """Return the count under "layer/reason", 0 when nothing was counted."""
        return self.counts.get(name, 0)

    def state(self) -> dict[str, int]:
        """Return the counts as a plain dict, sorted by name."""
        with self._lock:
            return dict(sorted(self.counts.items()))

    def restore(self, state: Mapping[str, int]) -> None:
        """Take over what `state` returned."""
        with self._lock:
            self.counts = dict(state)
