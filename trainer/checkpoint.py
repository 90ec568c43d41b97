"""Checkpoints: a folder a step, whole or not there, whatever instant the process dies at.

A checkpoint is written into a folder of its own under a temporary name, flushed to the disk, and then renamed; the
rename is the one instant at which it comes to be. Nothing is ever overwritten. Tensors are safetensors, the rest is
msgpack, and a list of sizes and hashes lets a reader pass over what a disk has damaged.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from shoal.protocol.errors import EnvironmentFault, UsageError

_TENSORS, _STATE, _CONTENTS = "tensors.safetensors", "state.msgpack", "contents.json"
_NAME = re.compile(r"step-(\d{10})-(\d{3})")
_WRITING = ".writing-"


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint as read: `skipped` names newer ones that were damaged, each with its reason."""

    step: int
    tensors: dict[str, torch.Tensor]
    state: dict[str, Any]
    path: Path
    skipped: tuple[str, ...] = ()


def save(folder: Path, step: int, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any], keep: int = 2) -> Path:
    """Write a checkpoint under `folder`, remove all but the newest `keep`, and return its path.

    `state` holds plain types: None, bool, int of 64 bits, float, str, bytes, lists, and dicts of these; tuples come
    back as lists. Tensors that share memory are stored once. Raises EnvironmentFault when the disk is full or the
    folder cannot be written (earlier checkpoints stay as they are), UsageError for a state of other types.
    """
    if keep < 1:
        raise UsageError(f"at least one checkpoint must be kept, not {keep}")
    unique, aliases = _unshared(tensors)
    packed = _pack({"aliases": aliases, "state": dict(state)})
    writing = folder / f"{_WRITING}{step:010d}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(folder)
        writing.mkdir()
        _write(writing, unique, packed)
        path = _free_name(folder, step)
        writing.rename(path)
        _flush(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(writing, ignore_errors=True)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise EnvironmentFault(f"no checkpoint of step {step} under {folder}: {reason}; earlier ones stay") from error
    for old in list(reversed(_complete(folder)))[keep:]:
        shutil.rmtree(old, ignore_errors=True)
    return path


def load_latest(folder: Path, device: str | torch.device = "cpu") -> Saved | None:
    """Return the newest whole checkpoint under `folder`, or None when there is none."""
    skipped: list[str] = []
    for path in reversed(_complete(folder)):
        try:
            _check(path)
            tensors = load_file(path / _TENSORS, device=str(device))
            packed = msgpack.unpackb((path / _STATE).read_bytes(), strict_map_key=False)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            skipped.append(f"{path.name}: {error}")
            continue
        tensors |= {name: tensors[other] for name, other in packed["aliases"].items()}
        return Saved(int(path.name.split("-")[1]), tensors, packed["state"], path, tuple(skipped))
    return None


def _complete(folder: Path) -> list[Path]:
    """Return finished checkpoints, oldest first; unfinished ones have another name."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in found if _NAME.fullmatch(path.name))


def _free_name(folder: Path, step: int) -> Path:
    """Return a name that no checkpoint has: a step that is saved again (after a resume) gets the next number."""
    taken = [int(path.name[-3:]) for path in _complete(folder) if path.name.startswith(f"step-{step:010d}-")]
    return folder / f"step-{step:010d}-{max(taken, default=-1) + 1:03d}"


def _remove_unfinished(folder: Path) -> None:
    for path in folder.glob(f"{_WRITING}*"):
        shutil.rmtree(path, ignore_errors=True)


def _unshared(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Split tensors into those to store and the names that stand for another (tied weights)."""
    unique: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and place in seen:
            aliases[name] = seen[place]
            continue
        seen[place] = name
        whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
        # A view of a larger storage is copied out: the format refuses tensors that overlap.
        unique[name] = tensor.detach() if whole else tensor.detach().clone(memory_format=torch.contiguous_format)
    return unique, aliases


def _pack(state: dict[str, Any]) -> bytes:
    try:
        return msgpack.packb(state)
    except (TypeError, OverflowError, ValueError) as error:
        raise UsageError(f"a checkpoint's state holds plain types only: {error}") from error


def _write(writing: Path, tensors: dict[str, torch.Tensor], packed: bytes) -> None:
    """Write the three files and wait until the disk has them."""
    save_file(tensors, writing / _TENSORS)
    (writing / _STATE).write_bytes(packed)
    contents = {name: _size_and_hash(writing / name) for name in (_TENSORS, _STATE)}
    (writing / _CONTENTS).write_text(json.dumps(contents), encoding="utf-8")
    for path in (*writing.iterdir(), writing):
        _flush(path)


def _check(path: Path) -> None:
    contents = json.loads((path / _CONTENTS).read_text(encoding="utf-8"))
    for name in (_TENSORS, _STATE):
        if contents[name] != _size_and_hash(path / name):
            raise ValueError(f"{name} is damaged")


def _size_and_hash(path: Path) -> list[Any]:
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
