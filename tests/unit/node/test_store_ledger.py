"""The writer of the ledger: numbers that are never used twice, passes that are written whole, a bounded memory."""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from node_pieces import identity
from store_pieces import KEY, SETTINGS, a_pass, facts, open_store

from shoal.node.store.blobs import BlobStore
from shoal.node.store.ledger import Store
from shoal.node.store.reader import LedgerReader
from shoal.node.store.records import PeerTotals, Position
from shoal.protocol.errors import EnvironmentFault
from shoal.protocol.sequence import SequenceCounter
from shoal.trainer.model import DEFAULT_MODEL, Policy, load_policy


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(DEFAULT_MODEL)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shoal.db"


def killed(work: Callable[[], None]) -> None:
    """Do work in another process, which is killed right after it."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_a_new_ledger_begins_at_the_time_in_milliseconds(path: Path) -> None:
    store = open_store(path, now=lambda: 1_700_000_000.5)
    assert store.sequence_start() == 1_700_000_000_500
    assert store.last_position() == Position(-1, 0, 1_700_000_000_500)
    store.close()
    assert open_store(path, now=lambda: 2_000_000_000.0).sequence_start() == 1_700_000_000_500


def test_sequence_numbers_are_never_given_out_twice_whenever_the_process_dies(path: Path) -> None:
    seen: list[int] = []
    read, write = os.pipe()

    def work() -> None:
        store = open_store(path)
        counter = SequenceCounter(store.commit_sequence, store.sequence_start(), block=4)
        os.write(write, b"".join(counter.next().to_bytes(8, "big") for _ in range(6)))

    for _ in range(3):
        killed(work)
        data = os.read(read, 1 << 16)
        seen += [int.from_bytes(data[at : at + 8], "big") for at in range(0, len(data), 8)]
    assert len(seen) == len(set(seen)) == 18
    assert seen == sorted(seen)


def test_a_sequence_never_falls(path: Path) -> None:
    store = open_store(path)
    start = store.sequence_start()
    store.commit_sequence(start + 64)
    store.commit_sequence(start + 8)
    assert store.sequence_start() == start + 64


def test_the_position_outlives_the_process_and_versions_never_fall(path: Path) -> None:
    killed(lambda: open_store(path).enter(7, 2, 5_000_900))
    store = open_store(path)
    assert store.last_position() == Position(7, 2, 5_000_900)
    store.enter(8, 1, 5_000_100)  # a node that went on from an older checkpoint and forgot to add its base
    assert store.last_position() == Position(8, 1, 5_000_900)
    store.enter(3, 1, 5_000_901)  # the clock had been wrong: time begins anew
    assert store.last_position() == Position(3, 1, 5_000_901)


def test_numbers_that_must_outlive_a_power_cut_are_flushed(path: Path, policy: Policy) -> None:
    store = open_store(path)
    told: list[str] = []
    store._connection.set_trace_callback(told.append)

    def flushed(work: Callable[[], object], mark: str) -> bool:
        told.clear()
        work()
        at = next(at for at, statement in enumerate(told) if mark in statement)
        modes = [statement for statement in told[:at] if "synchronous" in statement]
        assert store._connection.execute("PRAGMA synchronous").fetchone()[0] == 1, "NORMAL again afterwards"
        return modes == ["PRAGMA synchronous = FULL"]

    assert flushed(lambda: store.commit_sequence(10), "UPDATE sequence")
    assert flushed(lambda: store.enter(1, 1, 1), "UPDATE position")
    assert not flushed(lambda: store.record(facts(*a_pass(policy))), "INSERT INTO passes")


def test_a_pass_is_read_back_as_it_was_written(path: Path, policy: Policy) -> None:
    times = iter((5_000.0, 5_010.0, 5_015.0, 5_020.0))
    store = open_store(path, now=lambda: next(times))
    result, notes = a_pass(policy, round=3, number=2)
    store.enter(3, 2, 9)
    store.enter(4, 1, 9)  # a pass is recorded while the next one has begun
    written = facts(result, notes)
    number = store.record(written).pass_id
    [done] = store.reader.passes(5)
    assert (done.started, done.ended) == (5_010.0, 5_020.0)
    expected = replace(written.done, id=number, settings_id=1, started=5_010.0, ended=5_020.0)
    assert replace(done, report={}, seconds={}) == replace(expected, report={}, seconds={})
    assert done.report["advantages"] == [0.5, -0.5, 0.5, -0.5]
    assert (done.version_before, done.version_after, done.trained_rows, done.used_rows) == (3, 4, 3, 4)
    assert store.reader.rollouts(number) == list(written.rollouts)
    assert store.reader.counts(number) == {"header/stale": 2, "screen/accepted": 1}


def test_what_became_of_each_rollout(path: Path, policy: Policy) -> None:
    store = open_store(path)
    own, used, refused = store.reader.rollouts(store.record(facts(*a_pass(policy, round=1))).pass_id)
    assert (own.own, own.key, own.action, own.used_rows, own.trained_rows) == (True, KEY, "own", 2, 2)
    assert [row.reward for row in own.rows] == [1.0, 0.0]
    assert (used.operator, used.action, used.place, used.used_rows, used.trained_rows) == (
        "operator-5",
        "accept",
        0,
        2,
        1,
    )
    assert (used.age, used.lag) == (1, 0), "sampled for round 0, mixed in round 1"
    assert (refused.action, refused.layer, refused.reason) == ("reject", "text", "too_long")
    assert (refused.place, refused.rows, refused.used_rows) == (None, (), 0)


def test_peers_are_added_up(path: Path, policy: Policy) -> None:
    clock = [100.0]
    store = open_store(path, now=lambda: clock[0])
    for round in range(3):
        clock[0] += 60
        store.record(facts(*a_pass(policy, round=round)))
    peers = {peer.key: peer for peer in store.reader.peers()}
    good, bad = peers[identity(5).key], peers[identity(6).key]
    assert (good.fetched, good.accepted, good.refused, good.used, good.used_rows, good.trained_rows) == (
        3,
        3,
        0,
        3,
        6,
        3,
    )
    assert (good.first_seen, good.last_seen, good.last_round) == (160.0, 280.0, 2)
    assert (bad.refused, bad.used, bad.refusals) == (3, 0, {"text/too_long": 3})
    assert store.peer_totals(bad.key) == PeerTotals(used=0, refused=3)
    assert store.peer_totals(bytes(32)) == PeerTotals()
    totals = store.reader.totals()
    assert totals == {"passes": 3, "shared": 3, "fetched": 6, "refused": 3, "used_rows": 6, "trained_rows": 3}


def test_own_announcements_are_found_again_to_be_served(path: Path, policy: Policy) -> None:
    store = open_store(path)
    for round in range(4):
        store.record(facts(*a_pass(policy, round=round)))
    served = store.reader.served(since_round=2)
    assert [round for round, _, _ in served] == [2, 3]
    assert [digest for _, digest, _ in served] == [announced[142:174] for _, _, announced in served]


def test_a_pass_is_written_whole_or_not_at_all(path: Path, policy: Policy) -> None:
    result, notes = a_pass(policy)

    def work() -> None:
        store = open_store(path)
        store._connection.set_trace_callback(lambda text: os.kill(os.getpid(), 9) if "INTO peers" in text else None)
        store.record(facts(result, notes))

    open_store(path).close()
    killed(work)
    store = open_store(path)
    assert store.reader.totals()["passes"] == store.reader.totals()["fetched"] == 0
    store.record(facts(result, notes))
    assert store.reader.totals()["passes"] == 1


def test_old_rounds_are_forgotten_and_their_blobs_named(path: Path, policy: Policy) -> None:
    store = open_store(path, keep_rounds=3)
    forgotten: list[bytes] = []
    for round in range(8):
        forgotten += store.record(facts(*a_pass(policy, round=round))).forgotten
    assert [done.round for done in store.reader.passes(100)] == [4, 5, 6, 7]
    assert store.reader.totals()["fetched"] == 8
    assert not store.reader.counts(1)
    own = {record.digest for number in range(5, 9) for record in store.reader.rollouts(number) if record.own}
    assert len(set(forgotten)) == 4, "what peers sent has the same blob in every round, and is named still"
    assert own.isdisjoint(forgotten)


def test_peers_and_settings_that_nothing_speaks_of_any_more_are_forgotten_too(path: Path, policy: Policy) -> None:
    store = open_store(path, keep_rounds=2)
    store.record(facts(*a_pass(policy), replace(SETTINGS, temperature=0.5)))
    for round in (1, 2, 3):
        result, notes = a_pass(policy, round=round)
        notes.came.clear()
        result = replace(
            result,
            peers=[],
            mixed=replace(result.mixed, rows=[], origins=[]),
            report=replace(result.report, trained=[]),
        )
        store.record(facts(result, notes))
    assert store.reader.peers() == []
    assert [row[0] for row in store._connection.execute("SELECT id FROM settings")] == [2]


def test_the_file_stops_growing_when_old_rounds_go(path: Path, policy: Policy) -> None:
    store = open_store(path, keep_rounds=20)
    sizes: list[int] = []
    for round in range(120):
        store.record(facts(*a_pass(policy, round=round)))
        sizes.append(store._connection.execute("PRAGMA page_count").fetchone()[0])
    assert max(sizes[40:]) <= max(sizes[:40]) + 2
    shorter = open_store(path, keep_rounds=2)
    shorter.record(facts(*a_pass(policy, round=120)))
    assert shorter._connection.execute("PRAGMA page_count").fetchone()[0] < sizes[-1] * 0.8, "space is given back"
    assert shorter.sizes()["ledger_bytes"] > 0


def test_equal_settings_are_kept_once(path: Path, policy: Policy) -> None:
    store = open_store(path)
    for round, settings in enumerate((SETTINGS, SETTINGS, replace(SETTINGS, temperature=0.5), SETTINGS)):
        store.record(facts(*a_pass(policy, round=round), settings))
    assert [done.settings_id for done in store.reader.passes(4)] == [1, 1, 2, 1]


def test_several_threads_write_and_read_at_once(path: Path, policy: Policy) -> None:
    store = open_store(path)
    start = store.sequence_start()
    passes = [facts(*a_pass(policy, round=round)) for round in range(40)]
    errors: list[Exception] = []

    def guarded(work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 (the thread has no other way to tell)
                errors.append(error)

        return threading.Thread(target=run)

    def record(part: int) -> None:
        for done in passes[part::2]:
            store.record(done)

    def reserve() -> None:
        for number in range(60):
            store.commit_sequence(start + number)
            store.enter(number, 1, number)

    def read() -> None:
        for _ in range(60):
            for done in store.reader.passes(3):
                assert len(store.reader.rollouts(done.id)) == 3

    threads = [guarded(lambda: record(0)), guarded(lambda: record(1)), guarded(reserve), guarded(read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert store.reader.totals()["passes"] == 40
    assert store.sequence_start() == start + 59


def test_another_process_reads_while_the_node_writes(path: Path, policy: Policy) -> None:
    store = open_store(path)
    store.record(facts(*a_pass(policy)))
    with LedgerReader(path) as reader:
        store.record(facts(*a_pass(policy, round=1)))
        assert [done.round for done in reader.passes(9)] == [0, 1]
        assert reader.span() == (1, 2)
        assert reader.one_pass(3) is None
        with pytest.raises(Exception, match="readonly"):
            reader._connection.execute("DELETE FROM passes")


def test_a_ledger_that_was_closed_is_read_and_a_second_close_does_nothing(path: Path, policy: Policy) -> None:
    store = open_store(path)
    store.record(facts(*a_pass(policy)))
    store.close()
    store.close()
    with LedgerReader(path) as reader:
        assert reader.totals()["passes"] == 1


def test_a_full_disk_costs_the_pass_and_not_the_ledger(path: Path, policy: Policy) -> None:
    store = open_store(path)
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}")

    def fill() -> None:
        for round in range(50):
            store.record(facts(*a_pass(policy, round=round)))

    with pytest.raises(EnvironmentFault, match="disk is full"):
        fill()
    whole = store.reader.totals()["passes"]
    assert store.reader.totals()["shared"] == whole
    store._connection.execute("PRAGMA max_page_count = 1000000")
    store.record(facts(*a_pass(policy, round=60)))
    assert store.reader.totals()["passes"] == whole + 1


def test_a_row_that_no_node_wrote_is_named(path: Path, policy: Policy) -> None:
    store = open_store(path)
    store.record(facts(*a_pass(policy)))
    store._connection.execute("UPDATE rollouts SET rows = '[[1, 2]]'")
    with pytest.raises(EnvironmentFault, match="no node writes"):
        store.reader.rollouts(1)


def test_a_store_and_its_blobs_are_what_a_node_needs(tmp_path: Path) -> None:
    """The names that the daemon uses."""
    store, blobs = Store(tmp_path / "shoal.db"), BlobStore(tmp_path / "blobs", 1 << 20)
    assert set(store.sizes()) == {"ledger_bytes"}
    assert "blobs_bytes" not in blobs.sizes(), "a look at the status counts no files"
    blobs.put(b"one")
    assert {"blobs_bytes", "blobs_max_bytes", "evicted_blobs", "damaged_blobs"} <= set(blobs.sizes())
