"""Layer 10: phrases that peers' rewarded completions repeat and the own model does not say.

Runs of one to eight tokens outside the vouched answer are counted by document, which is one operator's rows for one
prompt, whatever the operator: halves of a phrase that colluders share out are pooled. A run is flagged when its share
of peers' documents is above its share of own ones beyond chance, by a factor, and over several prompts. Both counts
are forgotten by halves at the same moments, so that what all learn together rises on both sides.

A flag holds the own share of its moment for as long as it stands: poison that slipped in before, and is now said by the
own model, does not whitewash itself. A flag falls when peers stop, or when the own model says it as often as they do.
"""

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from shoal.defenses.bounded import BoundedMap
from shoal.defenses.config import DefenseConfig
from shoal.defenses.countmin import MASK, CountMin
from shoal.defenses.verdict import ACCEPTED, Action, Counters, Verdict

_FACTOR = 0x9E3779B97F4A7C15  # odd, with no short pattern (2^64 over the golden ratio)
OPEN_RUNS = 1 << 15  # runs of one document that are told apart: 64 rows of 64 tokens
FOUND = Verdict(Action.QUARANTINE, "phrases", "phrase", 0.0)


def runs(pieces: Iterable[Sequence[int]], longest: int) -> Iterator[int]:
    """Yield a 64-bit hash of each run of up to `longest` tokens inside each piece; no run spans two pieces."""
    for piece in pieces:
        for start in range(len(piece)):
            value = 0
            for token in piece[start : start + longest]:
                value = (value * _FACTOR + token + 1) & MASK
                yield (value ^ value >> 29) * _FACTOR & MASK


def excess(peers: int, peer_documents: int, own: int, own_documents: int) -> float:
    """Return how unlikely it is, in nats, that peers' share is no higher than the own one; 0 when it is not higher.

    Given the sum of both counts, peers' is binomial with their share of all documents; its tail is bounded by
    exp(-n KL) (Chernoff), which is exact for a run that is absent locally.
    """
    total = peers + own
    share = peer_documents / max(peer_documents + own_documents, 1)
    observed = peers / max(total, 1)
    if observed <= share or share <= 0.0:
        return 0.0
    if own == 0:
        return -total * math.log(share) if share < 1.0 else 0.0
    divergence = observed * math.log(observed / share) + (1 - observed) * math.log((1 - observed) / (1 - share))
    return total * divergence


@dataclass(slots=True)
class _Run:
    """What is known of a run in peers' rewarded rows: documents, the last one, and its first few prompts."""

    documents: int
    last: int
    prompts: tuple[int, ...]


@dataclass(slots=True)
class _Side:
    """Documents of one side, and the runs of the one that is still open."""

    documents: int = 0
    open: int = -1
    seen: set[int] | None = None


