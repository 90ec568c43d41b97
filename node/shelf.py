"""What a home keeps of its swarms: manifests and revisions, invites, and what each source turned out to be.

    ID.toml        the manifest in force              ID.invite         the chain by which this home's key belongs here
    ID.rN.toml     revision N, until its round        ID.issued.jsonl   invites that this home gave out, without secrets
    sources.json   source → ID

Files are written whole or not at all, so that commands may write them while a node runs on the same home.
"""

import json
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.node.sources import read_text
from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.protocol.invite import MAX_CHAIN
from shoal.protocol.manifest import Manifest

_KEPT = re.compile(r"([0-9a-f]{64})\.toml")


@dataclass(frozen=True, slots=True)
class Shelf:
    """The folder `swarms` of a home."""

    folder: Path

    def kept(self, swarm_id: bytes) -> Manifest | None:
        """Return the manifest that was in force last, None for a swarm that this home has not joined."""
        path = self._path(swarm_id, "toml")
        return self._read(path) if path.exists() else None

    def newest(self, swarm_id: bytes) -> Manifest | None:
        """Return the newest manifest of a swarm that is known here, in force or not."""
        kept = self.kept(swarm_id)
        return kept and [kept, *self.revisions(swarm_id, kept.revision)][-1]

    def swarms(self) -> list[bytes]:
        """Return the ids of the swarms that this home has joined."""
        names = sorted(path.name for path in self.folder.glob("*.toml")) if self.folder.is_dir() else []
        return [bytes.fromhex(match[1]) for name in names if (match := _KEPT.fullmatch(name))]

    def keep(self, manifest: Manifest) -> None:
        """Make this the manifest in force, and drop the revisions that it has reached or overtaken."""
        self._write(self._path(manifest.swarm_id, "toml"), manifest.to_toml().encode())
        for number, path in self._numbers(manifest.swarm_id).items():
            if number <= manifest.revision:
                path.unlink(missing_ok=True)

    def put(self, manifest: Manifest) -> None:
        """Keep a revision beside the manifest in force; a node that runs on this home finds it there."""
        self._write(self._path(manifest.swarm_id, f"r{manifest.revision}.toml"), manifest.to_toml().encode())

    def later(self, swarm_id: bytes, revision: int) -> list[Path]:
        """Return the files of the revisions above a number, in their order."""
        return [path for number, path in sorted(self._numbers(swarm_id).items()) if number > revision]

    def revisions(self, swarm_id: bytes, revision: int) -> list[Manifest]:
        """Return the revisions above a number, in their order; raises EnvironmentFault for a damaged file."""
        return [self._read(path) for path in self.later(swarm_id, revision)]

    def remember(self, source: str, swarm_id: bytes) -> None:
        """Note which swarm a source named."""
        self._write(self.folder / "sources.json", json.dumps(self._sources() | {source: swarm_id.hex()}).encode())

    def remembered(self, source: str) -> bytes | None:
        """Return the id of the swarm that a source named, None for one that was never read."""
        found = self._sources().get(source)
        return None if found is None else bytes.fromhex(found)

    def keep_invite(self, swarm_id: bytes, chain: bytes) -> None:
        """Keep the chain by which this home's key belongs to an operator of the swarm."""
        self._write(self._path(swarm_id, "invite"), chain)

    def invite(self, swarm_id: bytes) -> bytes:
        """Return that chain, b"" when there is none."""
        try:
            with self._path(swarm_id, "invite").open("rb") as file:
                return file.read(MAX_CHAIN)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise EnvironmentFault(f"cannot read {self._path(swarm_id, 'invite')}: {error.strerror}") from error

    def note_issued(self, swarm_id: bytes, entry: dict[str, Any]) -> None:
        """Add an invite to those that this home gave out."""
        path = self._path(swarm_id, "issued.jsonl")
        earlier = path.read_bytes() if path.exists() else b""
        self._write(path, earlier + json.dumps(entry).encode() + b"\n")

    def issued(self, swarm_id: bytes) -> list[dict[str, Any]]:
        """Return the invites that this home gave out, in their order."""
        path = self._path(swarm_id, "issued.jsonl")
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def _path(self, swarm_id: bytes, suffix: str) -> Path:
        return self.folder / f"{swarm_id.hex()}.{suffix}"

    def _numbers(self, swarm_id: bytes) -> dict[int, Path]:
        prefix = f"{swarm_id.hex()}.r"
        found = {
            path.name.removeprefix(prefix).removesuffix(".toml"): path for path in self.folder.glob(f"{prefix}*.toml")
        }
        return {int(text): path for text, path in found.items() if text.isascii() and text.isdecimal()}

    def _read(self, path: Path) -> Manifest:
        try:
            return read_text(path.read_bytes(), str(path))
        except OSError as error:
            raise EnvironmentFault(f"cannot read {path}: {error.strerror}") from error
        except UsageError as error:
            raise EnvironmentFault(
                f"{error}; delete the file, and the manifest is taken from its source again"
            ) from error

    def _sources(self) -> dict[str, str]:
        path = self.folder / "sources.json"
        try:
            return json.loads(path.read_bytes()) if path.exists() else {}
        except (OSError, ValueError) as error:
            raise EnvironmentFault(f"{path} is damaged ({error}): delete it") from error

    def _write(self, path: Path, data: bytes) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentFault(f"cannot make {self.folder}: {error.strerror}") from error
        write_whole(path, data)


def write_whole(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file so that a reader sees the old content or the new one; raises EnvironmentFault."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror}") from error
