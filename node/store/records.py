"""What the ledger holds, as plain records; `docs/ledger.md` says what each field means."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OWN = "own"  # the action of own sets: nobody judges them


@dataclass(frozen=True, slots=True)
class Position:
    """The pass that was entered last, and the highest policy version that was or may have been published.

    Before the first pass the round is -1, and the version is the ledger's beginning in unix milliseconds.
    """

    round: int
    passes: int
    version: int


@dataclass(frozen=True, slots=True)
class RowRecord:
    """One completion: the verdict on it, and the local reward (None: unscorable, or never graded)."""

    action: str
    layer: str = ""
    reason: str = ""
    reward: float | None = None
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """An own set, or a peer's rollout that was fetched, with what became of it in its pass.

    `place` is its position among the own sets or the peers' sets that were handed to the mixer, None when it was not.
    """

    own: bool
    place: int | None
    announcement: bytes | None
    digest: bytes | None
    bytes: int
    key: bytes
    operator: str
    round: int
    policy_version: int
    sequence: int | None
    received_round: int | None
    arrival: int | None
    age: int
    lag: int | None
    action: str
    layer: str
    reason: str
    rows: tuple[RowRecord, ...]
    used_rows: int
    trained_rows: int


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One pass; `id` is its number in the ledger, `number` its number within the round, times are unix seconds."""

    id: int
    round: int
    number: int
    version_before: int
    version_after: int
    started: float | None
    ended: float
    settings_id: int
    signal: bool
    note: str
    reward: float | None
    own_sets: int
    peer_sets: int
    used_rows: int
    trained_rows: int
    report: Mapping[str, Any]
    seconds: Mapping[str, float]
    samples: bytes | None
    inputs_hash: bytes
    advantages_hash: bytes | None
    selection_hash: bytes | None


@dataclass(frozen=True, slots=True)
class PeerTotals:
    """Rollouts of one peer that were trained on, and that were fetched and refused."""

    used: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """A peer whose rollouts were fetched: totals since it was first seen, refusals by "layer/reason".

    `fetched`, `accepted`, `refused` and `used` (trained on) count rollouts.
    """

    key: bytes
    operator: str
    first_seen: float
    last_seen: float
    last_round: int
    fetched: int
    accepted: int
    refused: int
    used: int
    used_rows: int
    trained_rows: int
    bytes: int
    refusals: Mapping[str, int]
