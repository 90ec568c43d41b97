"""Prompts are derived, never trusted: task, seed and index follow from swarm, scope, round and slot by a hash."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass

from shoal.protocol.envelope import HASH_SIZE, MAX_NUMBER
from shoal.protocol.errors import ProtocolError
from shoal.protocol.manifest import Manifest, TaskEntry

SHARED = bytes(HASH_SIZE)  # the scope of prompts that the whole swarm has in common
SCOPE_SHARED = 0
SCOPE_OWN = 1
HELD_OUT_SHARE = 8  # one text in so many is never drawn, and refused from peers
MAX_SKIP = 64

_PROMPT_DOMAIN = b"shoal/prompt/1"
_TEXT_DOMAIN = b"shoal/prompt-text/1"
_HELD_OUT_DOMAIN = b"shoal/held-out/1"
_FIELDS = struct.Struct(">32s32sQI")  # swarm id, scope, round, slot
_DRAW = struct.Struct(">QII16x")  # task, seed, index
_31_BITS = 2**31 - 1  # generators take seeds of 32 bits, and a skip must not overflow them


@dataclass(frozen=True, slots=True)
class DerivedPrompt:
    """Which prompt a slot stands for, before texts that are held out are skipped."""

    scope: int
    slot: int
    task: str
    seed: int
    index: int


def derive_prompt(manifest: Manifest, round: int, scope_key: bytes, slot: int) -> DerivedPrompt:
    """The prompt of a slot; `scope_key` is SHARED or the 32-byte key of the peer whose own prompt it is.

    Raises ProtocolError: slot_out_of_range, round_out_of_range, scope_size or no_tasks.
    """
    slots = manifest.limits.shared_slots if scope_key == SHARED else manifest.limits.own_slots
    if not 0 <= slot < slots:
        raise ProtocolError("slot_out_of_range", f"slot {slot} of {slots}")
    if not 0 <= round <= MAX_NUMBER:
        raise ProtocolError("round_out_of_range", f"round {round}")
    if len(scope_key) != HASH_SIZE:
        raise ProtocolError("scope_size", f"{len(scope_key)} bytes")
    digest = hashlib.sha256(_PROMPT_DOMAIN + _FIELDS.pack(manifest.swarm_id, scope_key, round, slot)).digest()
    draw, seed, index = _DRAW.unpack(digest)
    scope = SCOPE_SHARED if scope_key == SHARED else SCOPE_OWN
    return DerivedPrompt(scope, slot, _pick(manifest.tasks, draw).name, seed & _31_BITS, index & _31_BITS)


def _pick(tasks: list[TaskEntry], draw: int) -> TaskEntry:
    """The task at a draw of 64 bits, by weight; the bias of the remainder is below 2^-32 for any sane weights."""
    left = draw % max(sum(task.weight for task in tasks), 1)
    for task in tasks:
        if left < task.weight:
            return task
        left -= task.weight
    raise ProtocolError("no_tasks", "the manifest names no task of positive weight")


def prompt_hash(text: str) -> bytes:
    """The hash of a prompt's text, by which rollouts name it and held-out texts are split off."""
    return hashlib.sha256(_TEXT_DOMAIN + text.encode("utf-8")).digest()


def is_held_out(prompt_hash: bytes) -> bool:
    """Whether a text is kept for evaluation: one in HELD_OUT_SHARE, by a hash of its own, apart from the derivation."""
    return hashlib.sha256(_HELD_OUT_DOMAIN + prompt_hash).digest()[0] % HELD_OUT_SHARE == 0


def resolve(derived: DerivedPrompt, text_of: Callable[[str, int, int], str]) -> int:
    """The index that is really drawn: the first from `derived.index` on whose text is not held out.

    `text_of(task, seed, index)` is the local registry's text. Raises ProtocolError all_held_out after MAX_SKIP skips,
    which only a data set without other texts can cause.
    """
    for index in range(derived.index, derived.index + MAX_SKIP + 1):
        if not is_held_out(prompt_hash(text_of(derived.task, derived.seed, index))):
            return index
    raise ProtocolError("all_held_out", f"{derived.task}: {MAX_SKIP} texts after {derived.index} are all held out")
