"""One job for both arms: the same prompts, the same reward, forced lengths, and the lines by which an arm is driven.

An arm is a process of its own (`python _step_shoal.py JOB`, `python _step_trl.py JOB`). It writes one JSON line when it
is ready; for each line {"tokens": n} on its standard input it makes one step and writes one line; at the end of its
input it leaves. No torch here: the driver stays out of memory and threads.
"""

import json
import os
import struct
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

STRINGS = (
    "reverse abc=",
    "copy ab=",
    "sort 31254=",
    "last xyzxyz=",
    "next c=",
    "rotate abcd=",
    "swap abcd=",
    "copy q=",
)
WORDS = (
    "What is the capital of France?",
    "Count from one to ten.",
    "Name three colours.",
    "Why is the sky blue?",
    "Write a sentence about a dog.",
    "What is 12 plus 30?",
    "Which month follows May?",
    "Explain what a river is.",
)
LR = 1e-6  # both arms; the text stays what it is, and the cost does not depend on it
DEFAULT_FOLDER = Path(__file__).parent.parent / "trainer" / "default_model"


@dataclass(frozen=True, slots=True)
class Job:
    """`prompts` x `group_size` completions of exactly so many tokens on a model; `default` or a directory."""

    model: str
    prompts: int
    group_size: int
    tokens: int
    threads: int
    seed: int = 0

    @property
    def folder(self) -> Path:
        """Where the model lies."""
        return DEFAULT_FOLDER if self.model == "default" else Path(self.model)

    @property
    def rows(self) -> int:
        """Completions of one step."""
        return self.prompts * self.group_size

    def texts(self) -> list[str]:
        """The prompts of every step; they differ as long as there are enough of them."""
        known = STRINGS if self.model == "default" else WORDS
        return [known[at % len(known)] for at in range(self.prompts)]

    def dump(self) -> str:
        """The job as one argument of a command."""
        return json.dumps(asdict(self))


def reward(ids: Sequence[int]) -> float:
    """A number in [0, 1) that depends on every token: rewards of a group differ, so every row carries signal."""
    return zlib.crc32(struct.pack(f"<{len(ids)}I", *ids)) / 2**32


def end_mark(vocabulary: int) -> int:
    """An id that no token has. Both arms take it for the end mark, so that no completion ends before its length."""
    return vocabulary


def digest(prompts: Sequence[Sequence[int]]) -> int:
    """A number by which the driver sees that both arms read the same token ids."""
    return zlib.crc32(json.dumps([list(ids) for ids in prompts]).encode())


def peak_bytes() -> int:
    """The most memory this process has had (resident set); 0 where the kernel does not tell."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def channel() -> TextIO:
    """Standard output for the driver alone: from now on whatever else is printed goes to standard error."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return out


def say(out: TextIO, **values: Any) -> None:
    """Write one line to the driver."""
    out.write(json.dumps(values) + "\n")


def asked() -> int | None:
    """The tokens of the next step; None when there is none."""
    line = sys.stdin.readline()
    return int(json.loads(line)["tokens"]) if line.strip() else None


def job_of(argument: str, set_threads: Callable[[int], None]) -> Job:
    """Read the job of this process, and bound its threads."""
    job = Job(**json.loads(argument))
    set_threads(job.threads)
    return job
