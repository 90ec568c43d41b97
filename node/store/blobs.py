"""Blobs on disk, each under the name of its content: bounded, and whole or not there.

Two folders hold them: `kept` what a recorded pass was made of or what is served, `spare` the rest. When the space is
used up, the oldest of `spare` goes first, then the oldest of `kept`. The files are the only index: memory stays flat
however many there are. Nothing is flushed to the disk; what a power cut has torn is found out when it is read.
"""

import contextlib
import hashlib
import heapq
import os
import re
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from shoal.protocol.errors import EnvironmentFault

KEPT, SPARE, _WRITING = "kept", "spare", "writing"
_NAME = re.compile(r"[0-9a-f]{64}\Z")
_BLOCK = 4096  # bytes; a file takes whole blocks, and most blobs of small models are smaller than one
_BATCH = 8192  # files evicted in one scan at most
_SLACK = 50 * _BLOCK  # a scan frees a fiftieth more than is asked: a full store is not scanned for every blob


class DamagedBlob(EnvironmentFault):
    """A file is there but holds other bytes than its name says."""


def read_blob(folder: Path, digest: bytes) -> bytes | None:
    """Return a blob from a store's folder, None when it is not there. Raises DamagedBlob for one of other content.

    It changes nothing: a second process may read what a node is writing.
    """
    for group in (KEPT, SPARE):
        path = _path(folder, group, digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise DamagedBlob(f"blob {path} cannot be read: {error.strerror}") from error
        if hashlib.sha256(data).digest() != digest:
            raise DamagedBlob(f"blob {path} holds other bytes than were stored")
        return data
    return None


class BlobStore:
    """Content-addressed files of at most `max_bytes` in all, counted in whole blocks; any thread may call."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.counters: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._last = 0  # nanoseconds; no two files are equally old
        self._used: int | None = None  # bytes; counted when first needed

    @property
    def used_bytes(self) -> int:
        """Return the disk space that is used, in whole blocks."""
        with self._lock:
            return self._count()

    def put(self, data: bytes, *, kept: bool = False) -> bytes:
        """Write a blob and return its SHA-256; what is too large for the whole store is counted and not written.

        A blob that is there already becomes the newest, and one that is kept stays so. Raises EnvironmentFault when the
        disk is full or the folder cannot be written.
        """
        digest = hashlib.sha256(data).digest()
        size = _blocks(len(data))
        with self._lock:
            if size > self.max_bytes:
                self.counters["too_large"] += 1
                return digest
            try:
                kept = kept or _path(self.folder, KEPT, digest).exists()
                self._forget(digest)
                if self._count() + size > self.max_bytes:
                    self._evict(self.max_bytes - size - self.max_bytes // _SLACK * _BLOCK)
                self._write(_path(self.folder, KEPT if kept else SPARE, digest), data)
            except OSError as error:
                place = error.filename or self.folder
                raise EnvironmentFault(f"cannot write {place}: {error.strerror}; free some space") from error
            self._used = self._count() + size
        return digest

    def get(self, digest: bytes) -> bytes | None:
        """Return a blob; None when it is not there, or damaged, which is counted."""
        try:
            return read_blob(self.folder, digest)
        except DamagedBlob:
            self.counters["damaged"] += 1
            return None

    def remove(self, digest: bytes) -> None:
        """Remove a blob; one that is not there is no error."""
        with self._lock:
            self._forget(digest)

    def iterate(self) -> Iterator[bytes]:
        """Yield the digests of all blobs, in no order; other files in the folders are passed over."""
        for group in (SPARE, KEPT):
            for entry in _files(self.folder / group):
                yield bytes.fromhex(entry.name)

    def sizes(self) -> dict[str, float]:
        """Return the space that is used and allowed, and how many blobs were evicted, damaged or too large so far.

        It never waits: the used space is left out until the first blob was put, which counts it.
        """
        used = {} if self._used is None else {"blobs_bytes": float(self._used)}
        lost = {f"{reason}_blobs": float(self.counters[reason]) for reason in ("evicted", "damaged", "too_large")}
        return used | {"blobs_max_bytes": float(self.max_bytes)} | lost

    def _count(self) -> int:
        """Return the used space; the first time, also clear away what an earlier process left half written."""
        if self._used is None:
            shutil.rmtree(self.folder / _WRITING, ignore_errors=True)
            groups = (SPARE, KEPT)
            self._used = sum(_blocks(_size(entry)) for group in groups for entry in _files(self.folder / group))
        return self._used

    def _write(self, path: Path, data: bytes) -> None:
        writing = self.folder / _WRITING / path.name
        writing.parent.mkdir(parents=True, exist_ok=True)
        try:
            writing.write_bytes(data)
            self._last = max(self._last + 1, writing.stat().st_mtime_ns)
            os.utime(writing, ns=(self._last, self._last))
            path.parent.mkdir(parents=True, exist_ok=True)
            writing.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                writing.unlink(missing_ok=True)
            raise

    def _forget(self, digest: bytes) -> None:
        for group in (KEPT, SPARE):
            path = _path(self.folder, group, digest)
            with contextlib.suppress(FileNotFoundError):
                size = path.stat().st_size
                used = self._count()
                path.unlink()
                self._used = used - _blocks(size)

    def _evict(self, room: int) -> None:
        """Remove the oldest blobs until at most `room` bytes are used."""
        for group in (SPARE, KEPT):
            while self._count() > room:
                oldest = heapq.nsmallest(_BATCH, _files(self.folder / group), key=_age)
                if not oldest:
                    break
                for entry in oldest:
                    if self._count() <= room:
                        break
                    self._forget(bytes.fromhex(entry.name))
                    self.counters["evicted"] += 1
        if self._count() > max(room, 0):
            self._used = None  # somebody else has removed files
            self._count()


def _path(folder: Path, group: str, digest: bytes) -> Path:
    name = digest.hex()
    return folder / group / name[:2] / name


def _files(group: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the blobs of a group; whatever else lies there is none of ours and stays."""
    for shelf in _entries(group):
        if shelf.is_dir(follow_symlinks=False):
            for entry in _entries(Path(shelf.path)):
                ours = _NAME.match(entry.name) and entry.name.startswith(shelf.name)
                if ours and entry.is_file(follow_symlinks=False):
                    yield entry


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except FileNotFoundError:
        return


def _size(entry: os.DirEntry[str]) -> int:
    with contextlib.suppress(FileNotFoundError):
        return entry.stat(follow_symlinks=False).st_size
    return 0


def _age(entry: os.DirEntry[str]) -> int:
    with contextlib.suppress(FileNotFoundError):
        return entry.stat(follow_symlinks=False).st_mtime_ns
    return 0


def _blocks(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
