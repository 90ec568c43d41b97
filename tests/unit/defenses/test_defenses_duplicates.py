"""Copies: long texts one by one, short answers by evidence over whole rollouts, and the later publisher loses."""

import math
import random

import msgpack
import pytest

from shoal.defenses.config import DefenseConfig
from shoal.defenses.duplicates import OWN, DuplicateMemory, Publication, normalise, order_bits
from shoal.defenses.sketch import alike, hashes, similarity, sketch
from shoal.defenses.verdict import Counters

LONG = "the sum of thirteen and twenty-five is thirty-eight, so the answer is 38"
OTHER = "count the letters one after the other: there are seven of them, hence 7"
EIGHT = tuple("abcdefgh")
ONE_WRONG = ("cba", "cba", "?", "cba", "cba", "cba", "cba", "cba")


def memory(**changes) -> DuplicateMemory:
    return DuplicateMemory(DefenseConfig(**changes), Counters())


def judge(store: DuplicateMemory, peer: str, arrival: int, texts, prompt: bytes = b"p") -> list[str]:
    """The reasons of the verdicts; "" is an accepted completion."""
    publication = Publication(prompt, peer.encode(), (0, arrival))
    return [verdict.reason for verdict in store.judge(publication, texts, 32)]


def test_the_later_publisher_of_a_long_text_loses():
    store = memory()
    assert judge(store, "a", 1, [LONG, "short"]) == ["", ""]
    assert judge(store, "b", 2, [LONG, "short"]) == ["copied_text", ""]
    assert judge(store, "c", 3, [LONG.upper().replace(" ", "\n "), OTHER]) == ["copied_text", ""]


def test_a_peer_may_repeat_itself():
    store = memory()
    assert judge(store, "a", 1, [LONG, LONG]) == ["", ""]
    assert judge(store, "a", 2, [LONG]) == [""]


def test_other_prompts_are_other_matters():
    store = memory()
    judge(store, "a", 1, [LONG])
    assert judge(store, "b", 2, [LONG], prompt=b"q") == [""]


def test_near_copies_lose_too_and_other_texts_do_not():
    store = memory()
    judge(store, "a", 1, [LONG + ". " + OTHER])
    assert judge(store, "b", 2, [LONG + "; " + OTHER]) == ["near_copy"]
    assert judge(store, "c", 3, [OTHER]) == [""]


def test_an_original_opened_after_its_copy_is_not_punished():
    store = memory()
    assert judge(store, "copier", 2, [LONG]) == [""]
    assert judge(store, "author", 1, [LONG]) == [""]
    assert store._counters.get("duplicates/late_original") == 1
    assert judge(store, "third", 3, [LONG]) == ["copied_text"]
    assert judge(store, "copier", 4, [LONG]) == ["copied_text"]
    assert judge(store, "author", 5, [LONG]) == [""]


def test_own_completions_are_earlier_than_all_others():
    store = memory()
    assert judge(store, "a", 1, [LONG]) == [""]
    store.remember_own(b"p", [LONG, OTHER], 32)
    assert judge(store, "b", 2, [OTHER]) == ["copied_text"]
    assert judge(store, "a", 3, [LONG]) == ["copied_text"]
    assert OWN == b""


def test_short_answers_are_honestly_alike():
    store = memory()
    for arrival, peer in enumerate("abcdef"):
        assert judge(store, peer, arrival, ["cba", "cba", "?", "cba"]) == [""] * 4


def test_groups_that_are_all_alike_or_small_say_nothing():
    store = memory(copy_bits=0.1)
    for round_number in range(50):
        prompt = b"%d" % round_number
        for peer in "ab":
            assert judge(store, peer, round_number, ["cba"] * 8, prompt) == [""] * 8
            assert judge(store, peer, round_number, ["a", "b", "c"], prompt) == [""] * 3


def test_a_group_of_different_answers_in_the_same_order_is_a_copy_at_once():
    store = memory()
    judge(store, "a", 1, EIGHT)
    assert judge(store, "b", 2, EIGHT) == ["copied_rollout"] * 8
    assert judge(store, "c", 3, EIGHT[::-1]) == [""] * 8


