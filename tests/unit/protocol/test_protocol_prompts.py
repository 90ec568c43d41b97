import hashlib
import struct
from collections import Counter

import msgspec
import pytest

from shoal.protocol.errors import ProtocolError
from shoal.protocol.identity import Identity
from shoal.protocol.manifest import Manifest, TaskEntry
from shoal.protocol.prompts import (
    MAX_SKIP,
    SHARED,
    DerivedPrompt,
    derive_prompt,
    is_held_out,
    prompt_hash,
    resolve,
)

PEER = Identity.from_seed(bytes([5]) * 32).key


@pytest.mark.parametrize(("scope_key", "scope"), [(SHARED, 0), (PEER, 1)])
def test_the_derivation_is_the_documented_one(scope_key: bytes, scope: int, manifest: Manifest):
    digest = hashlib.sha256(b"shoal/prompt/1" + manifest.swarm_id + scope_key + struct.pack(">QI", 12, 3)).digest()
    draw = int.from_bytes(digest[:8], "big") % 4
    expected = DerivedPrompt(
        scope,
        3,
        "strings/reverse" if draw < 3 else "rg/chain_sum",
        int.from_bytes(digest[8:12], "big") % 2**31,
        int.from_bytes(digest[12:16], "big") % 2**31,
    )
    assert derive_prompt(manifest, 12, scope_key, 3) == expected


def test_everything_enters_the_derivation(manifest: Manifest):
    other_swarm = msgspec.structs.replace(manifest, name="other")
    drawn = {
        derive_prompt(manifest, 12, SHARED, 3),
        derive_prompt(manifest, 13, SHARED, 3),
        derive_prompt(manifest, 12, PEER, 3),
        derive_prompt(manifest, 12, Identity.from_seed(bytes(32)).key, 3),
        derive_prompt(other_swarm, 12, SHARED, 3),
    }
    assert len({(prompt.seed, prompt.index) for prompt in drawn}) == 5


def test_slots_are_limited_by_scope(manifest: Manifest):
    few = msgspec.structs.replace(
        manifest, limits=msgspec.structs.replace(manifest.limits, shared_slots=4, own_slots=2)
    )
    derive_prompt(few, 0, SHARED, 3)
    derive_prompt(few, 0, PEER, 1)
    for scope_key, slot in ((SHARED, 4), (SHARED, -1), (PEER, 2), (PEER, 3)):
        with pytest.raises(ProtocolError, match="slot_out_of_range"):
            derive_prompt(few, 0, scope_key, slot)


def test_rounds_and_scopes_out_of_range(manifest: Manifest):
    for round in (-1, 2**63):
        with pytest.raises(ProtocolError, match="round_out_of_range"):
            derive_prompt(manifest, round, SHARED, 0)
    with pytest.raises(ProtocolError, match="scope_size"):
        derive_prompt(manifest, 0, bytes([1]) * 31, 0)


def test_tasks_are_drawn_by_weight(manifest: Manifest):
    weighted = msgspec.structs.replace(
        manifest, tasks=[TaskEntry(name="three", weight=3), TaskEntry(name="none", weight=0), TaskEntry(name="one")]
    )
    counts = Counter(derive_prompt(weighted, round, SHARED, slot).task for round in range(50) for slot in range(64))
    assert set(counts) == {"three", "one"}
    assert 0.72 < counts["three"] / counts.total() < 0.78  # 3,200 draws: four standard deviations are .03


def test_without_a_task_of_weight_there_is_no_prompt(manifest: Manifest):
    for tasks in ([], [TaskEntry(name="none", weight=0)]):
        with pytest.raises(ProtocolError, match="no_tasks"):
            derive_prompt(msgspec.structs.replace(manifest, tasks=tasks), 0, SHARED, 0)


def test_the_hash_of_a_text():
    assert prompt_hash("naïve") == hashlib.sha256(b"shoal/prompt-text/1" + "naïve".encode()).digest()


def test_one_text_in_eight_is_held_out():
    texts = [prompt_hash(f"prompt {number}") for number in range(8000)]
    share = sum(map(is_held_out, texts)) / len(texts)
    assert 0.11 < share < 0.14  # four standard deviations are .015
    digest = hashlib.sha256(b"shoal/held-out/1" + texts[0]).digest()
    assert is_held_out(texts[0]) == (digest[0] % 8 == 0)


def texts_held_out(held_out: bool, count: int) -> list[str]:
    found = (text for number in range(10_000) if is_held_out(prompt_hash(text := f"text {number}")) == held_out)
    return [next(found) for _ in range(count)]


@pytest.mark.parametrize("skips", [0, 1, 5, MAX_SKIP])
def test_held_out_texts_are_skipped_forward(skips: int):
    texts = [*texts_held_out(True, skips), *texts_held_out(False, 1)]
    derived = DerivedPrompt(scope=0, slot=0, task="task", seed=11, index=2**31 - 1)

    def text_of(task: str, seed: int, index: int) -> str:
        assert (task, seed) == ("task", 11)
        return texts[index - derived.index]

    assert resolve(derived, text_of) == derived.index + skips


def test_a_data_set_that_is_held_out_whole_is_an_error_and_no_endless_search():
    (text,) = texts_held_out(True, 1)
    asked: list[int] = []

    def text_of(task: str, seed: int, index: int) -> str:
        asked.append(index)
        return text

    with pytest.raises(ProtocolError, match="all_held_out"):
        resolve(DerivedPrompt(scope=0, slot=0, task="task", seed=0, index=10), text_of)
    assert asked == list(range(10, 10 + MAX_SKIP + 1))
