"""A check, what it finds, and how checks are run so that none can hang the doctor."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

from shoal.defenses.text import safe
from shoal.protocol.errors import ShoalError

T = TypeVar("T")
Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One verdict: what is the case, and what to do when it is not well. `fail` means: a node cannot run so."""

    verdict: Verdict
    detail: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A named look at something; `late` is the verdict when it is not done within `seconds`."""

    name: str
    look: Callable[[], Finding]
    seconds: float = 10.0
    late: Verdict = "warn"


@dataclass(frozen=True, slots=True)
class Result:
    """A check and its finding."""

    name: str
    finding: Finding


def run(checks: Iterable[Check]) -> Iterator[Result]:
    """Run checks one after the other, each for no longer than its deadline."""
    for check in checks:
        yield Result(check.name, run_one(check))


def run_one(check: Check) -> Finding:
    """Return what a check finds; what it raises, and its being late, are findings as well."""

    def look() -> Finding:
        try:
            return check.look()
        except (ShoalError, OSError, ValueError) as error:
            return Finding("fail", safe(str(error) or type(error).__name__, 400))

    late = Finding(check.late, f"not done within {check.seconds:.0f} s", "try again when the machine is less busy")
    broken = Finding("fail", "the check itself failed: its error stands above", "report it as a bug")
    return together([look], check.seconds, late, broken)[0]


def together(looks: Sequence[Callable[[], T]], seconds: float, late: T, broken: T) -> list[T]:
    """Return what each call gives, all at once in threads of their own; `late` for those not done in time.

    They are daemon threads: a call that never returns (a dead network drive, a resolver) is left behind. One that
    raises leaves its error on standard error, and gives `broken`.
    """
    results: dict[int, T] = {}

    def work(place: int) -> None:
        results[place] = looks[place]()

    threads = [threading.Thread(target=partial(work, place), daemon=True) for place in range(len(looks))]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    late_or_broken = [late if thread.is_alive() else broken for thread in threads]
    return [results.get(place, other) for place, other in enumerate(late_or_broken)]
