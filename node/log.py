"""Logging of the daemon: plain lines for people on standard error, JSON lines with rotation in the home.

Every line goes through the one sanitiser of peers' text, so that nobody writes a second line or a colour into a log.
A line that repeats is written a few times, then counted: a storm from the network must not become a storm on the disk.
"""

import faulthandler
import json
import logging
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Literal, TextIO

from shoal.defenses.text import safe
from shoal.protocol.errors import EnvironmentFault

Level = Literal["debug", "info", "warning", "error"]

LOG_FILE = "shoal.jsonl"
FILE_BYTES, FILES_KEPT = 8 * 2**20, 4  # 40 MiB on disk at most
MAX_MESSAGE, MAX_TRACE_LINE, MAX_TRACE_LINES = 2000, 400, 60
BURST, WINDOW_SECONDS = 5, 60.0  # lines alike that are written, before they are only counted
MAX_WINDOWS = 512
NOISY = ("aiohttp", "hivemind", "libp2p", "asyncio", "multiaddr", "async_service", "urllib3")
_NAMES = {10: "debug", 20: "info", 30: "warning", 40: "error", 50: "critical"}  # libraries rename the levels for all
_PRIORITY = {10: 7, 20: 6, 30: 4, 40: 3, 50: 2}


def message_of(record: logging.LogRecord) -> str:
    """Return a record's message as one printable line."""
    try:
        text = record.getMessage()
    except (TypeError, ValueError, KeyError) as error:  # a library's own mistake in its arguments
        text = f"{record.msg} (bad log arguments: {error})"
    return safe(text, MAX_MESSAGE)


def trace_of(record: logging.LogRecord) -> list[str]:
    """Return the traceback as printable lines, the innermost ones when it is long."""
    if not record.exc_info:
        return []
    lines = logging.Formatter().formatException(record.exc_info).splitlines()
    return [safe(line, MAX_TRACE_LINE) for line in lines[-MAX_TRACE_LINES:]]


def _name(record: logging.LogRecord) -> str:
    return _NAMES.get(record.levelno, str(record.levelno))


class HumanFormatter(logging.Formatter):
    """`12:00:01 warning loop: message`; in the journal, which knows the time, the priority comes first instead."""

    def __init__(self, journal: bool = False) -> None:
        super().__init__()
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and below it the lines of a traceback."""
        level = "" if record.levelno == logging.INFO else f"{_name(record)} "
        text = f"{level}{record.name.removeprefix('shoal.').rpartition('.')[2]}: {message_of(record)}"
        lines = [text, *(f"    {line}" for line in trace_of(record))]
        if self._journal:
            return "\n".join(f"<{_PRIORITY.get(record.levelno, 5)}>{line}" for line in lines)
        return f"{time.strftime('%H:%M:%S', time.localtime(record.created))} " + "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (unix seconds), level, logger, message, and trace where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        entry: dict[str, object] = {
            "time": round(record.created, 3),
            "level": _name(record),
            "logger": record.name,
            "message": message_of(record),
        }
        trace = trace_of(record)
        if trace:
            entry["trace"] = trace
        return json.dumps(entry, ensure_ascii=True)


class _File(RotatingFileHandler):
    """The file in the home; when the disk takes no more, that is told once and counted, and the node goes on."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=FILE_BYTES, backupCount=FILES_KEPT, encoding="utf-8")
        self.lost = 0

    def _open(self) -> TextIOWrapper:
        file = super()._open()
        os.fchmod(file.fileno(), 0o600)
        return file

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802, ARG002 - the library's name and form
        """Count a line that could not be written."""
        self.lost += 1
        if self.lost == 1:
            error = sys.exc_info()[1]
            sys.stderr.write(f"shoal: the log {self.baseFilename} takes no more lines: {error}\n")


@dataclass(slots=True)
class _Window:
    began: float
    first: logging.LogRecord
    written: int = 0
    held: int = 0


