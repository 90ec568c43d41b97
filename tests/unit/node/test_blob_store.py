"""Blobs on disk: found by content, bounded, and safe from what a crash or a person leaves behind."""

import hashlib
import os
import random
import threading
from pathlib import Path

import pytest

from shoal.node.store.blobs import BlobStore, DamagedBlob, read_blob
from shoal.protocol.errors import EnvironmentFault

BLOCK = 4096
ROOMY = 2**20


def path_of(store: BlobStore, digest: bytes) -> Path:
    [path] = store.folder.rglob(digest.hex())
    return path


def disk(store: BlobStore) -> int:
    files = [file for file in store.folder.rglob("*") if file.is_file()]
    return sum(-(-file.stat().st_size // BLOCK) * BLOCK for file in files)


def test_a_blob_is_found_under_its_hash_also_by_a_later_process(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, ROOMY)
    digest = store.put(b"hello")
    assert digest == hashlib.sha256(b"hello").digest()
    later = BlobStore(tmp_path, ROOMY)
    assert later.get(digest) == b"hello"
    assert list(later.iterate()) == [digest]
    assert later.used_bytes == BLOCK
    assert later.get(bytes(32)) is None


def test_a_blob_that_is_put_twice_takes_one_place(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, ROOMY)
    for kept in (False, True, False):
        digest = store.put(b"x" * 5000, kept=kept)
    assert store.used_bytes == disk(store) == 2 * BLOCK
    assert path_of(store, digest).is_relative_to(tmp_path / "kept"), "what was kept stays kept"
    store.remove(digest)
    store.remove(digest)
    assert (store.get(digest), store.used_bytes) == (None, 0)


def test_the_oldest_goes_first_and_what_is_kept_goes_last(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 4 * BLOCK)
    kept = [store.put(b"kept %d" % n, kept=True) for n in range(2)]
    spare = [store.put(b"spare %d" % n) for n in range(2)]
    newest = store.put(b"newest")
    assert [store.get(digest) is not None for digest in (*kept, *spare, newest)] == [True, True, False, True, True]
    for n in range(3):
        newest = store.put(b"more %d" % n, kept=True)
    assert [store.get(digest) is not None for digest in (*kept, newest)] == [False, True, True]
    assert store.sizes()["evicted_blobs"] == 4
    assert store.used_bytes == disk(store) <= store.max_bytes


def test_the_bound_holds_whatever_is_put(tmp_path: Path) -> None:
    rng = random.Random(1)
    store = BlobStore(tmp_path, 40 * BLOCK)
    for number in range(150):
        store.put(rng.randbytes(rng.randrange(1, 6 * BLOCK)), kept=rng.random() < 0.5)
        if number % 50 == 0:
            store = BlobStore(tmp_path, 40 * BLOCK)
        assert store.used_bytes <= store.max_bytes
    assert store.used_bytes == disk(store) > store.max_bytes // 2


def test_a_bound_that_was_lowered_holds_from_the_next_blob_on(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, ROOMY)
    for number in range(20):
        store.put(b"%d" % number)
    smaller = BlobStore(tmp_path, 5 * BLOCK)
    newest = smaller.put(b"newest")
    assert smaller.get(newest) == b"newest"
    assert disk(smaller) <= 5 * BLOCK


def test_a_blob_larger_than_the_store_is_counted_and_pushes_nothing_out(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 2 * BLOCK)
    small = store.put(b"small")
    large = store.put(bytes(3 * BLOCK))
    assert (store.get(small), store.get(large)) == (b"small", None)
    assert store.sizes()["too_large_blobs"] == 1


def test_a_damaged_blob_is_not_handed_out_and_a_new_put_heals_it(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, ROOMY)
    digest = store.put(b"as it was")
    path_of(store, digest).write_bytes(b"as it is!")
    assert store.get(digest) is None
    assert store.sizes()["damaged_blobs"] == 1
    with pytest.raises(DamagedBlob, match="other bytes"):
        read_blob(tmp_path, digest)
    store.put(b"as it was")
    assert store.get(digest) == b"as it was"


def test_half_written_files_are_cleared_and_foreign_ones_left_alone(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, ROOMY)
    digest = store.put(b"good")
    half = tmp_path / "writing" / ("ab" * 32)
    half.parent.mkdir(exist_ok=True)
    half.write_bytes(b"torn")
    strays = [tmp_path / "notes.txt", tmp_path / "spare" / "zz" / "readme", tmp_path / "spare" / digest.hex()]
    strays.append(tmp_path / "kept" / "cd" / ("ab" * 32))  # a name that does not belong on this shelf
    for stray in strays:
        stray.parent.mkdir(parents=True, exist_ok=True)
        stray.write_bytes(b"mine")
    later = BlobStore(tmp_path, BLOCK)
    assert list(later.iterate()) == [digest]
    assert later.used_bytes == BLOCK
    assert not half.exists()
    later.put(b"pushes the good one out")
    assert later.get(digest) is None
    assert all(stray.read_bytes() == b"mine" for stray in strays)


def test_reading_needs_no_right_to_write_and_changes_nothing(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, ROOMY)
    digest = store.put(b"read me")
    before = sorted(tmp_path.rglob("*"))
    assert read_blob(tmp_path, digest) == b"read me"
    assert read_blob(tmp_path / "nowhere", digest) is None
    assert sorted(tmp_path.rglob("*")) == before


def test_blobs_removed_by_hand_do_not_stop_the_store(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 3 * BLOCK)
    for number in range(3):
        path_of(store, store.put(b"%d" % number)).unlink()
    digest = store.put(b"new")
    assert store.get(digest) == b"new"
    store.put(b"newer")
    assert store.used_bytes == disk(store)


def test_a_folder_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EnvironmentFault, match="cannot write"):
        BlobStore(tmp_path / "file", ROOMY).put(b"x")


def test_threads_may_put_and_read_at_once(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 30 * BLOCK)
    errors: list[str] = []

    def work(number: int) -> None:
        rng = random.Random(number)
        for _ in range(60):
            data = b"%d" % rng.randrange(50)
            found = store.get(store.put(data, kept=rng.random() < 0.3))
            if found not in (data, None):  # another thread may have pushed it out
                errors.append(f"{data!r} gave {found!r}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert store.used_bytes == disk(store) <= store.max_bytes
    assert not os.listdir(tmp_path / "writing")