class PhraseMemory:
    """Counts of runs in own and in peers' rewarded completions, and the runs that are flagged; bounded."""

    def __init__(self, config: DefenseConfig, counters: Counters) -> None:
        self._config = config
        self._counters = counters
        self._local = CountMin(config.phrase_bits)
        self._runs: BoundedMap[int, _Run] = BoundedMap(
            config.phrase_runs, partial(counters.add, "phrases", "evicted_run")
        )
        self._flags: BoundedMap[int, float] = BoundedMap(
            config.phrase_flags, partial(counters.add, "phrases", "evicted_flag")
        )
        self._own, self._peers = _Side(), _Side()

    def own(self, prompt_hash: bytes, pieces: Sequence[Sequence[int]]) -> None:
        """Note one completion of this node; rows of one prompt should follow each other."""
        self._open(self._own, zlib.crc32(prompt_hash))
        self._local.add(self._new(self._own, pieces))
        if self._own.documents >= self._config.phrase_window:
            self._forget()

    def peer(self, operator: str, prompt_hash: bytes, pieces: Sequence[Sequence[int]]) -> None:
        """Note one rewarded completion of a peer, trained on or not; one without pieces is a document too."""
        prompt = zlib.crc32(prompt_hash)
        document = zlib.crc32(operator.encode("utf-8", "surrogatepass"), prompt)
        self._open(self._peers, document)
        for run in self._new(self._peers, pieces):
            known = self._runs.get(run) or _Run(0, -1, ())
            known.documents += known.last != document
            known.last = document
            if len(known.prompts) < self._config.phrase_prompts and prompt not in known.prompts:
                known.prompts = (*known.prompts, prompt)
            self._runs.put(run, known)
            if len(known.prompts) >= self._config.phrase_prompts and run not in self._flags:
                self._weigh(run, known)
        if self._peers.documents >= self._config.phrase_peer_window:
            self._forget()

    def judge(self, pieces: Sequence[Sequence[int]]) -> Verdict:
        """Quarantine a completion that has a flagged run; the sender loses nothing else."""
        flagged = any(run in self._flags for run in runs(pieces, self._config.phrase_longest)) if self._flags else False
        return FOUND if flagged else ACCEPTED

    def _open(self, side: _Side, document: int) -> None:
        if side.open != document or side.seen is None:
            side.open, side.seen = document, set()
            side.documents += 1

    def _new(self, side: _Side, pieces: Sequence[Sequence[int]]) -> list[int]:
        """Return the runs that the open document has not had yet, each once and in order."""
        assert side.seen is not None
        found = [run for run in dict.fromkeys(runs(pieces, self._config.phrase_longest)) if run not in side.seen]
        if len(side.seen) + len(found) > OPEN_RUNS:
            self._counters.add("phrases", "long_document")
            side.seen.clear()
        side.seen.update(found[:OPEN_RUNS])
        return found

    def _weigh(self, run: int, known: _Run) -> None:
        """Flag a run whose share among peers is too high to be chance."""
        own, documents = self._local.get(run), self._own.documents
        floor = (own + 0.5) / (documents + 1)
        if known.documents < self._config.phrase_lift * floor * self._peers.documents:
            return
        if excess(known.documents, self._peers.documents, own, documents) >= self._config.phrase_evidence:
            self._flags.put(run, floor)
            self._counters.add("phrases", "flagged")

    def _forget(self) -> None:
        """Halve all counts, own and peers' at the same moment, and look at the flags again."""
        self._local.halve()
        for side in (self._own, self._peers):
            side.documents //= 2
        for _, known in self._runs.items():
            known.documents //= 2
        self._runs.expire(lambda _, known: known.documents > 0)
        self._flags.expire(self._stands)

    def _stands(self, run: int, floor: float) -> bool:
        """Whether a flag still has its reason: against the own share when it was raised, not against today's."""
        known = self._runs.get(run)
        share = known.documents / max(self._peers.documents, 1) if known else 0.0
        if share < self._config.phrase_lift * floor:
            self._counters.add("phrases", "unflagged_rare")
            return False
        if self._local.get(run) >= max(share * self._own.documents, 1.0):
            self._counters.add("phrases", "unflagged_own")
            return False
        return True

    def state(self) -> dict[str, Any]:
        """Return everything remembered as plain lists and bytes."""
        return {
            "local": self._local.state(),
            "runs": [[run, known.documents, known.last, list(known.prompts)] for run, known in self._runs.items()],
            "flags": [[run, floor] for run, floor in self._flags.items()],
            "sides": [
                [side.documents, side.open, None if side.seen is None else sorted(side.seen)]
                for side in (self._own, self._peers)
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self._local.restore(state["local"])
        self._runs.replace((run, _Run(count, last, tuple(prompts))) for run, count, last, prompts in state["runs"])
        self._flags.replace((run, float(floor)) for run, floor in state["flags"])
        self._own, self._peers = (
            _Side(documents, opened, None if seen is None else set(seen)) for documents, opened, seen in state["sides"]
        )