class Limited(logging.Handler):
    """Passes records on to the targets, at most `BURST` alike in a minute; `held` counts the rest.

    The node's own news are alike when they say the same; warnings, and all lines of libraries, when they come from one
    place in the code, whatever peers' text they carry. What was held back is told when the first line comes after the
    minute is over.
    """

    def __init__(self, targets: Sequence[logging.Handler], now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.targets = tuple(targets)
        self.held = 0
        self._now = now
        self._windows: OrderedDict[tuple[str, int, str], _Window] = OrderedDict()

    def emit(self, record: logging.LogRecord) -> None:
        """Write, or count, one record."""
        now = self._now()
        self._settle(now)
        kind = _kind(record)
        window = self._windows.get(kind)
        if window is None:
            if len(self._windows) >= MAX_WINDOWS:
                self._tell(*self._windows.popitem(last=False))
            window = self._windows[kind] = _Window(now, record)
        if window.written >= BURST:
            window.held += 1
            self.held += 1
            return
        window.written += 1
        self._write(record)

    def close(self) -> None:
        """Tell what was held back, and close the targets."""
        self._settle(float("inf"))
        for target in self.targets:
            target.close()
        super().close()

    def _settle(self, now: float) -> None:
        """End the windows that are over; they lie in the order in which they began."""
        while self._windows:
            kind, window = next(iter(self._windows.items()))
            if now - window.began < WINDOW_SECONDS:
                return
            del self._windows[kind]
            self._tell(kind, window)

    def _tell(self, kind: tuple[str, int, str], window: _Window) -> None:
        if window.held:
            name, level, _ = kind
            arguments = (window.held, safe(message_of(window.first), 120))
            self._write(logging.LogRecord(name, level, "", 0, "%d more lines like: %s", arguments, None))

    def _write(self, record: logging.LogRecord) -> None:
        for target in self.targets:
            target.handle(record)


def _kind(record: logging.LogRecord) -> tuple[str, int, str]:
    """Return what makes two records alike."""
    own_news = record.levelno < logging.WARNING and record.name.startswith("shoal.")
    return record.name, record.levelno, message_of(record) if own_news else f"{record.pathname}:{record.lineno}"


def set_up(folder: Path | None, level: Level = "info", stream: TextIO | None = None) -> Limited:
    """Replace the logging of this process; close the returned handler at the end.

    `folder` holds the JSON lines (none: no file). Fatal signals leave a trace of every thread on standard error.
    Raises EnvironmentFault when the folder cannot be written.
    """
    out = sys.stderr if stream is None else stream
    console = logging.StreamHandler(out)
    console.setFormatter(HumanFormatter(_is_journal(out)))
    targets: list[logging.Handler] = [console]
    if folder is not None:
        targets.append(_file(folder))
    limited = Limited(targets)
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(limited)
    root.setLevel(logging.WARNING)
    logging.getLogger("shoal").setLevel(level.upper())
    through_root()
    logging.captureWarnings(True)
    if stream is None and not faulthandler.is_enabled():
        faulthandler.enable()
    return limited


def _file(folder: Path) -> logging.Handler:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handler = _File(folder / LOG_FILE)
    except OSError as error:
        raise EnvironmentFault(f"cannot write the log in {folder}: {error.strerror}") from error
    handler.setFormatter(JsonFormatter())
    return handler


def through_root() -> None:
    """Undo the libraries' own handlers: their lines hold peers' text as well.

    Call it again when they have been imported; some put their handlers there only then.
    """
    for name in NOISY:
        logger = logging.getLogger(name)
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
        logger.propagate = True
        logger.setLevel(logging.WARNING)


def _is_journal(stream: TextIO) -> bool:
    """Return whether the stream goes to systemd's journal, by the device and inode that it names."""
    try:
        place = os.fstat(stream.fileno())
    except (OSError, ValueError):  # a stream without a file
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{place.st_dev}:{place.st_ino}"
