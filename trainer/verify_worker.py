"""One verifier worker: a warm process that grades each answer in a fenced child.

Libraries are imported once, here; a child is a fork of this process (milliseconds, and it never holds tensors), so a
child that is killed costs no new start. Tasks whose scorer parses text with a large library get a child for each
answer, so that no answer can change how the next one is graded. Standard input and output carry frames; the end of the
input ends the worker.
"""

import gc
import logging
import math
import os
import select
import signal
import struct
import sys
import time
from dataclasses import dataclass
from typing import Any, NoReturn

from shoal.trainer import verify_fence as fence
from shoal.trainer.tasks.base import Unscorable
from shoal.trainer.tasks.registry import TaskRegistry, TaskSpec
from shoal.trainer.verify_frames import read_frame, write_frame

REASONS = (
    "",
    "cpu_time",
    "wall_time",
    "memory",
    "crashed",
    "refused",
    "no_gold",
    "too_long",
    "bad_score",
    "ungradable",
)
LINGER_SECONDS = 2.0  # for a child to end once its pipe is closed, which the kernel does in a few milliseconds
LOOK_SECONDS = 0.002
ITEMS_PER_CHILD = 2000  # a shared child is replaced now and then, so that its memory stays flat
_RESULT = struct.Struct("<Bdd")  # index in REASONS, reward, CPU seconds: nothing a child sends can be large


@dataclass(frozen=True, slots=True)
class Limits:
    """What one answer may cost."""

    cpu_seconds: float
    memory_bytes: int
    wall_seconds: float


class Child:
    """A fenced fork of this worker that grades answers until it is ended or killed."""

    def __init__(self, registry: TaskRegistry, limits: Limits, single_use: bool) -> None:
        self._limits = limits
        self._single_use = single_use
        self.graded = 0
        questions, self._questions = os.pipe()
        self._results, results = os.pipe()
        worker = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            fence.die_with_parent(worker)
            os.close(self._questions)
            os.close(self._results)
            _live(registry, limits, single_use, (questions, results))
        os.close(questions)
        os.close(results)

    def grade(self, item: Any) -> tuple[int, float, float]:
        """Return (index in REASONS, reward, CPU seconds) of one answer; a child that fails is gone afterwards."""
        self.graded += 1
        try:
            write_frame(self._questions, item)
        except BrokenPipeError:
            return self._lost()
        waiting = select.poll()
        waiting.register(self._results, select.POLLIN)
        waiting.register(0, 0)  # only its hang-up: the trainer is gone
        ready = dict(waiting.poll(self._limits.wall_seconds * 1000))
        if 0 in ready:
            self.end()
            sys.exit(0)
        if not ready:
            self.end()
            return REASONS.index("wall_time"), 0.0, 0.0
        answer = os.read(self._results, _RESULT.size)
        if not answer:
            return self._lost()
        found = _said(answer)
        if found is None:
            self.end()
        return found or (REASONS.index("crashed"), 0.0, 0.0)

    @property
    def alive(self) -> bool:
        """Return whether it can grade another answer."""
        return self._pid > 0

    def end(self) -> None:
        """End the process; harmless when it is gone."""
        if self.alive:
            os.kill(self._pid, signal.SIGKILL)
            self._reap()

    def _ends(self) -> bool:
        """Wait for a child whose pipe is closed; one that has closed it and lives on is killed, and False."""
        for _ in range(int(LINGER_SECONDS / LOOK_SECONDS)):
            if os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return True
            time.sleep(LOOK_SECONDS)
        os.kill(self._pid, signal.SIGKILL)
        return False

    def _reap(self) -> tuple[int, float]:
        _, status, used = os.wait4(self._pid, 0)
        self._pid = 0
        os.close(self._questions)
        os.close(self._results)
        return status, used.ru_utime + used.ru_stime

    def _lost(self) -> tuple[int, float, float]:
        ended = self._ends()
        status, cpu_seconds = self._reap()
        reason = "crashed"
        if ended and os.WIFSIGNALED(status):
            by_signal = {signal.SIGPROF: "cpu_time", signal.SIGXCPU: "cpu_time", signal.SIGSYS: "refused"}
            reason = by_signal.get(signal.Signals(os.WTERMSIG(status)), "crashed")
            if os.WTERMSIG(status) == signal.SIGKILL:  # the kernel's: out of memory, or CPU time beyond the hard limit
                reason = "cpu_time" if self._single_use and cpu_seconds > self._limits.cpu_seconds else "memory"
        elif os.WEXITSTATUS(status) == fence.REFUSED_EXIT:
            reason = "refused"
        return REASONS.index(reason), 0.0, self._limits.cpu_seconds if reason == "cpu_time" else 0.0


