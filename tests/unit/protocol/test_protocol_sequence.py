import msgpack
import pytest

from shoal.protocol.errors import Malformed
from shoal.protocol.staleness import SequenceCounter, SequenceWindow

A, B = bytes([1]) * 32, bytes([2]) * 32


def refused(window: SequenceWindow, key: bytes, sequence: int, version: int = 0) -> str:
    with pytest.raises(Malformed) as caught:
        window.accept(key, sequence, version)
    return caught.value.reason


def test_a_number_is_accepted_once_and_in_any_order():
    window = SequenceWindow()
    for sequence in (5, 3, 9, 4):
        window.accept(A, sequence, 0)
    for sequence in (5, 3, 9, 4):
        assert refused(window, A, sequence) == "replayed_sequence"
    window.accept(B, 5, 0)


def test_the_window_slides():
    window = SequenceWindow(size=4)
    window.accept(A, 10, 0)
    window.accept(A, 7, 0)
    assert refused(window, A, 6) == "sequence_too_old"
    window.accept(A, 11, 0)
    assert refused(window, A, 7) == "sequence_too_old"
    assert refused(window, A, 10) == "replayed_sequence"
    window.accept(A, 8, 0)


def test_a_version_never_falls_as_the_sequence_grows():
    window = SequenceWindow()
    window.accept(A, 10, 5)
    window.accept(A, 20, 8)
    assert refused(window, A, 21, 7) == "version_fell"
    assert refused(window, A, 15, 4) == "version_fell"
    assert refused(window, A, 15, 9) == "version_fell"
    assert refused(window, A, 9, 6) == "version_fell"
    window.accept(A, 15, 6)
    window.accept(A, 9, 0)
    window.accept(A, 21, 8)
    assert window.newest_version(A) == 8
    assert window.newest_version(B) is None


def test_the_versions_of_what_left_the_window_still_bind():
    window = SequenceWindow(size=4)
    window.accept(A, 10, 5)
    window.accept(A, 14, 9)
    assert refused(window, A, 11, 4) == "version_fell"
    window.accept(A, 12, 5)


def test_what_is_refused_leaves_no_trace():
    window = SequenceWindow()
    window.accept(A, 10, 5)
    before = window.state()
    assert refused(window, A, 11, 4) == "version_fell"
    assert window.state() == before
    window.accept(A, 11, 5)


def test_keys_are_bounded_and_evictions_counted():
    window = SequenceWindow(keys=2)
    window.accept(A, 1, 0)
    window.accept(B, 1, 0)
    window.accept(A, 2, 0)
    window.accept(bytes(32), 1, 0)
    assert window.evicted == 1
    assert refused(window, A, 1) == "replayed_sequence"
    window.accept(B, 1, 0)


def test_the_state_survives_msgpack():
    window = SequenceWindow(size=4, keys=3)
    for sequence, version in ((1, 0), (3, 1), (8, 2)):
        window.accept(A, sequence, version)
    window.accept(B, 2**63 - 1, 2**63 - 1)
    again = SequenceWindow(size=4, keys=3)
    again.restore(msgpack.unpackb(msgpack.packb(window.state())))
    assert again.state() == window.state()
    assert refused(again, A, 8) == "replayed_sequence"
    assert refused(again, A, 3) == "sequence_too_old"
    assert refused(again, A, 9, 1) == "version_fell"


def test_a_block_is_committed_before_its_first_number_is_used():
    log: list[tuple[str, int]] = []
    counter = SequenceCounter(block=3, persist=lambda end: log.append(("persist", end)), start=100)
    assert log == []
    for _ in range(7):
        log.append(("use", counter.next()))
    assert log == [
        ("persist", 103),
        ("use", 100),
        ("use", 101),
        ("use", 102),
        ("persist", 106),
        ("use", 103),
        ("use", 104),
        ("use", 105),
        ("persist", 109),
        ("use", 106),
    ]
    assert counter.position == 107


@pytest.mark.parametrize("used", range(9))
def test_a_crash_at_any_point_reuses_no_number(used: int):
    disk = [0]
    counter = SequenceCounter(block=4, persist=lambda end: disk.__setitem__(0, end))
    given = [counter.next() for _ in range(used)]
    after = SequenceCounter(block=4, persist=lambda end: disk.__setitem__(0, end), start=disk[0])
    assert not {after.next() for _ in range(9)} & set(given)


def test_no_number_is_given_out_when_the_disk_is_full():
    failing = True

    def persist(end: int) -> None:
        if failing:
            raise OSError("disk full")

    counter = SequenceCounter(persist=persist)
    for _ in range(2):
        with pytest.raises(OSError, match="disk full"):
            counter.next()
    failing = False
    assert counter.next() == 0
