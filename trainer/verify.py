"""The grader: rewards for completions, from killable workers where an answer is anything but a plain string to compare.

What an answer costs is bounded by its CPU time, so that the same text gets the same score on a busy machine. An answer
that is stopped is unscorable, which is not the same as wrong.
"""

import contextlib
import math
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from types import TracebackType
from typing import Any, Self

from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.trainer.tasks.base import Prompt, Unscorable
from shoal.trainer.tasks.registry import SpecLike, TaskRegistry, TaskSpec
from shoal.trainer.verify_frames import read_frame, write_frame
from shoal.trainer.verify_worker import REASONS, Limits

SCORES_KEPT = 65_536  # about 200 bytes each
START_SECONDS = 120.0  # imports on a slow, busy machine
REPLY_GRACE = 30.0  # beyond the wall limit that the worker itself enforces
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "MPLCONFIGDIR", "XDG_CACHE_HOME")
KILLS = frozenset({"cpu_time", "wall_time", "memory", "crashed", "refused"})
NOT_REMEMBERED = frozenset({"wall_time"})  # depends on the machine's load, not on the answer alone


@dataclass(frozen=True, slots=True)
class Score:
    """The reward of one completion in [0, 1], or None and the reason why it has none."""

    reward: float | None
    reason: str = ""
    cpu_seconds: float = 0.0


