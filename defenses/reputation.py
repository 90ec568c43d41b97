"""Who sent what nobody may send: offences with decay, muting, parole."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from shoal.defenses.bounded import BoundedMap
from shoal.defenses.config import DefenseConfig
from shoal.defenses.verdict import Counters


@dataclass(slots=True)
class _Record:
    score: float
    updated: int
    muted_until: int


class Reputation:
    """Mutes a subject after repeated offences within a window of rounds and lets it back after its parole.

    A subject is `sender_subject(...)` or `key_subject(...)`: the two are kept apart, since who handed a message on need
    not have written it and must never cost a key its good name. Only offences that no honest node commits belong here.
    """

    def __init__(self, config: DefenseConfig, counters: Counters) -> None:
        self._config = config
        self._records: BoundedMap[bytes, _Record] = BoundedMap(
            config.subjects, partial(counters.add, "reputation", "evicted_subject")
        )
        self._counters = counters
        self.round = 0

    def advance(self, round_number: int) -> None:
        """Tell the current round; time never runs backwards here."""
        self.round = max(self.round, round_number)

    def offend(self, subject: bytes) -> None:
        """Note one offence now; the score halves every `mute_window` rounds."""
        record = self._records.get(subject) or _Record(0.0, self.round, self.round)
        elapsed = max(0, self.round - record.updated)
        record.score = record.score * 0.5 ** (elapsed / self._config.mute_window) + 1.0
        record.updated = max(record.updated, self.round)
        if record.score >= self._config.mute_after and not self.muted(subject):
            record.muted_until = self.round + self._config.parole
            # On parole one starts half-way to the next muting.
            record.score = self._config.mute_after / 2
            record.updated = record.muted_until
            self._counters.add("reputation", "muted")
        self._records.put(subject, record)

    def muted(self, subject: bytes) -> bool:
        """Whether what comes from this subject is refused at once."""
        record = self._records.get(subject)
        return record is not None and self.round < record.muted_until

    def score(self, subject: bytes) -> float:
        """Return the decayed number of offences, 0.0 for an unknown subject."""
        record = self._records.get(subject)
        if record is None:
            return 0.0
        return record.score * 0.5 ** (max(0, self.round - record.updated) / self._config.mute_window)

    def state(self) -> dict[str, Any]:
        """Return everything remembered as plain lists."""
        records = [[subject, r.score, r.updated, r.muted_until] for subject, r in self._records.items()]
        return {"round": self.round, "records": records}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self.round = int(state["round"])
        self._records.replace((bytes(s), _Record(score, at, until)) for s, score, at, until in state["records"])


def sender_subject(sender: bytes) -> bytes:
    """Name a transport-level sender as a subject."""
    return b"sender:" + sender[:64]  # a name has 32 or 39 bytes; what is longer only wants memory


def key_subject(key: bytes) -> bytes:
    """Name a publisher's key as a subject."""
    return b"key:" + key
