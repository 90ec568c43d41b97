"""The filter of system calls: what ends a process that has put it on, and what goes on as before."""

import os
import platform
import signal
import subprocess
import sys

import pytest

from shoal.trainer.verify_kernel import confine

KERNEL = platform.system() == "Linux" and platform.machine() == "x86_64"
RUN = """
import os, signal, socket, sys
from shoal.trainer.verify_kernel import confine
assert confine() or {other}
{act}
"""
REFUSED = [
    "socket.socket()",
    "os.fork()",
    "os.execv('/bin/true', ['true'])",
    "os.kill(os.getppid(), 0)",
    "signal.pidfd_send_signal(os.pidfd_open(os.getpid()), 0)",
    "os.open('/tmp/shoal-kernel-test', os.O_WRONLY | os.O_CREAT)",
    "os.open(os.devnull, os.O_RDWR)",
    "os.mkdir('/tmp/shoal-kernel-test')",
    "os.unlink('/tmp/shoal-kernel-test')",
    "os.mkfifo('/tmp/shoal-kernel-test')",
    "os.symlink('a', '/tmp/shoal-kernel-test')",
    "os.rename('/tmp/shoal-kernel-test', '/tmp/b')",
    "os.chmod('/tmp', 0o1777)",
    "os.setpriority(os.PRIO_PROCESS, 0, 1)",
    "os.sched_setaffinity(0, {0})",
    "__import__('resource').setrlimit(7, (8, 8))",
    "__import__('ctypes').CDLL(None).syscall(0x40000000 + 39)",
    "__import__('ctypes').CDLL(None).ptrace(0, 0, 0, 0)",
    "socket.socketpair()",
    "__import__('subprocess').run(['/bin/true'])",
    "os.posix_spawn('/bin/true', ['true'], {})",
    "os.forkpty()",
    "os.killpg(os.getppid(), 0)",
    "__import__('time').clock_settime(__import__('time').CLOCK_MONOTONIC, 1.0)",
    "os.truncate('/tmp/shoal-kernel-test', 0)",
    "os.utime('/tmp')",
    "os.link('/tmp/a', '/tmp/shoal-kernel-test')",
    "os.open('/tmp', os.O_RDWR | os.O_TMPFILE)",
    "__import__('resource').prlimit(os.getppid(), 7, (8, 8))",
    "__import__('fcntl').ioctl(0, 0x5412, b'x')",
    "__import__('fcntl').ioctl(0, 0x541C, b'x')",
    "__import__('ctypes').CDLL(None).prctl(1, 0, 0, 0, 0)",
    "__import__('ctypes').CDLL(None).shmget(0, 4096, 0o1600)",
    "__import__('ctypes').CDLL(None).syscall(317, 1, 0, 0)",
    "__import__('ctypes').CDLL(None).syscall(425, 1, 0)",
    "t = __import__('threading').Thread(target=os.fork); t.start(); t.join()",
]
ALLOWED = [
    "open(os.devnull).isatty()",
    "__import__('ctypes').CDLL(None).prctl(15, b'name', 0, 0, 0)",
    "assert __import__('ctypes').CDLL(None).syscall(435, 0, 0) == -1",  # clone3 is said not to be there
    "os.pread(os.open('/proc/self/stat', os.O_RDONLY), 10, 0)",
    "os.close(os.open(os.devnull, os.O_RDONLY))",
    "import colorsys, decimal, fractions",
    "bytearray(2**24)",
    "__import__('resource').getrlimit(7)",
    "t = __import__('threading').Thread(target=len, args=('',)); t.start(); t.join()",
]


def status(act: str) -> int:
    """The exit status of a process that puts the filter on and then acts."""
    code = RUN.format(other=not KERNEL, act=act)
    place = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-B", "-c", code]
    return subprocess.run(command, check=False, env={**os.environ, "PYTHONPATH": place}, capture_output=True).returncode


@pytest.mark.parametrize("act", REFUSED)
def test_the_process_ends(act: str) -> None:
    assert status(act) == -signal.SIGSYS or not KERNEL


@pytest.mark.parametrize("act", ALLOWED)
def test_the_process_goes_on(act: str) -> None:
    assert status(act) == 0


def test_without_the_filter_none_of_it_ends_a_process() -> None:
    """What `REFUSED` counts is the filter's work: the signal is its own."""
    place = os.pathsep.join(path for path in sys.path if path)
    code = "import socket; socket.socketpair(); import os; os._exit(0 if os.fork() else 0)"
    done = subprocess.run([sys.executable, "-c", code], check=False, env={**os.environ, "PYTHONPATH": place})
    assert done.returncode == 0


def test_abort_is_a_signal_to_oneself_and_stays_one() -> None:
    assert status("os.abort()") == -signal.SIGABRT


def test_another_machine_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert confine() is False