def copies_until_caught(store: DuplicateMemory, group) -> int:
    for number in range(1, 100):
        prompt = b"%d" % number
        judge(store, "a", 2 * number, group, prompt)
        if judge(store, "b", 2 * number + 1, group, prompt)[0]:
            return number
    return 0


def test_a_habitual_copier_of_short_answers_is_caught_after_a_few_rollouts():
    # log2 8 = 3 bits a match, against a peer that copies half of the time: log2(.5 + .5/8) + 3 = 2.17; 12 / 2.17 → 6
    assert copies_until_caught(memory(), ONE_WRONG) == 6
    assert copies_until_caught(memory(), (*"ab", *"ab", *"ab", *"ab")) == 3  # log2 70 = 6.1 bits


def test_groups_that_are_all_alike_take_no_evidence_back():
    store = memory()
    arrival = 0
    reasons = []
    for number in range(6):
        for group in (ONE_WRONG, ["cba"] * 8):
            prompt = b"%d %d" % (number, len(set(group)))
            judge(store, "a", arrival, group, prompt)
            reasons += judge(store, "b", arrival + 1, group, prompt)[:1]
            arrival += 2
    assert reasons == [""] * 10 + ["copied_rollout", ""]


def test_mismatches_take_evidence_back():
    store = memory()
    for number in range(40):
        prompt = b"%d" % number
        copies = number % 4 == 0  # one match in four of 2.17 bits, and three mismatches of -1
        judge(store, "a", 2 * number, ONE_WRONG, prompt)
        reasons = judge(store, "b", 2 * number + 1, ONE_WRONG if copies else ONE_WRONG[::-1], prompt)
        assert reasons == [""] * 8


def test_a_copier_that_is_opened_first_gathers_evidence_and_its_victim_none():
    store = memory()
    for number in range(10):
        prompt = b"%d" % number
        assert judge(store, "copier", 2 * number + 1, ONE_WRONG, prompt) == [""] * 8
        assert judge(store, "victim", 2 * number, ONE_WRONG, prompt) == [""] * 8
    judge(store, "victim", 100, ONE_WRONG, b"next")
    assert judge(store, "copier", 101, ONE_WRONG, b"next") == ["copied_rollout"] * 8


def test_no_honest_rollout_of_short_answers_is_a_copy():
    """Sixteen nearly certain peers on two-way questions: alike in content, and often in order as well."""
    rng = random.Random(2)
    store = memory()
    refused = alike = total = 0
    for number in range(300):
        sure = rng.choice((0.5, 0.8, 0.9, 0.97))
        seen = set()
        for peer in range(16):
            group = tuple("cba" if rng.random() < sure else "?" for _ in range(8))
            alike += len(set(group)) > 1 and group in seen
            seen.add(group)
            refused += any(judge(store, f"{peer}", 16 * number + peer, group, b"%d" % number))
            total += 1
    assert (refused, total) == (0, 4800)
    assert alike > 200  # so many the rule "equal in order" alone would have refused


def test_memory_is_bounded_and_every_eviction_counted():
    store = memory(prompts=3, texts_per_prompt=4, pairs=2)
    for prompt in range(5):
        for peer in range(6):
            text = f"{peer} " + "".join(random.Random(100 * prompt + peer).choices("abcdefghij ", k=80))
            judge(store, f"peer {peer}", peer, [text, *EIGHT], b"%d" % prompt)
    state = store.state()
    assert len(state["prompts"]) == 3
    assert max(len(texts) for _, texts, _ in state["prompts"]) == 4
    assert max(len(groups) for _, _, groups in state["prompts"]) == 4
    assert len(state["pairs"]) <= 2
    counts = store._counters
    assert counts.get("duplicates/evicted_prompt") == 2
    assert counts.get("duplicates/evicted_text") == counts.get("duplicates/evicted_group") == 10


