"""The process of p2pd, hivemind's go-libp2p daemon: started, watched for its end, and never left behind.

hivemind's own way of starting it lacks three things. The daemon must die with this process even when it is frozen; a
Ctrl-C in the terminal must not reach it while this process still drains; and the private key must not lie on the disk.
So it is started here, in a session of its own, under the kernel's death signal, with the key in a pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import importlib.util
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.protocol.libp2p.keys import identity_file

log = logging.getLogger("shoal.network")

READY = b"Peer ID:"
NOTICE_SECONDS = 10.0  # between two words about a slow start
STOP_SECONDS = 5.0
FRESH_SECONDS = 60.0  # a younger folder may be about to be locked
MAX_MESSAGE = 2 * 2**20  # bytes of one DHT message; bulk goes over streams
MAX_LINE = 4096
MAX_BASE = 60  # characters
_PREFIX = "shoal-p2pd-"
# Runs in the child before p2pd replaces it. A parent that died before prctl took effect is noticed by its pid.
_LAUNCH = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "os.getppid() == int(sys.argv[1]) or os._exit(1)\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


class Daemon:
    """One life of p2pd. `arguments` are its flags besides those for identity and control."""

    def __init__(self, seed: bytes, arguments: Iterable[str], binary: str = "") -> None:
        self._seed, self._arguments, self._binary = seed, list(arguments), binary
        self._process: subprocess.Popen[bytes] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.lines: deque[str] = deque(maxlen=20)  # what it said last
        self.folder = ""
        self._lock: int | None = None  # an open file whose lock says that the folder is in use

    @property
    def control_path(self) -> str:
        """The Unix socket on which p2pd takes requests."""
        return f"{self.folder}/control"

    @property
    def pid(self) -> int:
        """The process id; 0 when there is no process."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    @property
    def last_words(self) -> str:
        """What it said last, in one line."""
        return " / ".join(list(self.lines)[-3:])[:500] or "it said nothing"

    async def start(self, seconds: float) -> None:
        """Start p2pd and wait until it listens. Raises EnvironmentFault; then nothing is left behind."""
        _sweep()
        self.folder = tempfile.mkdtemp(prefix=_PREFIX, dir=_base())
        self._lock = _lock(Path(self.folder))
        try:
            self._spawn()
            await self._listening(seconds)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the process, kindly and then not; a second call does nothing."""
        process, self._process = self._process, None
        if process is not None:
            _signal(process, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), STOP_SECONDS)
            _signal(process, signal.SIGKILL)
            await asyncio.to_thread(process.wait)
        if self._reading is not None:
            self._reading.cancel()
        shutil.rmtree(self.folder, ignore_errors=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def kill(self) -> None:
        """End a process that does not answer; `ended` follows."""
        if self._process is not None:
            _signal(self._process, signal.SIGKILL)

    def _spawn(self) -> None:
        reader, writer = os.pipe()
        try:
            os.write(writer, identity_file(self._seed))  # 68 bytes: a pipe holds them
            os.close(writer)
            flags = [f"-id=/dev/fd/{reader}", f"-listen=/unix{self.control_path}", "-idleTimeout=60s", *self._arguments]
            program = self._binary or find_p2pd()
            launch = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), program, *flags]
            self._process = subprocess.Popen(
                launch,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(reader,),
                start_new_session=True,
                env={"GOLOG_LOG_LEVEL": "error"} | os.environ,
            )
        except OSError as error:
            raise EnvironmentFault(f"cannot start the network daemon: {error.strerror}") from error
        finally:
            os.close(reader)
        self._reading = asyncio.get_running_loop().create_task(self._read(self._process))

    async def _read(self, process: subprocess.Popen[bytes]) -> None:
        """Keep the last lines, and learn from the end of the output that the process has ended."""
        assert process.stdout is not None
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
        rest = b""
        try:
            while chunk := await reader.read(MAX_LINE):
                *lines, rest = (rest + chunk).split(b"\n")
                rest = rest[:MAX_LINE]
                for line in lines:
                    self.lines.append(line[:MAX_LINE].decode("utf-8", "replace"))
                    if line.startswith(READY):
                        self._ready.set()
        finally:
            pipe.close()
            self.ended.set()

    async def _listening(self, seconds: float) -> None:
        """Wait until p2pd says that it listens; say every few seconds that this is what is waited for."""
        loop = asyncio.get_running_loop()
        waits = [loop.create_task(self._ready.wait()), loop.create_task(self.ended.wait())]
        began = loop.time()
        try:
            while not self._ready.is_set() and not self.ended.is_set():
                left = began + seconds - loop.time()
                if left <= 0:
                    raise EnvironmentFault(
                        f"the network daemon did not start within {seconds:.0f} s: is this machine overloaded?"
                    )
                await asyncio.wait(waits, timeout=min(left, NOTICE_SECONDS), return_when=asyncio.FIRST_COMPLETED)
                if not self._ready.is_set() and loop.time() - began >= NOTICE_SECONDS:
                    log.info("the network daemon is still starting (%.0f s of %.0f)", loop.time() - began, seconds)
        finally:
            for wait in waits:
                wait.cancel()
        if self.ended.is_set():
            raise EnvironmentFault(f"the network daemon ended at once: {self.last_words}")


def find_p2pd() -> str:
    """The p2pd in hivemind's package. Raises EnvironmentFault where it is missing."""
    found = importlib.util.find_spec("hivemind")  # looks, and imports nothing
    for folder in (found.submodule_search_locations or []) if found else []:
        path = Path(folder) / "hivemind_cli" / "p2pd"
        if path.is_file():
            return str(path)
    raise EnvironmentFault("the network daemon p2pd is missing: install hivemind from its wheel")


def take_port(host: str, port: int) -> int:
    """The port to listen on, free for TCP and for UDP alike; 0 finds one.

    It is checked here since p2pd shares ports (SO_REUSEPORT) and would split the traffic of another program with it.
    Raises UsageError: for a taken port, naming it and --port, and for a host that this machine has not.
    """
    for _ in range(20):
        try:
            number = _probe(host, socket.SOCK_STREAM, port)
            return _probe(host, socket.SOCK_DGRAM, number)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and not port:
                continue
            raise UsageError(_refusal(host, port, error)) from error
    raise UsageError(f"no port on {host} is free for both TCP and UDP: name one with --port")


def _refusal(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken by another program: end that, or take another with --port"
    if error.errno == errno.EACCES:
        return f"port {port} needs privileges that this process lacks: take one above 1023 with --port"
    return f"cannot listen on {host}, port {port}: {error.strerror or error}: see --host and --port"


def _probe(host: str, kind: socket.SocketKind, port: int) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind) as probe:
        if kind == socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of an earlier run may linger
        if ":" in host:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        probe.bind((host, port))
        return int(probe.getsockname()[1])


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal the whole session of a process, so that nothing that it started stays."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _base() -> str:
    """Where folders are made: the path of a Unix socket has 107 bytes at most."""
    usual = tempfile.gettempdir()
    return usual if len(usual) <= MAX_BASE else "/tmp"


def _lock(folder: Path) -> int | None:
    """Hold the lock of a folder for as long as this process lives; None when another holds it."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _sweep() -> None:
    """Remove the folders of processes that were killed. A lock tells, not a pid: containers may share /tmp."""
    for folder in Path(_base()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid != os.getuid() or time.time() - folder.lstat().st_mtime < FRESH_SECONDS:
                continue
            descriptor = _lock(folder)
            if descriptor is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(descriptor)
