"""The tables of a manifest: tasks, limits, admission. `forbid_unknown_fields`: a misspelt key is an error."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from shoal.protocol.limits import MIB
from shoal.protocol.wire import MILLION, TaskName

Positive = Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class TaskEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One task of the swarm; `data_sha256` pins a data set by content."""

    name: TaskName
    weight: Natural = 1
    config: dict[str, Any] = {}
    data_sha256: Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{64})?\Z")] = ""


class SwarmLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the swarm allows. Ranges are (lowest, highest), both allowed; temperature and top_p are in millionths."""

    completions: tuple[Positive, Positive] = (2, 64)
    max_tokens: Positive = 4096
    temperature: tuple[Natural, Natural] = (0, 2 * MILLION)
    top_p: tuple[Natural, Natural] = (0, MILLION)
    max_age_rounds: Natural = 4
    max_lag: Natural = 8
    shared_slots: Natural = 64
    own_slots: Natural = 64
    rollouts_per_key_per_round: Positive = 64
    bytes_per_key_per_round: Positive = 64 * MIB
    shard_bits: Annotated[int, msgspec.Meta(ge=0, le=12)] = 0  # announcements travel on 2^bits topics
    shards_per_node: Annotated[int, msgspec.Meta(ge=1, le=16)] = 1  # so many of them a node listens to


class Admission(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who may take part: anyone, or the keys of the named operators only."""

    mode: Literal["open", "invite", "allow-list"] = "open"
    operators: dict[str, list[str]] = {}  # operator name → public keys in hex