class _Worker:
    """One worker process, as the trainer sees it."""

    def __init__(self, specs: Sequence[SpecLike], limits: Limits) -> None:
        self.process = subprocess.Popen(  # a new program, not a fork: the trainer holds tensors and threads
            [sys.executable, "-P", "-m", "shoal.trainer.verify_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.send, self.receive = self.process.stdin.fileno(), self.process.stdout.fileno()
        self.job: int | None = None  # position of the item it is grading
        self.deadline = 0.0
        tasks = [asdict(TaskSpec(s.name, 1, dict(s.config), s.data_sha256)) for s in specs]
        with contextlib.suppress(BrokenPipeError):  # seen below as the end of its output
            write_frame(self.send, {"tasks": tasks, "limits": asdict(limits)})

    def wait_until_ready(self) -> None:
        """Wait for its imports; raises EnvironmentFault when it ends or takes two minutes."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.receive, selectors.EVENT_READ)
            ready = selector.select(START_SECONDS)
        try:
            if ready and read_frame(self.receive) == "ready":
                return
        except EOFError:
            pass
        self.end()
        state = f"exit status {self.process.returncode}" if ready else f"not ready after {START_SECONDS:.0f} s"
        raise EnvironmentFault(f"a verifier worker did not start ({state}); its own message stands above")

    def end(self) -> None:
        """End it and what it started: it exits when its input closes, and its children die with it."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return kept | one_thread | {"PYTHONPATH": os.pathsep.join(place for place in sys.path if place)}


class Grader:
    """Grades completions: string comparisons at once, everything else in workers that start when first needed.

    `cpu_seconds` is the CPU time that one answer may take, `memory_bytes` what it may allocate beyond the libraries,
    `wall_seconds` the backstop for an answer that only waits. Not copied by fork; close it, or use it as a context.
    """

    def __init__(
        self,
        tasks: TaskRegistry | Iterable[SpecLike],
        workers: int = 1,
        cpu_seconds: float = 2.0,
        memory_bytes: int = 2**30,
        wall_seconds: float = 30.0,
    ) -> None:
        if workers < 1 or cpu_seconds <= 0 or memory_bytes <= 0 or wall_seconds <= cpu_seconds:
            raise UsageError("verifier limits must be positive, and wall_seconds above cpu_seconds")
        self.registry = tasks if isinstance(tasks, TaskRegistry) else TaskRegistry(tasks)
        self.counters: Counter[str] = Counter()
        self._limits = Limits(cpu_seconds, memory_bytes, wall_seconds)
        self._count = workers
        self._workers: list[_Worker] = []
        self._remembered: OrderedDict[bytes, Score] = OrderedDict()
        self._lock = threading.Lock()  # one call at a time owns the workers
        self._closed = False

    def grade(
        self, items: Sequence[tuple[Prompt, str]], most_killed: int | None = None, most_seconds: float = math.inf
    ) -> list[Score]:
        """Return one score for each (prompt, completion), in the order of the items.

        With `most_killed`, once so many of these items had to be killed, or they took `most_seconds` of CPU time, the
        rest is not run but unscorable ("budget"): the bound on what one peer's rollout can cost. Such a call grades one
        item at a time, so that where it stops does not depend on the workers. Raises EnvironmentFault when no worker
        can be started.
        """
        with self._lock:
            if self._closed:
                raise UsageError("this grader is closed")
            if most_killed is not None:
                return self._counted(self._in_order(items, most_killed, most_seconds))
            scores: list[Score | None] = [self._at_once(prompt, text) for prompt, text in items]
            same: dict[bytes, list[int]] = {}
            for position, (prompt, text) in enumerate(items):
                if scores[position] is None:
                    same.setdefault(_key(prompt, text), []).append(position)
            self._run_all(items, scores, list(same.values()))
            return self._counted([score for score in scores if score is not None])

    def _counted(self, scores: list[Score]) -> list[Score]:
        self.counters.update(score.reason or "scored" for score in scores)
        return scores

    def _in_order(self, items: Sequence[tuple[Prompt, str]], most_killed: int, most_seconds: float) -> list[Score]:
        """Grade one item after the other until the budget of kills or of CPU time is spent.

        What is remembered costs nothing now and counts all the same: else the result would depend on what was
        graded before, and with it on whether the process was restarted.
        """
        final: list[Score] = []
        killed, seconds = 0, 0.0
        for prompt, text in items:
            if killed >= most_killed or seconds >= most_seconds:
                final.append(Score(None, "budget"))
                continue
            scores = [self._at_once(prompt, text)]
            if scores[0] is None:
                self._run_all([(prompt, text)], scores, [[0]])
            [score] = scores
            assert score is not None
            killed, seconds = killed + (score.reason in KILLS), seconds + score.cpu_seconds
            final.append(score)
        return final

    def start(self) -> None:
        """Start the workers now and wait until they are warm, instead of at the first item that needs one."""
        with self._lock:
            self._start(self._count)

    def close(self) -> None:
        """End the workers; harmless when repeated."""
        with self._lock:
            self._closed = True
            while self._workers:
                self._workers.pop().end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _at_once(self, prompt: Prompt, text: str) -> Score | None:
        """Return the score that needs no worker: too long, a comparison, or known already."""
        task = self.registry.task(prompt.task)
        if len(text) > task.max_chars:
            return Score(None, "too_long")
        if task.inline:
            try:
                return Score(task.grade(prompt, text))
            except Unscorable as stopped:
                return Score(None, stopped.reason)
        key = _key(prompt, text)
        known = self._remembered.get(key)
        if known is not None:
            self._remembered.move_to_end(key)
            self.counters["remembered"] += 1
        return known

    def _run_all(
        self,
        items: Sequence[tuple[Prompt, str]],
        scores: list[Score | None],
        groups: list[list[int]],
    ) -> None:
        """Grade the first item of each group of equal ones in a worker, and give its score to the group."""
        waiting = deque(groups)
        running: dict[int, list[int]] = {}
        while running or waiting:
            self._start(min(self._count, len(waiting) + len(running)))
            for worker in self._workers:
                if worker.job is None and waiting:
                    group = waiting.popleft()
                    running[group[0]] = group
                    self._ask(worker, group[0], *items[group[0]])
            for position, score in self._replies():
                self._remember(_key(*items[position]), score)
                for equal in running.pop(position):
                    scores[equal] = score

    def _start(self, count: int) -> None:
        fresh: list[_Worker] = []
        while len(self._workers) < count:
            self.counters["worker_starts"] += 1
            fresh.append(_Worker(self.registry.specs, self._limits))
            self._workers.append(fresh[-1])
        for worker in fresh:  # all import at the same time
            try:
                worker.wait_until_ready()
            except EnvironmentFault:
                self._workers.remove(worker)
                raise

    def _ask(self, worker: _Worker, position: int, prompt: Prompt, text: str) -> None:
        worker.job = position
        worker.deadline = time.monotonic() + self._limits.wall_seconds + REPLY_GRACE
        with contextlib.suppress(BrokenPipeError):  # it is gone: its output ends, which the wait sees
            write_frame(worker.send, (prompt.task, prompt.seed, prompt.index, text))

    def _replies(self) -> list[tuple[int, Score]]:
        """Wait for at least one working worker, and return what came; a worker that died is dropped."""
        working = {worker.receive: worker for worker in self._workers if worker.job is not None}
        with selectors.DefaultSelector() as selector:
            for descriptor in working:
                selector.register(descriptor, selectors.EVENT_READ)
            earliest = min(worker.deadline for worker in working.values())
            ready = [key.fd for key, _ in selector.select(max(0.0, earliest - time.monotonic()))]
        replies: list[tuple[int, Score]] = []
        for descriptor, worker in working.items():
            if descriptor in ready or time.monotonic() >= worker.deadline:
                position, worker.job = worker.job, None
                assert position is not None
                replies.append((position, self._read(worker, late=descriptor not in ready)))
        return replies

    def _read(self, worker: _Worker, late: bool) -> Score:
        try:
            if late:
                raise EOFError("no reply")
            code, reward, cpu_seconds = read_frame(worker.receive)
            reason = REASONS[code]
        except (EOFError, ValueError, TypeError, IndexError):  # gone, or it says what no worker says
            self._workers.remove(worker)
            worker.process.kill()  # it may still be busy, and its children end with it
            worker.end()
            self.counters["worker_losses"] += 1
            return Score(None, "wall_time" if late else "crashed")
        return Score(None if reason else reward, reason, cpu_seconds)

    def _remember(self, key: bytes, score: Score) -> None:
        if score.reason in NOT_REMEMBERED:
            return
        self._remembered[key] = score
        if len(self._remembered) > SCORES_KEPT:
            self._remembered.popitem(last=False)


def _key(prompt: Prompt, text: str) -> bytes:
    name: Any = f"{prompt.task}\0{prompt.seed}\0{prompt.index}\0".encode()
    return blake2b(name + text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
