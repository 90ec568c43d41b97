"""The log: one printable line whatever a peer wrote, repeats counted, files that rotate and are their owner's alone."""

import io
import json
import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.node import log
from shoal.protocol.errors import EnvironmentFault

HOSTILE = "pretty\x1b[31mred\nERROR forged line\u202e\u2028\u200b"


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    names = ("shoal", *log.NOISY)
    before = list(root.handlers), root.level, {name: logging.getLogger(name).level for name in names}
    yield
    logging.captureWarnings(False)
    for handler in list(root.handlers):
        root.removeHandler(handler)
        if handler not in before[0]:
            handler.close()
    for handler in before[0]:
        root.addHandler(handler)
    root.setLevel(before[1])
    for name, level in before[2].items():
        logging.getLogger(name).setLevel(level)


def entries(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / log.LOG_FILE).read_text().splitlines()]


def test_peers_text_stays_one_harmless_line(tmp_path: Path) -> None:
    stream = io.StringIO()
    log.set_up(tmp_path / "log", stream=stream)
    logging.getLogger("shoal.node.gather").warning("a peer says %s", HOSTILE)
    assert len(stream.getvalue().splitlines()) == 1
    assert r"pretty\x1b[31mred\x0aERROR forged line\u202e\u2028\u200b" in stream.getvalue()
    assert " warning gather: a peer says" in stream.getvalue()
    [entry] = entries(tmp_path / "log")
    assert entry["message"] == r"a peer says pretty\x1b[31mred\x0aERROR forged line\u202e\u2028\u200b"
    assert entry["level"] == "warning"
    assert entry["logger"] == "shoal.node.gather"


def test_a_traceback_is_kept_and_escaped(tmp_path: Path) -> None:
    stream = io.StringIO()
    log.set_up(tmp_path, stream=stream)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logging.getLogger("shoal.node.daemon").exception("a step failed")
    assert "\x1b" not in stream.getvalue()
    assert "ValueError: pretty\\x1b" in stream.getvalue()
    assert any("ValueError" in line for line in entries(tmp_path)[0]["trace"])  # type: ignore[attr-defined]


def test_wrong_arguments_of_a_library_do_not_lose_the_line() -> None:
    stream = io.StringIO()
    log.set_up(None, stream=stream)
    logging.getLogger("libp2p.x").error("%d items", "many")
    assert "%d items (bad log arguments" in stream.getvalue()


def counted(clock: list[float]) -> tuple[log.Limited, io.StringIO, logging.Logger]:
    stream = io.StringIO()
    target = logging.StreamHandler(stream)
    target.setFormatter(log.HumanFormatter())
    limited = log.Limited([target], now=lambda: clock[0])
    logger = logging.Logger("shoal.node.test")
    logger.addHandler(limited)
    return limited, stream, logger


def test_a_storm_from_one_place_is_written_five_times_and_counted() -> None:
    clock = [0.0]
    limited, stream, logger = counted(clock)
    for number in range(1000):
        logger.warning(f"bad thing {number}")  # the text differs, as a hostile peer's would
    assert len(stream.getvalue().splitlines()) == log.BURST
    assert limited.held == 1000 - log.BURST
    clock[0] = 61.0
    logger.warning("another place")
    lines = stream.getvalue().splitlines()
    assert "995 more lines like: bad thing 0" in lines[-2]
    assert "another place" in lines[-1]


def test_own_news_are_held_back_only_when_they_say_the_same() -> None:
    limited, stream, logger = counted([0.0])
    for number in range(100):
        logger.info("step %d ended", number)
    assert len(stream.getvalue().splitlines()) == 100
    for _ in range(100):
        logger.info("still waiting")
    assert len(stream.getvalue().splitlines()) == 100 + log.BURST
    limited.close()
    assert "95 more lines like: still waiting" in stream.getvalue().splitlines()[-1]


def test_what_is_remembered_is_bounded_and_what_is_forgotten_is_told() -> None:
    limited, stream, logger = counted([0.0])
    for _ in range(log.BURST + 3):
        logger.info("first")
    for number in range(3 * log.MAX_WINDOWS):
        logger.info("other %d", number)
    assert len(limited._windows) == log.MAX_WINDOWS
    assert "3 more lines like: first" in stream.getvalue()


def test_files_rotate_and_are_the_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "FILE_BYTES", 2000)
    folder = tmp_path / "log"
    limited = log.set_up(folder, stream=io.StringIO())
    for number in range(400):
        logging.getLogger("shoal.node.loop").info("step %d ended", number)
    limited.close()
    files = sorted(path.name for path in folder.iterdir())
    assert files == [log.LOG_FILE, *(f"{log.LOG_FILE}.{n}" for n in range(1, log.FILES_KEPT + 1))]
    assert all(path.stat().st_size <= 2000 and path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())
    assert folder.stat().st_mode & 0o777 == 0o700
    assert entries(folder)[-1]["message"] == "step 399 ended"


def test_libraries_are_heard_from_warnings_on_and_only_through_us() -> None:
    stream = io.StringIO()
    library = logging.getLogger("hivemind")
    library.addHandler(logging.StreamHandler(stream))
    library.propagate = False
    log.set_up(None, stream=stream)
    library.info("chatter")
    library.warning("trouble \x1b[0m")
    assert stream.getvalue().count("\n") == 1
    assert r"trouble \x1b[0m" in stream.getvalue()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="log"):
        log.set_up(tmp_path / "file" / "log", stream=io.StringIO())


SCRIPT = """
import logging, sys
from pathlib import Path
from shoal.node import log
log.set_up(Path(sys.argv[1]))
for number in range(5):
    logging.getLogger("shoal.node.loop").info("step %d ended", number)
logging.getLogger("shoal.node.loop").warning("slow")
"""


def run(folder: Path, **options: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3] / ".ns")}
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    return subprocess.run(command, env=environment, text=True, timeout=120, check=False, **options)  # type: ignore[call-overload]


def test_a_full_disk_is_told_once_and_the_process_goes_on(tmp_path: Path) -> None:
    def tiny_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))

    done = run(tmp_path, stderr=subprocess.PIPE, preexec_fn=tiny_files)
    assert done.returncode == 0
    assert done.stderr.count("takes no more lines") == 1
    assert "warning loop: slow" in done.stderr


def test_in_the_journal_lines_carry_their_priority_and_no_time(tmp_path: Path) -> None:
    out = tmp_path / "stderr"
    with out.open("w") as stream:
        place = os.fstat(stream.fileno())
        os.environ["JOURNAL_STREAM"] = f"{place.st_dev}:{place.st_ino}"
        try:
            done = run(tmp_path / "log", stderr=stream)
        finally:
            del os.environ["JOURNAL_STREAM"]
    assert done.returncode == 0
    assert out.read_text().splitlines() == [
        *(f"<6>loop: step {number} ended" for number in range(5)),
        "<4>warning loop: slow",
    ]
