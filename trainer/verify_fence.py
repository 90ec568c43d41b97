"""The limits that a verifier child puts on itself before it looks at anybody's text.

CPU time is the one that decides: the kernel ends the process at the limit, also inside a C function, and waiting costs
nothing, so that a busy machine changes no score. Memory, files, processes and the network are bounded beside it. This
is a fence around library code that was not written for hostile input, not a sandbox for programs.
"""

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.trainer import verify_kernel

REFUSED_EXIT = 86  # exit status of a child that tried something forbidden
OPEN_FILES = 64  # late imports of sympy need a few
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # opened before the fence forbids ctypes
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

FORBIDDEN_EVENTS = frozenset(
    {
        *("os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.kill", "os.killpg"),
        *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"),
        *("os.chown", "os.chdir", "os.chflags", "os.utime", "os.setxattr", "os.removexattr", "os.lockf", "os.putenv"),
        *("os.unsetenv", "os.startfile", "os.add_dll_directory", "resource.setrlimit", "resource.prlimit"),
        *("subprocess.Popen", "pty.spawn", "pickle.find_class", "code.__new__", "signal.pthread_kill"),
        *("sys.addaudithook", "sys.setprofile", "sys.settrace", "webbrowser.open", "syslog.syslog"),
        *("_thread.start_new_thread", "_posixsubprocess.fork_exec"),
    }
)
FORBIDDEN_FAMILIES = ("socket.", "ctypes.", "shutil.", "tempfile.", "sqlite3.", "fcntl.", "ftplib.", "urllib.")


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends, whatever either is doing then.

    `parent` is its process id as noted before the fork: a parent that ended since then is told by that.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call
        os._exit(0)


def enter(cpu_seconds: float, memory_bytes: int, single_use: bool) -> None:
    """Put every limit on this process for good; `single_use` adds a CPU limit that no code in it can lift.

    `memory_bytes` counts from what is mapped now, so that the size of the libraries does not matter.
    """
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits: dict[int, int] = {
        resource.RLIMIT_AS: mapped + memory_bytes,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_NPROC: 0,  # no effect for root: the audit hook refuses there
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
    }
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))
    if single_use:  # whole seconds: the timer ends well-behaved code first
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_seconds) + 1, int(cpu_seconds) + 2))
    verify_kernel.confine()
    sys.addaudithook(_refuser(_readable_roots()))


def start_clock(cpu_seconds: float) -> None:
    """Give this process `cpu_seconds` of CPU time from now, after which the kernel ends it by SIGPROF."""
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)


def stop_clock() -> None:
    """Take the time limit back, once an answer is graded."""
    signal.setitimer(signal.ITIMER_PROF, 0)


def _readable_roots() -> tuple[str, ...]:
    places = [sys.prefix, sys.base_prefix, "/usr/share/zoneinfo", *(place for place in sys.path if place)]
    return tuple(os.path.join(os.path.realpath(place), "") for place in places)


def _refuser(roots: tuple[str, ...]) -> Callable[[str, tuple[Any, ...]], None]:
    # Bound here, as the audited code could replace module globals. The process ends at once: an exception could be
    # swallowed by the scorer, which would turn an attempt into a zero.
    forbidden, families, quit_now, status = FORBIDDEN_EVENTS, FORBIDDEN_FAMILIES, os._exit, REFUSED_EXIT
    realpath, writing, fsdecode = os.path.realpath, _WRITING, os.fsdecode

    def refuse(event: str, args: tuple[Any, ...]) -> None:
        if event in forbidden or event.startswith(families):
            quit_now(status)
        if event == "open":
            path, _mode, flags = args
            if isinstance(path, int) or flags & writing or not realpath(fsdecode(path)).startswith(roots):
                quit_now(status)

    return refuse
