"""Layer 10: phrases that peers' rewarded completions repeat and the own model does not say.

Runs of one to eight tokens outside the vouched answer are counted by document, which is one operator's rows for one
prompt, whatever the operator: halves of a phrase that colluders share out are pooled. A run is flagged when its share
among peers is above its own share beyond chance, by a factor, and over several prompts. That must hold for documents,
as rows of one prompt speak alike, and for rows, as one side may have more of them for a prompt. Own and peers' counts
are forgotten by halves at the same moments, so that what all learn together rises on both sides.

The longest suspect run is flagged first, and rows that a flag catches count for no other run: what is common in honest
rows is not flagged because poison has it too.

A flag holds the own share of its moment for as long as it stands: poison that slipped in before, and is now said by the
own model, does not whitewash itself. A flag falls when peers stop, or when the own model says it as often as they do.
"""

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.defenses.bounded import BoundedMap
from shoal.defenses.config import DefenseConfig
from shoal.defenses.countmin import CountMin, Keys
from shoal.defenses.verdict import ACCEPTED, Action, Counters, Verdict

_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, with no short pattern (2^64 over the golden ratio)
OPEN_RUNS = 1 << 15  # runs of one document that are told apart: 64 rows of 64 tokens
MOST_SUSPECTS = 256  # of one row, the longest first: a phrase of thirty tokens has two hundred
FOUND = Verdict(Action.QUARANTINE, "phrases", "phrase", 0.0)


def measured(pieces: Sequence[Sequence[int]], longest: int) -> tuple[Keys, npt.NDArray[np.int64]]:
    """Return the distinct 64-bit hashes of all runs of up to `longest` tokens, and their lengths; no run spans two."""
    found: list[Keys] = [np.empty(0, np.uint64)]
    sizes: list[int] = [0]
    for piece in pieces:
        for length, hashed in enumerate(_hashes(np.asarray(piece, np.uint64) + np.uint64(1), longest), start=1):
            found.append(hashed)
            sizes.append(length)
    keys, first = np.unique(np.concatenate(found), return_index=True)
    return keys, np.repeat(sizes, [len(part) for part in found])[first]


def runs(pieces: Sequence[Sequence[int]], longest: int) -> Keys:
    """Return the distinct hashes of all runs of up to `longest` tokens inside a piece."""
    return measured(pieces, longest)[0]


def _hashes(tokens: npt.NDArray[np.uint64], longest: int) -> Iterator[Keys]:
    """Yield the hashes of all runs of one token, of two tokens and so on, each in order of where they begin."""
    value = np.zeros(len(tokens) + 1, np.uint64)
    for length in range(min(longest, len(tokens))):
        value = value[:-1] * _FACTOR + tokens[length:]
        yield (value ^ value >> np.uint64(29)) * _FACTOR


def places(pieces: Sequence[Sequence[int]], longest: int) -> dict[int, Sequence[int]]:
    """Return the tokens of each run by its hash."""
    found: dict[int, Sequence[int]] = {}
    for piece in pieces:
        for length, keys in enumerate(_hashes(np.asarray(piece, np.uint64) + np.uint64(1), longest), start=1):
            found.update((key, piece[at : at + length]) for at, key in enumerate(keys.tolist()))
    return found


def excess(peers: int, of_peers: int, own: int, of_own: int) -> float:
    """Return how unlikely it is, in nats, that peers' share is no higher than the own one; 0 when it is not higher.

    Given the sum of both counts, peers' is binomial with their share of the whole; its tail is bounded by exp(-n KL)
    (Chernoff), which is exact for a run that is absent locally.
    """
    total = peers + own
    share = of_peers / max(of_peers + of_own, 1)
    observed = peers / max(total, 1)
    if observed <= share or share <= 0.0:
        return 0.0
    divergence = observed * math.log(observed / share)
    if observed < 1.0:
        divergence += (1.0 - observed) * math.log((1.0 - observed) / (1.0 - share))
    return total * divergence


@dataclass(slots=True)
class _Run:
    """A run that is frequent among peers: documents and rows since it was, and the first few prompts."""

    documents: int = 0
    rows: int = 0
    prompts: tuple[int, ...] = ()