def _said(answer: bytes) -> tuple[int, float, float] | None:
    """Return what a child says; None for what no scorer says: code in there may write to the pipe, too."""
    if len(answer) != _RESULT.size:
        return None
    code, reward, cpu_seconds = _RESULT.unpack(answer)
    usual = code < len(REASONS) and 0.0 <= reward <= 1.0 and 0.0 <= cpu_seconds < math.inf
    return (code, reward, cpu_seconds) if usual else None


def _live(registry: TaskRegistry, limits: Limits, single_use: bool, pipes: tuple[int, int]) -> NoReturn:
    questions, results = pipes
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    # every other descriptor is the worker's own: its channel to the trainer must be out of reach
    keep = sorted((2, questions, results))
    for below, above in zip(keep, [*keep[1:], 65_536], strict=True):
        os.closerange(below + 1, above)
    fence.enter(limits.cpu_seconds, limits.memory_bytes, single_use)
    try:
        while True:
            task, seed, index, completion = read_frame(questions)
            prompt = registry.prompt(task, seed, index)
            began = time.process_time()
            fence.start_clock(limits.cpu_seconds)
            reason, reward = _score(registry.task(task).grade, prompt, completion)
            fence.stop_clock()
            os.write(results, _RESULT.pack(REASONS.index(reason), reward, time.process_time() - began))
    finally:  # the end of the questions, or an error of the scorer: nothing of the worker may run on in here
        os._exit(1)


def _score(grade: Any, prompt: Any, completion: str) -> tuple[str, float]:
    """Grade one answer. Any other exception ends the child, which the worker reports as "crashed"."""
    try:
        reward = float(grade(prompt, completion))
    except Unscorable as stopped:
        return (stopped.reason if stopped.reason in REASONS[1:] else "ungradable"), 0.0
    except MemoryError:
        return "memory", 0.0
    return ("", reward) if 0.0 <= reward <= 1.0 else ("bad_score", 0.0)


class Worker:
    """Answers the trainer's items one by one, in order."""

    def __init__(self, registry: TaskRegistry, limits: Limits) -> None:
        self._registry = registry
        self._limits = limits
        self._shared: Child | None = None

    def grade(self, item: Any) -> tuple[int, float, float]:
        """Grade (task, seed, index, completion) in the child that its task asks for."""
        task, seed, index, _ = item
        self._registry.prompt(task, seed, index)  # built once here, found in the cache by each fork
        if getattr(self._registry.task(task), "isolate", True):
            child = Child(self._registry, self._limits, single_use=True)
            try:
                return child.grade(item)
            finally:
                child.end()
        if self._shared is None or not self._shared.alive or self._shared.graded >= ITEMS_PER_CHILD:
            if self._shared is not None:
                self._shared.end()
            self._shared = Child(self._registry, self._limits, single_use=False)
        return self._shared.grade(item)


def main() -> None:
    """Serve frames from standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to handle; it closes the pipe
    logging.disable()  # math-verify warns that it has no time limit, which is this program's task
    sys.dont_write_bytecode = True  # children may not write, and would try at a late import
    channel = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not end up among the frames
    hello = read_frame(0)
    registry = TaskRegistry([TaskSpec(**spec) for spec in hello["tasks"]])
    for name in registry.names:
        warm_up = getattr(registry.task(name), "warm_up", None)
        if warm_up is not None:
            warm_up()
    worker = Worker(registry, Limits(**hello["limits"]))
    gc.collect()
    gc.freeze()  # forks share what is there, and never walk it
    write_frame(channel, "ready")
    while True:
        try:
            item = read_frame(0)
        except EOFError:
            return
        write_frame(channel, worker.grade(item))


if __name__ == "__main__":
    main()