@pytest.mark.parametrize("restart", [False, True])
def test_all_prompts_together_are_bounded_and_the_longest_untouched_goes(restart: bool):
    store = memory(copy_entries=20, prompts=7)
    rng = random.Random(3)
    for prompt in (0, 1, 2, 3, 0, 4, 5):
        texts = ["".join(rng.choices("abcdefghij ", k=80)) for _ in range(4)]
        judge(store, f"peer {prompt}", prompt, texts, b"%d" % prompt)
        if restart:
            state, store = store.state(), memory(copy_entries=20, prompts=7)
            store.restore(state)
    held = {bytes(name): len(texts) + len(groups) for name, texts, groups in store.state()["prompts"]}
    assert held == {b"0": 10, b"4": 5, b"5": 5}  # four texts and a rollout each time
    few = memory(copy_entries=20, prompts=2)
    few.restore(store.state())
    assert sum(len(texts) + len(groups) for _, texts, groups in few.state()["prompts"]) == 10
    judge(few, "another", 9, [LONG, OTHER], b"9")
    assert [bytes(name) for name, _, _ in few.state()["prompts"]] == [b"5", b"9"]


@pytest.mark.parametrize("changed", [0, 1, 5, 20, 60])
def test_similarity_is_the_share_of_common_ones_among_the_smallest(changed: int):
    rng = random.Random(changed)
    words = [f"{rng.getrandbits(32):08x}" for _ in range(60)]
    first, second = sketch(" ".join(words)), sketch(" ".join(["other"] * changed + words[changed:]))
    left, right = set(hashes(first)), set(hashes(second))
    smallest = sorted(left | right)[:64]
    assert similarity(first, second) == len([value for value in smallest if value in left & right]) / len(smallest)


def test_state_comes_back():
    store = memory()
    judge(store, "a", 1, [LONG, *EIGHT])
    judge(store, "b", 2, [OTHER, *EIGHT])
    judge(store, "a", 3, ONE_WRONG)
    judge(store, "b", 4, ONE_WRONG)
    again = memory()
    again.restore(msgpack.unpackb(msgpack.packb(store.state())))
    assert again.state() == store.state()
    for texts in ([LONG], [OTHER], ONE_WRONG, EIGHT):
        assert judge(again, "c", 5, texts) == judge(store, "c", 5, texts)


@pytest.mark.parametrize(
    ("texts", "orders"),
    [("aaaa", 1), ("aaab", 4), ("aabb", 6), ("abcd", 24), ("aaaabbbb", 70), ("", 1)],
)
def test_orders_are_counted(texts: str, orders: int):
    assert order_bits(texts) == pytest.approx(math.log2(orders))


def test_normal_form_ignores_case_space_and_compatibility_forms():
    assert normalise("  The\tANSWER \n is \uff14\uff12 \ufb01ne") == "the answer is 42 fine"


def test_similarity_estimates_the_share_of_common_passages():
    rng = random.Random(3)
    text = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz ", k=1000))
    changed = text[:500] + "".join(rng.choices("abcdefghijklmnopqrstuvwxyz ", k=500))

    def passages(whole: str) -> set[str]:
        return {whole[i : i + 5] for i in range(len(whole) - 4)}

    exact = len(passages(text) & passages(changed)) / len(passages(text) | passages(changed))
    assert similarity(sketch(text), sketch(changed)) == pytest.approx(exact, abs=0.15)
    assert similarity(sketch(text), sketch(text)) == 1.0
    assert similarity(sketch("one"), sketch("two")) == 0.0
    assert len(sketch("x" * 100_000)) <= 256
    assert similarity(sketch(""), sketch("")) == 1.0


def test_the_short_way_to_compare_sketches_gives_the_same_answer():
    rng = random.Random(4)
    texts = ["", "ab", "abcdefgh"]
    for length in (20, 60, 200):
        text = "".join(rng.choices("abcdefgh ", k=length))
        texts += [text, text[:-1], text + "x", text[: length // 2] + text, text[10:]]
    near = 0
    for first in texts:
        for second in texts:
            one, other = sketch(first), sketch(second)
            for threshold in (0.5, 0.9):
                expected = similarity(one, other) >= threshold
                assert alike(set(hashes(one)), other, threshold) == expected
                near += expected and first != second
    assert near > 10
