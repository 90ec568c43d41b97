"""A plug-in task whose scorer does what its completion says: the fence must hold whatever that is."""

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoal.trainer.tasks.base import Prompt, Unscorable


def _loop() -> float:
    while True:
        pass


def _loop_in_c() -> float:
    return float(len(str(pow(7, 10**9, 10**300_000))))  # one C call that no Python signal can interrupt


def _loop_without_timer() -> float:
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, signal.SIG_IGN)
    return _loop()


def _loop_ignoring_everything() -> float:
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    return _loop_without_timer()


def _wait() -> float:
    time.sleep(3600)
    return 1.0


def _wait_a_little() -> float:
    time.sleep(0.6)  # longer than the CPU limit of the test: waiting must cost nothing
    return 1.0


def _gobble() -> float:
    hoard = []
    while True:
        hoard.append(bytearray(2**24))


def _recurse() -> float:
    return _recurse()


def _fork() -> float:
    if os.fork() == 0:
        os._exit(0)
    return 1.0


def _thread() -> float:
    threading.Thread(target=print).start()
    return 1.0


def _swallow() -> float:
    try:
        socket.create_connection(("127.0.0.1", 9))
    except BaseException:  # noqa: BLE001 - a scorer that hides what happened
        return 1.0
    return 1.0


def _flood() -> float:
    os.write(1, b"x" * 2**20)  # neither may reach the trainer, nor block
    os.write(2, b"x" * 2**20)
    sys.stdout.write("y" * 2**20)
    return 1.0


def _flood_for_ever() -> float:
    while True:
        os.write(1, b"x" * 2**20)


def _poison_the_next() -> float:
    Hostile.grade = lambda *_: 1.0  # type: ignore[method-assign]
    return 1.0


def _load_a_module() -> float:
    import colorsys  # not loaded before: late imports must work

    return colorsys.rgb_to_hsv(1, 1, 1)[2]


def _another_interpreter(code: str) -> float:
    interpreters = __import__("_xxsubinterpreters")  # it has no audit hook of this one
    interpreters.run_string(interpreters.create(), code)
    return 1.0


