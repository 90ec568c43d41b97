"""Layer 5: texts that another peer published first earn nothing; the later publisher loses.

Who is first is decided by the order of arrival here: a claimed round can be back-dated, and a copier can only copy
what it has fetched. Own completions come before all others.

Long texts are compared one by one, exactly and by sketch. Short answers are honestly alike, so for them only a whole
rollout counts: all completions equal, in order. Independent samples come in any order alike, so given the same answers
an honest match has probability 1 / (number of orders); its logarithm is added up for each pair of peers, one is
subtracted for each mismatch (Page's cumulative sum test, Biometrika 1954, against a peer that copies half of the
time), and an honest pair passes the threshold of h bits at most once in 2^h rollouts.
"""

import hashlib
import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from shoal.defenses.bounded import BoundedMap
from shoal.defenses.config import DefenseConfig
from shoal.defenses.sketch import alike, hashes, sketch
from shoal.defenses.verdict import ACCEPTED, Counters, Verdict, reject

OWN = b""  # the holder of this node's own texts
SMALLEST_GROUP = 4  # fewer completions have too few orders to say anything


@dataclass(frozen=True, slots=True)
class Publication:
    """Who published for which prompt, and when it arrived: (received round, arrival)."""

    prompt_hash: bytes
    key: bytes
    order: tuple[int, int]


@dataclass(slots=True)
class _Text:
    key: bytes
    order: tuple[int, int]
    sketch: bytes


@dataclass(slots=True)
class _Group:
    digest: bytes
    key: bytes
    order: tuple[int, int]


@dataclass(slots=True)
class _Prompt:
    texts: dict[bytes, _Text] = field(default_factory=dict[bytes, _Text])
    groups: list[_Group] = field(default_factory=list[_Group])

    @property
    def entries(self) -> int:
        """How much is held."""
        return len(self.texts) + len(self.groups)


