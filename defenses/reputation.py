"""Who sent what nobody may send: offences with decay, muting, parole."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from threading import Lock
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
    The muted are kept apart too, else thousands of new names with one offence each would push them out before their
    parole. Gate and screen may call from two threads.
    """

    def __init__(self, config: DefenseConfig, counters: Counters) -> None:
        self._config = config
        self._records: BoundedMap[bytes, _Record] = BoundedMap(
            config.subjects, partial(counters.add, "reputation", "evicted_subject")
        )
        # Oldest muting first, so what gives way when all places are taken is the one whose parole is nearest.
        self._muted: BoundedMap[bytes, _Record] = BoundedMap(
            config.subjects, partial(counters.add, "reputation", "evicted_muted")
        )
        self._counters = counters
        self._lock = Lock()
        self.round = 0

    def advance(self, round_number: int) -> None:
        """Tell the current round. A small step back is no time; after a longer one the clock had been wrong before,
        and what was noted by it moves with it: else nobody would be let back in years."""
        with self._lock:
            ahead = self.round - round_number
            if ahead > self._config.parole:
                for _, record in [*self._records.items(), *self._muted.items()]:
                    record.updated -= ahead
                    record.muted_until -= ahead
                self.round = round_number
            self.round = max(self.round, round_number)
            for subject, record in [item for item in self._muted.items() if item[1].muted_until <= self.round]:
                self._muted.pop(subject)
                self._records.put(subject, record)

    def offend(self, subject: bytes) -> None:
        """Note one offence now; the score halves every `mute_window` rounds."""
        with self._lock:
            muted = self._muted.get(subject)
            record = muted or self._records.get(subject) or _Record(0.0, self.round, self.round)
            elapsed = max(0, self.round - record.updated)
            record.score = record.score * 0.5 ** (elapsed / self._config.mute_window) + 1.0
            record.updated = max(record.updated, self.round)
            if muted is not None:
                return
            if record.score >= self._config.mute_after:
                self._mute(subject, record)
            else:
                self._records.put(subject, record)

    def _mute(self, subject: bytes, record: _Record) -> None:
        record.muted_until = self.round + self._config.parole
        # On parole one starts half-way to the next muting.
        record.score = self._config.mute_after / 2
        record.updated = record.muted_until
        self._counters.add("reputation", "muted")
        self._records.pop(subject)
        self._muted.put(subject, record)

    def muted(self, subject: bytes) -> bool:
        """Whether what comes from this subject is refused at once."""
        with self._lock:
            record = self._muted.get(subject)
            return record is not None and self.round < record.muted_until

    def score(self, subject: bytes) -> float:
        """Return the decayed number of offences, 0.0 for an unknown subject."""
        with self._lock:
            record = self._muted.get(subject) or self._records.get(subject)
            if record is None:
                return 0.0
            return record.score * 0.5 ** (max(0, self.round - record.updated) / self._config.mute_window)

    def state(self) -> dict[str, Any]:
        """Return everything remembered as plain lists."""
        with self._lock:
            records = [*self._records.items(), *self._muted.items()]
            return {"round": self.round, "records": [[s, r.score, r.updated, r.muted_until] for s, r in records]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        with self._lock:
            self.round = int(state["round"])
            records = [(bytes(s), _Record(score, at, until)) for s, score, at, until in state["records"]]
            self._muted.replace(item for item in records if item[1].muted_until > self.round)
            self._records.replace(item for item in records if item[1].muted_until <= self.round)


def sender_subject(sender: bytes) -> bytes:
    """Name a transport-level sender as a subject."""
    return b"sender:" + sender[:64]  # a name has 32 or 39 bytes; what is longer only wants memory


def key_subject(key: bytes) -> bytes:
    """Name a publisher's key as a subject."""
    return b"key:" + key