class _EqualToAll:
    """Equal to whatever it is compared with, and a full score as a number."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__

    def __float__(self) -> float:
        return float("inf")


def _fork_bomb() -> float:
    while True:
        try:
            os.fork()
        except OSError:
            continue


def _write_to_all(data: bytes) -> None:
    """Write to whatever is open: among it is the pipe on which the child says its scores."""
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, data)


def _forge(*answers: bytes) -> float:
    for answer in answers:
        _write_to_all(answer)
    return _wait()


def _close_and_stay() -> float:
    os.closerange(3, 64)
    return _wait()


def _nested(depth: int) -> Any:
    """A list in a list in a list, without a call for each."""
    inner: Any = []
    for _ in range(depth):
        inner = [inner]
    return inner


def _raise() -> float:
    raise RuntimeError("a bug of the scorer")


def _give_up() -> float:
    raise Unscorable("no_gold")


ACTS: dict[str, Callable[[], Any]] = {
    "right": lambda: 1.0,
    "wrong": lambda: 0.0,
    "loop": _loop,
    "loop in C": _loop_in_c,
    "loop without timer": _loop_without_timer,
    "loop ignoring everything": _loop_ignoring_everything,
    "wait": _wait,
    "wait a little": _wait_a_little,
    "allocate": lambda: len(bytearray(2**36)),
    "gobble": _gobble,
    "recurse": _recurse,
    "socket": lambda: socket.socket(),
    "swallow": _swallow,
    "write": lambda: Path(f"/tmp/shoal-escape-{os.getuid()}").write_text("escaped"),
    "read": lambda: Path("/etc/passwd").read_text(),
    "remove": lambda: os.remove("/tmp/shoal-no-such-file"),
    "system": lambda: os.system("true"),
    "popen": lambda: subprocess.run(["/bin/true"], check=False),
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "fork": _fork,
    "kill the worker": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "make a pipe in the file system": lambda: os.mkfifo(f"/tmp/shoal-escape-{os.getuid()}"),
    "make a node": lambda: os.mknod(f"/tmp/shoal-escape-{os.getuid()}"),
    "make shared memory": lambda: __import__("_posixshmem").shm_open(
        "/shoal-escape", os.O_CREAT | os.O_RDWR, mode=0o600
    ),
    "write a history": lambda: __import__("readline").write_history_file(f"/tmp/shoal-escape-{os.getuid()}"),
    "kill the worker by its handle": lambda: signal.pidfd_send_signal(os.pidfd_open(os.getppid()), signal.SIGKILL),
    "slow the worker down": lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 19),
    "another interpreter writes": lambda: _another_interpreter(f"open('/tmp/shoal-escape-{os.getuid()}', 'w')"),
    "another interpreter calls": lambda: _another_interpreter("import socket; socket.socket()"),
    "another interpreter kills": lambda: _another_interpreter("import os; os.kill(os.getppid(), 9)"),
    "another interpreter lifts a limit": lambda: _another_interpreter(
        "import resource; resource.setrlimit(9, (-1, -1))"
    ),
    "fork bomb": _fork_bomb,
    "forge a reason": lambda: _forge(struct.pack("<Bdd", 255, 1.0, 0.0)),
    "forge a reward": lambda: _forge(struct.pack("<Bdd", 0, float("nan"), 0.0)),
    "forge seconds": lambda: _forge(struct.pack("<Bdd", 0, 1.0, -1.0)),
    "forge half an answer": lambda: _forge(b"\0"),
    "close and stay": _close_and_stay,
    "huge number": lambda: float(9 ** (9**9) > 0),
    "digits of a huge number": lambda: float(len(str(1 << 10**9))),
    "recurse in C": lambda: float(len(repr(_nested(10**5)))),
    "backtrack": lambda: float(bool(re.fullmatch("(a+)+b", "a" * 64))),
    "explode by sympy": lambda: float(
        len(str(__import__("sympy").expand(__import__("sympy").sympify("(x+y+z+w)**400"))))
    ),
    "flood for ever": _flood_for_ever,
    "stop the worker": lambda: os.kill(os.getppid(), signal.SIGSTOP),
    "stop the group": lambda: os.killpg(0, signal.SIGSTOP),
    "interpreters without end": lambda: _another_interpreter("import _xxsubinterpreters as i\nwhile 1: i.create()"),
    "exit by exception": lambda: (_ for _ in ()).throw(SystemExit(0)),
    "equal to all": _EqualToAll,
    "stop": lambda: signal.raise_signal(signal.SIGSTOP),
    "interrupt": lambda: signal.raise_signal(signal.SIGINT),
    "terminate": lambda: signal.raise_signal(signal.SIGTERM),
    "lift the memory limit": lambda: __import__("resource").setrlimit(9, (-1, -1)),
    "dlopen": lambda: __import__("ctypes").CDLL("libc.so.6"),
    "thread": _thread,
    "leave": lambda: os._exit(0),
    "leave politely": lambda: sys.exit(0),
    "raise": _raise,
    "abort": lambda: os.abort(),
    "give up": _give_up,
    "nan": lambda: float("nan"),
    "two": lambda: 2.0,
    "text": lambda: "1.0 of it",
    "flood": _flood,
    "poison the next": _poison_the_next,
    "has torch": lambda: float("torch" in sys.modules),
    "load a module": _load_a_module,
    "show secrets": lambda: float("SHOAL_TEST_SECRET" in os.environ),
}


class Hostile:
    """Does ACTS[completion], and scores what that returns."""

    inline = False
    max_tokens = 8
    max_chars = 64

    def __init__(self, name: str, config: Mapping[str, Any]) -> None:
        self.name = name
        self.isolate = bool(config.get("isolate", True))

    def prompt(self, seed: int, index: int) -> Prompt:
        """Return the same question for all names."""
        return Prompt(self.name, seed, index, "What now?", "right")

    def grade(self, prompt: Prompt, completion: str) -> float:
        """Return whatever the act gives."""
        return ACTS[completion]()