class DuplicateMemory:
    """The texts seen for recent prompts, and the evidence between pairs of peers; bounded, every eviction counted."""

    def __init__(self, config: DefenseConfig, counters: Counters) -> None:
        self._config = config
        self._counters = counters
        self._prompts: BoundedMap[bytes, _Prompt] = BoundedMap(
            config.prompts, partial(counters.add, "duplicates", "evicted_prompt")
        )
        self._evidence: BoundedMap[tuple[bytes, bytes], float] = BoundedMap(
            config.pairs, partial(counters.add, "duplicates", "evicted_pair")
        )
        self._entries = 0  # texts and groups of all prompts

    def remember_own(self, prompt_hash: bytes, texts: Sequence[str], min_chars: int) -> None:
        """Note this node's own completions of a prompt; they are earlier than anybody's."""
        self.judge(Publication(prompt_hash, OWN, (-1, -1)), texts, min_chars)

    def judge(self, publication: Publication, texts: Sequence[str], min_chars: int) -> list[Verdict]:
        """Judge the completions of one rollout, in order, and remember them; one verdict each.

        `min_chars` is the length from which equal texts of this task are evidence of copying.
        """
        prompt = self._prompts.get(publication.prompt_hash) or _Prompt()
        held = prompt.entries
        if publication.prompt_hash not in self._prompts and len(self._prompts) >= self._config.prompts:
            self._forget_oldest()
        self._prompts.put(publication.prompt_hash, prompt)
        normal = [normalise(text) for text in texts]
        if self._copied_group(prompt, publication, normal):
            verdicts = [reject("duplicates", "copied_rollout")] * len(texts)
        else:
            verdicts = [
                self._text(prompt, publication, text) if len(text) >= min_chars else ACCEPTED for text in normal
            ]
        self._grown(prompt.entries - held)
        return verdicts

    def _grown(self, entries: int) -> None:
        """Note that the memory has grown, and forget the prompts longest untouched when it has become too large."""
        self._entries += entries
        while self._entries > self._config.copy_entries:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        oldest, prompt = next(self._prompts.items())
        self._prompts.pop(oldest)
        self._entries -= prompt.entries
        self._counters.add("duplicates", "evicted_prompt")

    def _text(self, prompt: _Prompt, publication: Publication, text: str) -> Verdict:
        """Judge one long text against those of other peers, the earliest first."""
        digest = _digest([text])
        drawn = sketch(text)
        found = self._match(prompt, publication.key, digest, drawn)
        if found is None:
            if digest not in prompt.texts:
                self._remember(prompt, digest, _Text(publication.key, publication.order, drawn))
            return ACCEPTED
        held = prompt.texts[found]
        if held.order < publication.order:
            return reject("duplicates", "copied_text" if found == digest else "near_copy")
        # The copy was opened before its original: the original stands, and from now on it is the one remembered.
        self._counters.add("duplicates", "late_original")
        del prompt.texts[found]
        self._remember(prompt, digest, _Text(publication.key, publication.order, drawn))
        return ACCEPTED

    def _match(self, prompt: _Prompt, key: bytes, digest: bytes, drawn: bytes) -> bytes | None:
        """Return the digest of another peer's text that this one equals or nearly equals, the earliest of them."""
        exact = prompt.texts.get(digest)
        if exact is not None and exact.key != key:
            return digest
        own = set(hashes(drawn))
        near = [
            (held.order, other)
            for other, held in prompt.texts.items()
            if held.key != key and alike(own, held.sketch, self._config.copy_similarity)
        ]
        return min(near)[1] if near else None

    def _remember(self, prompt: _Prompt, digest: bytes, text: _Text) -> None:
        if len(prompt.texts) >= self._config.texts_per_prompt:
            del prompt.texts[next(iter(prompt.texts))]
            self._counters.add("duplicates", "evicted_text")
        prompt.texts[digest] = text

    def _copied_group(self, prompt: _Prompt, publication: Publication, texts: Sequence[str]) -> bool:
        """Whether this rollout equals an earlier one of a peer whom this one has been following."""
        bits = order_bits(texts)
        if len(texts) < SMALLEST_GROUP or bits == 0.0:
            return False
        digest = _digest(texts)
        matched: dict[bytes, bool] = {}
        for group in prompt.groups:
            if group.key == publication.key:
                continue
            equal = group.digest == digest
            if group.order < publication.order:
                matched[group.key] = matched.get(group.key, False) or equal
            elif equal:  # the copy was opened first; it tells against its own publisher
                self._weigh(group.key, publication.key, bits)
        copied = [self._weigh(publication.key, key, bits if equal else 0.0) and equal for key, equal in matched.items()]
        self._remember_group(prompt, _Group(digest, publication.key, publication.order))
        return any(copied)

    def _weigh(self, copier: bytes, holder: bytes, bits: float) -> bool:
        """Add one comparison to a pair's evidence (bits 0: a mismatch); True when it is above the threshold."""
        step = bits + math.log2(0.5 + 0.5 * 2.0**-bits) if bits else -1.0
        evidence = (self._evidence.get((copier, holder)) or 0.0) + step
        evidence = min(max(evidence, 0.0), 2.0 * self._config.copy_bits)
        if evidence > 0.0:
            self._evidence.put((copier, holder), evidence)
        else:
            self._evidence.pop((copier, holder))
        return evidence >= self._config.copy_bits

    def _remember_group(self, prompt: _Prompt, group: _Group) -> None:
        if len(prompt.groups) >= self._config.texts_per_prompt:
            del prompt.groups[0]
            self._counters.add("duplicates", "evicted_group")
        prompt.groups.append(group)

    def state(self) -> dict[str, Any]:
        """Return everything remembered as plain lists."""
        prompts = [
            [
                prompt_hash,
                [[digest, t.key, *t.order, t.sketch] for digest, t in prompt.texts.items()],
                [[g.digest, g.key, *g.order] for g in prompt.groups],
            ]
            for prompt_hash, prompt in self._prompts.items()
        ]
        return {"prompts": prompts, "pairs": [[*pair, bits] for pair, bits in self._evidence.items()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self._prompts.replace((bytes(name), _restored(texts, groups)) for name, texts, groups in state["prompts"])
        self._entries = sum(prompt.entries for _, prompt in self._prompts.items())
        self._grown(0)
        self._evidence.replace(((bytes(a), bytes(b)), float(bits)) for a, b, bits in state["pairs"])


def _restored(texts: Iterable[Any], groups: Iterable[Any]) -> _Prompt:
    return _Prompt(
        {
            bytes(digest): _Text(bytes(key), (first, second), bytes(drawn))
            for digest, key, first, second, drawn in texts
        },
        [_Group(bytes(digest), bytes(key), (first, second)) for digest, key, first, second in groups],
    )


def normalise(text: str) -> str:
    """Return the text as compared: compatibility forms, case and white space make no difference."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def order_bits(texts: Sequence[str]) -> float:
    """Return log2 of the number of orders in which these texts could have come (0 when all are alike)."""
    orders = math.factorial(len(texts))
    for count in Counter(texts).values():
        orders //= math.factorial(count)
    return math.log2(orders)


def _digest(texts: Iterable[str]) -> bytes:
    """Hash texts so that no two lists of texts run together."""
    hasher = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", errors="surrogatepass")
        hasher.update(len(data).to_bytes(8, "big") + data)
    return hasher.digest()[:16]
