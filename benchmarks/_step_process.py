"""An arm at the other end of two pipes, and what is measured of ours alone. See _step_job.py for what is said."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from _step_job import Job

HERE = Path(__file__).parent
ROOT = HERE.parent
REFERENCE = ROOT / ".venv-trl" / "bin" / "python"
PATIENCE = 900  # seconds for one answer of an arm; then it is ended


def environment(job: Job) -> dict[str, str]:
    """The environment of an arm: its threads, the tree's own modules, and no hub."""
    threads = str(job.threads)
    return os.environ | {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONPATH": str(ROOT / ".ns"),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }


class Broken(RuntimeError):
    """A cell has no figure: an arm ended, was too slow, or the arms did not do the same work."""


class Process:
    """An arm at the other end of two pipes. Its standard error goes to a file, whose end is shown when it fails."""

    def __init__(self, arm: str, job: Job) -> None:
        """Start it and wait until it is ready."""
        python = sys.executable if arm == "shoal" else str(REFERENCE)
        self.arm, self._errors = arm, tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            [python, str(HERE / f"_step_{arm}.py"), job.dump()],
            cwd=ROOT,
            env=environment(job),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.ready = self._read()

    def step(self, tokens: int) -> dict[str, Any]:
        """Make one step."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"tokens": tokens}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        watch = threading.Timer(PATIENCE, self._process.kill)
        watch.start()
        line = self._process.stdout.readline()
        watch.cancel()
        if not line:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace")[-2000:]
            raise Broken(f"the arm {self.arm} ended with {self._process.wait(60)}:\n{said}")
        return json.loads(line)

    def close(self) -> None:
        """Let it end; end it when it does not."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


@contextmanager
def started(arms: Sequence[str], job: Job) -> Iterator[list[Process]]:
    """Processes of all these arms, which end with the block whatever happens in it."""
    with ExitStack() as stack:
        running: list[Process] = []
        for arm in arms:
            running.append(Process(arm, job))
            stack.callback(running[-1].close)
        yield running


def alone(what: str, job: Job, repeats: int) -> dict[str, Any]:
    """Run _step_update.py and return what it found."""
    command = [sys.executable, str(HERE / "_step_update.py"), what, job.dump(), str(repeats)]
    options: dict[str, Any] = {"cwd": ROOT, "env": environment(job), "capture_output": True, "text": True}
    try:
        done = subprocess.run(command, timeout=PATIENCE, **options)
    except subprocess.TimeoutExpired as error:
        raise Broken(f"not done within {PATIENCE} s") from error
    if done.returncode:
        raise Broken(f"it ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)
