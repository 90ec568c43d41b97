"""Break messages by the million: `make fuzz CASES=1000000`, or this file with --cases, --seed and --target.

Case n of a seed is the same on every machine. A case that breaks something is kept under runs/fuzz and named, and
`--replay FILE --target NAME` runs it again. Figures at the end: cases, seconds, the slowest, memory before and after.
"""

import argparse
import faulthandler
import hashlib
import json
import resource
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from fuzz_all import ALL, SCRIPTED
from fuzz_mutations import mutate
from fuzz_targets import Target

WARM_UP = 2000  # cases after which memory is looked at first: by then everything is imported and cached
CASE_SECONDS = 5.0  # of CPU time for one case; the slowest honest one takes a few hundredths
STUCK_SECONDS = 300.0  # for a call into C that no Python signal can interrupt
MEMORY_BYTES = 64 << 20  # the most that the process may grow
KEPT = Path(__file__).parents[2] / "runs" / "fuzz"


@dataclass
class Report:
    """What a run has seen."""

    cases: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)
    before: int = 0
    peak: int = 0
    broken: list[str] = field(default_factory=list)


def say(line: str) -> None:
    """Write one line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def resident() -> int:
    """Bytes that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def case(seed: int, number: int, names: list[str]) -> tuple[Target, bytes]:
    """Return the target and the bytes of one case."""
    rng = Random(f"{seed}/{number}")
    decoders = [name for name in names if name not in SCRIPTED]
    scripted = [name for name in SCRIPTED if name in names]
    for name in scripted:
        every, write = SCRIPTED[name]
        if number % every == 0 or (not decoders and name == scripted[-1]):
            return ALL[name], write(rng)
    target = ALL[rng.choice(decoders)]  # a count would leave out each eighth where their number is one of eights
    others = [seed for name in decoders for seed in ALL[name].seeds]
    return target, mutate(rng.choice(target.seeds), rng, others)


def run_case(target: Target, data: bytes, report: Report) -> None:
    """Run one case under its limit on CPU time, and note what came of it."""
    began = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, CASE_SECONDS)
    try:
        accepted = target(data)
    except Exception as error:  # noqa: BLE001 - whatever it is: this is what fuzzing looks for
        accepted = False
        report.broken.append(f"{target.name}: {error!r}, kept in {_keep(target, data)}")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    report.cases[target.name] += 1
    report.accepted[target.name] += accepted
    report.slowest[target.name] = max(report.slowest.get(target.name, 0.0), time.process_time() - began)


def run(cases: int, seed: int, names: list[str], progress: bool = True) -> Report:
    """Run `cases` cases, one after another."""
    report = Report()
    for number in range(cases):
        if number % 1000 == 0:
            faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)
            report.peak = max(report.peak, resident())
        if number == min(WARM_UP, cases // 2):
            report.before = report.peak = resident()
        if progress and number and number % 50_000 == 0:
            say(f"{number} cases, {resident() >> 20} MiB, {len(report.broken)} broken")
        run_case(*case(seed, number, names), report)
    faulthandler.cancel_dump_traceback_later()
    report.peak = max(report.peak, resident())
    if report.peak - report.before > MEMORY_BYTES:
        report.broken.append(f"memory grew by {report.peak - report.before >> 20} MiB")
    return report


def _keep(target: Target, data: bytes) -> Path:
    KEPT.mkdir(parents=True, exist_ok=True)
    place = KEPT / f"{target.name}-{hashlib.sha256(data).hexdigest()[:12]}"
    place.write_bytes(data)
    return place


def _hung(_signal: int, _frame: object) -> None:
    raise TimeoutError(f"one case takes more than {CASE_SECONDS} s of CPU time")


def main() -> int:
    """Read the options, run, and print what was seen; 1 when something broke."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", action="append", choices=sorted(ALL), help="may be repeated; default: all")
    parser.add_argument("--replay", type=Path, help="run one kept case")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    parser.add_argument("--targets", action="store_true", help="print the names of all targets")
    options = parser.parse_args()
    if options.targets:
        say(" ".join(ALL))
        return 0
    signal.signal(signal.SIGPROF, _hung)
    if options.replay:
        say("accepted" if ALL[options.target[0]](options.replay.read_bytes()) else "refused")
        return 0
    began = time.monotonic()
    report = run(options.cases, options.seed, options.target or list(ALL))
    seconds = time.monotonic() - began
    for name in sorted(report.cases):
        slowest = f"slowest {report.slowest[name] * 1000:7.1f} ms"
        say(f"{name:16} {report.cases[name]:8} cases  {report.accepted[name]:7} accepted  {slowest}")
    grown = f"{report.before >> 20} MiB resident after {WARM_UP} cases, {report.peak >> 20} MiB at most later"
    say(f"{options.cases} cases in {seconds:.0f} s; {grown}; {len(report.broken)} broken")
    for line in report.broken[:20]:
        say(line)
    if options.json:
        options.json.write_text(json.dumps({"seconds": seconds, **vars(report)}, indent=1), encoding="utf-8")
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