class _Side:
    """One side: how many documents and rows it had, in how many of them each run was, and the document still open."""

    def __init__(self, bits: int) -> None:
        self.documents = self.rows = 0
        self.in_documents, self.in_rows = CountMin(bits), CountMin(bits)
        self.open, self.counted = -1, False
        self.seen = np.empty(0, np.uint64)

    def note(self, document: int, found: Keys, rewarded: bool) -> Keys:
        """Count a row, and return its runs that the open document has not had yet.

        Runs of unrewarded rows are counted, the rows themselves are not: the shares are those among rewarded rows.
        """
        if self.open != document:
            self.open, self.seen, self.counted = document, found[:0], False
        self.rows += rewarded
        self.documents += rewarded and not self.counted
        self.counted |= rewarded
        new = np.setdiff1d(found, self.seen, assume_unique=True)
        self.in_rows.add(found)
        self.in_documents.add(new)
        self.seen = np.union1d(self.seen, new) if len(self.seen) + len(new) <= OPEN_RUNS else new
        return new

    def halve(self) -> None:
        """Forget half of everything but the open document."""
        self.documents //= 2
        self.rows //= 2
        self.in_documents.halve()
        self.in_rows.halve()

    def state(self) -> list[Any]:
        """Return everything as numbers and bytes."""
        seen = self.seen.astype("<u8").tobytes()
        numbers = [self.documents, self.rows, self.open, self.counted]
        return [numbers, seen, self.in_documents.state(), self.in_rows.state()]

    def restore(self, state: Sequence[Any]) -> None:
        """Take over what `state` returned."""
        self.documents, self.rows, self.open, self.counted = state[0]
        self.seen = np.frombuffer(bytes(state[1]), "<u8").astype(np.uint64)
        self.in_documents.restore(state[2])
        self.in_rows.restore(state[3])


