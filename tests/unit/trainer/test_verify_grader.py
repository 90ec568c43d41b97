"""The grader without workers: strings are graded in place, and what needs no grading gets none. Also the frames."""

import os

import pytest

from shoal.protocol.errors import UsageError
from shoal.trainer.tasks.base import Prompt, Unscorable
from shoal.trainer.tasks.registry import TASK_SETS, TaskSpec
from shoal.trainer.tasks.strings import StringTask
from shoal.trainer.verify import Grader, Score
from shoal.trainer.verify_frames import LARGEST_FRAME, read_frame, write_frame


def test_strings_are_graded_in_place_and_in_order() -> None:
    with Grader(TASK_SETS["strings"]) as grader:
        prompts = [grader.registry.prompt(name, 1, index) for name in grader.registry.names for index in range(3)]
        items = [(prompt, text) for prompt in prompts for text in (prompt.answer or "", "?")]
        assert [score.reward for score in grader.grade(items)] == [1.0, 0.0] * len(prompts)
        assert grader.counters == {"scored": len(items)}  # and no worker was started
        assert grader.grade([]) == []


def test_a_text_over_the_cap_is_not_looked_at() -> None:
    with Grader([TaskSpec("strings/copy"), TaskSpec("rg/chain_sum")]) as grader:
        short = grader.registry.prompt("strings/copy", 1, 0)
        long = grader.registry.prompt("rg/chain_sum", 1, 0)
        scores = grader.grade([(short, "a" * 65), (short, "a" * 64), (long, "1" * 2**20)])
        assert scores == [Score(None, "too_long"), Score(0.0), Score(None, "too_long")]
        assert grader.counters["too_long"] == 2
        assert grader.counters["worker_starts"] == 0


def test_an_inline_task_may_have_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    def grade(self: StringTask, prompt: Prompt, completion: str) -> float:
        raise Unscorable("no_gold")

    monkeypatch.setattr(StringTask, "grade", grade)
    with Grader([TaskSpec("strings/copy")]) as grader:
        assert grader.grade([(grader.registry.prompt("strings/copy", 1, 0), "a")]) == [Score(None, "no_gold")]


@pytest.mark.parametrize(
    "limits", [{"workers": 0}, {"cpu_seconds": 0.0}, {"memory_bytes": 0}, {"wall_seconds": 1.0, "cpu_seconds": 1.0}]
)
def test_limits_must_make_sense(limits: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="limits"):
        Grader([TaskSpec("strings/copy")], **limits)  # type: ignore[arg-type]


def test_a_closed_grader_says_so() -> None:
    grader = Grader([TaskSpec("strings/copy")])
    grader.close()
    with pytest.raises(UsageError, match="closed"):
        grader.grade([(grader.registry.prompt("strings/copy", 1, 0), "a")])


def test_frames_return_what_was_written() -> None:
    reading, writing = os.pipe()
    for value in ("ready", ["rg/x", 2**63, 0, "text \ud7ff\n\0"], {"limits": {"cpu_seconds": 0.5}}, None):
        write_frame(writing, value)
        assert read_frame(reading) == value
    os.close(writing)
    with pytest.raises(EOFError):
        read_frame(reading)
    os.close(reading)


@pytest.mark.parametrize("tail", [b"\x05\x00", b"\x05\x00\x00\x00ab", b"\xff\xff\xff\xff"])
def test_broken_frames_are_an_end(tail: bytes) -> None:
    reading, writing = os.pipe()
    os.write(writing, tail)
    os.close(writing)
    with pytest.raises(EOFError):
        read_frame(reading)
    os.close(reading)


def test_a_frame_has_a_largest_size() -> None:
    with pytest.raises(ValueError, match="exceeds"):
        write_frame(1, "x" * LARGEST_FRAME)


@pytest.mark.parametrize("body", [b"\xc1", b"\x91", b"\xa4tex\xd3", b"\x01\x01", b"\x91" * 5000 + b"\x01", b""])
def test_a_frame_that_holds_no_value_is_an_end(body: bytes) -> None:
    reading, writing = os.pipe()
    os.write(writing, len(body).to_bytes(4, "little") + body)
    with pytest.raises(EOFError, match="no value"):
        read_frame(reading)
    os.close(writing)
    os.close(reading)