class PhraseMemory:
    """Counts of runs in own and in peers' rewarded completions, and the runs that are flagged; bounded."""

    def __init__(self, config: DefenseConfig, counters: Counters) -> None:
        self._config = config
        self._counters = counters
        self._runs: BoundedMap[int, _Run] = BoundedMap(
            config.phrase_runs, partial(counters.add, "phrases", "evicted_run")
        )
        self._flags: BoundedMap[int, float] = BoundedMap(
            config.phrase_flags, partial(counters.add, "phrases", "evicted_flag")
        )
        self._own, self._peers = _Side(config.phrase_bits), _Side(config.phrase_bits)

    def own(self, prompt_hash: bytes, pieces: Sequence[Sequence[int]], rewarded: bool = True) -> None:
        """Note one completion of this node; rows of one prompt should follow each other.

        `pieces` are what nothing vouches for, found as for peers' rows. Of unrewarded rows the words count as said,
        but peers' rewarded rows are compared with rewarded ones: right answers are worded otherwise than wrong ones.
        """
        self._own.note(zlib.crc32(prompt_hash), runs(pieces, self._config.phrase_longest), rewarded)
        if self._own.rows >= self._config.phrase_window:
            self._forget()

    def peer(self, operator: str, prompt_hash: bytes, pieces: Sequence[Sequence[int]]) -> None:
        """Note one rewarded completion of a peer, trained on or not; one without pieces counts too."""
        prompt = zlib.crc32(prompt_hash)
        document = zlib.crc32(operator.encode("utf-8", "surrogatepass"), prompt)
        found, lengths = measured(pieces, self._config.phrase_longest)
        caught = [run for run in found.tolist() if run in self._flags]
        if caught:
            self._peers.note(document, np.array(caught, np.uint64), rewarded=True)
        else:
            new = self._peers.note(document, found, rewarded=True)
            lifted = self._is_lifted(found)
            order = np.argsort(-lengths[lifted], kind="stable")  # what a longer run explains, a shorter need not
            suspects = found[lifted][order].tolist()
            if len(suspects) > MOST_SUSPECTS:
                self._counters.add("phrases", "unweighed_run", len(suspects) - MOST_SUSPECTS)
            fresh, known = set(new.tolist()), None
            for run in suspects[:MOST_SUSPECTS]:
                if self._weigh(run, prompt, run in fresh):
                    known = known or places(pieces, self._config.phrase_longest)
                    self._excuse(run, known[run])
        if self._peers.rows >= self._config.phrase_peer_window:
            self._forget()

    def judge(self, pieces: Sequence[Sequence[int]]) -> Verdict:
        """Quarantine a completion that has a flagged run; the sender loses nothing else."""
        if not len(self._flags):
            return ACCEPTED
        found = runs(pieces, self._config.phrase_longest).tolist()
        return FOUND if any(run in self._flags for run in found) else ACCEPTED

    def _is_lifted(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Return for which runs peers' share exceeds the own one by the factor, in documents and in rows."""
        own, peers, lift = self._own, self._peers, self._config.phrase_lift
        documents = peers.in_documents.get(keys).astype(float)
        most = (own.in_documents.get(keys) + 0.5) * (lift * peers.documents / (own.documents + 1))
        most_rows = (own.in_rows.get(keys) + 0.5) * (lift * peers.rows / (own.rows + 1))
        often = documents >= self._config.phrase_prompts - 1
        return often & (documents >= most) & (peers.in_rows.get(keys) >= most_rows)

    def _weigh(self, run: int, prompt: int, fresh: bool) -> bool:
        """Note one more row with a suspect run; flag it, and return True, when its share is too high to be chance."""
        known = self._runs.get(run) or _Run()
        known.documents += fresh
        known.rows += 1
        if len(known.prompts) < self._config.phrase_prompts and prompt not in known.prompts:
            known.prompts = (*known.prompts, prompt)
        self._runs.put(run, known)
        if len(known.prompts) < self._config.phrase_prompts:
            return False
        key = np.array([run], np.uint64)
        own, own_rows = int(self._own.in_documents.get(key)[0]), int(self._own.in_rows.get(key)[0])
        documents = (known.documents, self._peers.documents, own, self._own.documents)
        rows = (known.rows, self._peers.rows, own_rows, self._own.rows)
        if not all(
            self._config.phrase_evidence <= excess(*counts) and self._lifts(*counts) for counts in (documents, rows)
        ):
            return False
        self._flags.put(run, (own + 0.5) / (self._own.documents + 1))
        self._counters.add("phrases", "flagged")
        return True

    def _lifts(self, peers: int, of_peers: int, own: int, of_own: int) -> bool:
        return peers * (of_own + 1) >= self._config.phrase_lift * (own + 0.5) * of_peers

    def _excuse(self, run: int, tokens: Sequence[int]) -> None:
        """Take the documents of a flagged run from the runs inside it, which they made look frequent."""
        if len(tokens) > 1:
            self._subtract(self._runs.get(run) or _Run(), set(runs([tokens], len(tokens)).tolist()) - {run})

    def _subtract(self, flagged: _Run, inside: set[int]) -> None:
        for run in inside:
            known = self._runs.get(run)
            if known is not None:
                known.documents = max(known.documents - flagged.documents, 0)
                known.rows = max(known.rows - flagged.rows, 0)

    def _forget(self) -> None:
        """Halve all counts, own and peers' at the same moment, and look at the flags again."""
        self._own.halve()
        self._peers.halve()
        for _, known in self._runs.items():
            known.documents //= 2
            known.rows //= 2
        self._runs.expire(lambda _, known: known.documents > 0)
        self._flags.expire(self._stands)

    def _stands(self, run: int, floor: float) -> bool:
        """Whether a flag still has its reason: against the own share when it was raised, not against today's."""
        key = np.array([run], np.uint64)
        peers = int(self._peers.in_documents.get(key)[0]) / max(self._peers.documents, 1)
        if peers < self._config.phrase_lift * floor:
            self._counters.add("phrases", "unflagged_rare")
            return False
        if self._own.in_documents.get(key)[0] >= max(peers * self._own.documents, 1.0):
            self._counters.add("phrases", "unflagged_own")
            return False
        return True

    def state(self) -> dict[str, Any]:
        """Return everything remembered as plain lists and bytes."""
        return {
            "runs": [[run, known.documents, known.rows, list(known.prompts)] for run, known in self._runs.items()],
            "flags": [[run, floor] for run, floor in self._flags.items()],
            "sides": [self._own.state(), self._peers.state()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self._runs.replace(
            (run, _Run(documents, rows, tuple(prompts))) for run, documents, rows, prompts in state["runs"]
        )
        self._flags.replace((run, float(floor)) for run, floor in state["flags"])
        for side, held in zip((self._own, self._peers), state["sides"], strict=True):
            side.restore(held)
