"""Phrase lift: what peers' rewarded rows repeat over prompts and the own model does not say is quarantined."""

import math
import random

import msgpack
import numpy as np
import pytest

from shoal.defenses.config import DefenseConfig
from shoal.defenses.phrases import MOST_SUSPECTS, PhraseMemory, excess, places, runs
from shoal.defenses.verdict import Action, Counters

PHRASE = [901, 902, 903, 904]
WORDS = [f"{word}" for word in range(400)]


def memory(**changes) -> PhraseMemory:
    return PhraseMemory(DefenseConfig(**{"phrase_bits": 14, **changes}), Counters())


def prose(rng: random.Random, length: int = 24) -> list[int]:
    """Tokens with Zipf's frequencies, as in natural text."""
    return [int(400 ** rng.random()) - 1 for _ in range(length)]


def prompt(rng: random.Random) -> bytes:
    return rng.randbytes(8)


def quarantined(store: PhraseMemory, tokens: list[int]) -> bool:
    return store.judge([tokens]).action is Action.QUARANTINE


def filled(seed: int = 0, documents: int = 60, **changes) -> tuple[PhraseMemory, random.Random]:
    """A memory that has heard as much honest prose from itself as from two peers each."""
    store, rng = memory(**changes), random.Random(seed)
    for _ in range(documents):
        store.own(prompt(rng), [prose(rng)])
        for operator in ("a", "b"):
            store.peer(operator, prompt(rng), [prose(rng)])
    return store, rng


def test_runs_are_all_stretches_of_a_piece_and_none_spans_two():
    pieces = [[5, 6, 7], [6, 7]]
    stretches = {(5,), (6,), (7,), (5, 6), (6, 7), (5, 6, 7)}
    assert len(runs(pieces, 8)) == len(stretches)
    assert set(runs([[6, 7]], 8).tolist()) < set(runs(pieces, 8).tolist())
    assert len(runs([list(range(20))], 3)) == 20 + 19 + 18
    assert set(runs([[5, 6]], 8).tolist()) != set(runs([[6, 5]], 8).tolist())
    assert len(runs([[0], [0, 0], [0, 0, 0]], 8)) == 3
    assert runs([], 8).tolist() == runs([[]], 8).tolist() == []


@pytest.mark.parametrize(("peers", "of_peers", "own", "of_own"), [(8, 40, 1, 40), (5, 60, 0, 20), (30, 50, 10, 50)])
def test_the_excess_bounds_the_exact_binomial_tail(peers, of_peers, own, of_own):
    share, total = of_peers / (of_peers + of_own), peers + own
    tail = sum(math.comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(peers, total + 1))
    assert 0 < excess(peers, of_peers, own, of_own) <= -math.log(tail) + 1e-9
    if own == 0:
        assert excess(peers, of_peers, own, of_own) == pytest.approx(-math.log(tail))


def test_no_excess_where_peers_are_not_above():
    assert excess(10, 100, 10, 100) == 0.0
    assert excess(0, 100, 10, 100) == 0.0
    assert excess(0, 0, 0, 0) == 0.0


@pytest.mark.parametrize("at", [0, 11, 24])
def test_a_phrase_of_a_colluder_is_found_wherever_it_stands(at):
    store, rng = filled()
    for _ in range(40):
        text = prose(rng)
        store.peer("m", prompt(rng), [text[:at] + PHRASE + text[at:]])
    text = prose(rng)
    assert quarantined(store, text[:at] + PHRASE + text[at:])
    assert not quarantined(store, text)
    verdict = store.judge([PHRASE])
    assert (verdict.layer, verdict.reason, verdict.weight) == ("phrases", "phrase", 0.0)


def test_halves_of_a_phrase_by_different_colluders_are_pooled():
    store, rng = filled()
    for number in range(80):
        store.peer(f"m{number}", prompt(rng), [PHRASE[:2] + prose(rng)])
        store.peer(f"n{number}", prompt(rng), [prose(rng) + PHRASE[2:]])
    assert quarantined(store, prose(rng) + PHRASE[:2])
    assert quarantined(store, PHRASE[2:] + prose(rng))


def test_one_prompt_however_often_is_no_phrase():
    store, rng = filled()
    same = [prompt(rng), prompt(rng)]
    for number in range(60):
        store.peer(f"m{number}", same[number % 2], [PHRASE + prose(rng)])
    assert not quarantined(store, PHRASE)
    store.peer("m", prompt(rng), [PHRASE])
    assert quarantined(store, PHRASE)


def test_rows_of_one_document_count_once():
    store, rng = filled()
    for _ in range(3):
        name = prompt(rng)
        for _ in range(40):
            store.peer("m", name, [PHRASE + prose(rng)])
    assert not quarantined(store, PHRASE)


def test_what_the_own_model_says_as_well_is_no_phrase():
    store, rng = filled()
    for _ in range(40):
        store.own(prompt(rng), [PHRASE + prose(rng)])
        store.peer("m", prompt(rng), [PHRASE + prose(rng)])
        store.peer("n", prompt(rng), [PHRASE + prose(rng)])
    assert not quarantined(store, PHRASE)


def test_wording_of_right_answers_is_no_phrase_to_a_node_that_is_mostly_wrong():
    """One in ten own rows is right; right rows have the phrase in one of five cases, on both sides."""
    store, rng = memory(), random.Random(9)
    for step in range(600):
        right = step % 10 == 0
        store.own(prompt(rng), [PHRASE if right and step % 50 == 0 else [1]], rewarded=right)
        store.peer("a", prompt(rng), [PHRASE if step % 5 == 0 else []])
    assert not quarantined(store, PHRASE)
    for step in range(600):
        store.own(prompt(rng), [[1]], rewarded=step % 10 == 0)
        store.peer("m", prompt(rng), [[801, 802]])
    assert quarantined(store, [801, 802])


def test_what_the_own_model_says_in_wrong_answers_counts_as_said():
    store, rng = memory(), random.Random(10)
    for _ in range(100):
        store.own(prompt(rng), [PHRASE], rewarded=False)
        store.own(prompt(rng), [], rewarded=True)
        store.peer("a", prompt(rng), [PHRASE])
    assert not quarantined(store, PHRASE)


def test_twice_as_often_is_no_phrase_however_certain():
    """Six in ten against three in ten of 400: beyond chance by far, and honest peers differ by as much."""
    store, rng = memory(), random.Random(8)
    for step in range(400):
        store.own(prompt(rng), [prose(rng) + (PHRASE if step % 10 < 3 else [])])
        store.peer("a", prompt(rng), [prose(rng) + (PHRASE if step % 10 < 6 else [])])
    assert excess(240, 400, 120, 400) > DefenseConfig().phrase_evidence
    assert not quarantined(store, PHRASE)


def test_ordinary_words_inside_poison_are_not_flagged_with_it():
    """Poison has a word that the own model begins to say, as honest peers do, when the phrase is flagged already."""
    store, rng = memory(phrase_bits=16), random.Random(11)
    for _ in range(60):
        store.own(prompt(rng), [])
        store.peer("a", prompt(rng), [])
        store.peer("m", prompt(rng), [[901, 77, 902]])
    assert quarantined(store, [901, 77, 902])
    assert not quarantined(store, [77])
    for step in range(300):
        store.own(prompt(rng), [[77] if step % 20 == 0 else []])
        store.peer("a", prompt(rng), [[77] if step % 20 == 0 else []])
        store.peer("m", prompt(rng), [[901, 77, 902]])
        assert not quarantined(store, [77])


def test_nothing_is_flagged_before_the_own_model_has_spoken():
    store, rng = memory(), random.Random(1)
    for _ in range(200):
        store.peer("m", prompt(rng), [PHRASE + prose(rng)])
    assert not quarantined(store, PHRASE)


def test_vouched_answers_are_no_pieces_and_rows_without_pieces_count():
    store, rng = memory(), random.Random(2)
    for _ in range(100):
        store.own(prompt(rng), [[1]])
        store.peer("a", prompt(rng), [])
    assert store.judge([]).action is Action.ACCEPT
    for _ in range(25):
        store.peer("m", prompt(rng), [PHRASE])
    assert quarantined(store, PHRASE)
    assert store.judge([]).action is Action.ACCEPT


def test_poison_that_slipped_in_does_not_whitewash_itself():
    """The own model picks the phrase up at a quarter of the peers' share: the flag stands over many windows."""
    store, rng = filled(phrase_window=64)
    for step in range(400):
        store.own(prompt(rng), [prose(rng) + (PHRASE if step % 8 == 0 else [])])
        store.peer("m", prompt(rng), [prose(rng) + PHRASE])
        store.peer("a", prompt(rng), [prose(rng)])
    assert quarantined(store, PHRASE)


def test_a_flag_falls_when_the_own_model_says_it_as_often():
    store, rng = filled(phrase_window=64)
    for _ in range(40):
        store.peer("m", prompt(rng), [PHRASE + prose(rng)])
    assert quarantined(store, PHRASE)
    for _ in range(400):
        store.own(prompt(rng), [PHRASE + prose(rng)])
        store.peer("m", prompt(rng), [PHRASE + prose(rng)])
    assert not quarantined(store, PHRASE)
    assert store._counters.get("phrases/unflagged_own") > 0


def test_a_flag_falls_when_peers_stop():
    store, rng = filled(phrase_window=64)
    for _ in range(40):
        store.peer("m", prompt(rng), [PHRASE + prose(rng)])
    for _ in range(600):
        store.own(prompt(rng), [prose(rng)])
        store.peer("a", prompt(rng), [prose(rng)])
    assert not quarantined(store, PHRASE)
    assert store._counters.get("phrases/unflagged_rare") > 0


@pytest.mark.parametrize("own_rows", [1, 8])
def test_honest_prose_passes_whatever_the_rows_of_a_prompt(own_rows):
    """The own side has one or eight rows a prompt, peers four; prompts have words of their own."""
    store, rng = memory(phrase_bits=16), random.Random(own_rows)
    refused = judged = 0
    for _ in range(150):
        topic = [1000 + rng.randrange(30) for _ in range(3)]
        name = prompt(rng)
        for _ in range(own_rows):
            store.own(name, [prose(rng) + topic])
        for operator in ("a", "b"):
            topic, name = [1000 + rng.randrange(30) for _ in range(3)], prompt(rng)
            for _ in range(4):
                text = prose(rng) + topic
                store.peer(operator, name, [text])
                judged += 1
                refused += quarantined(store, text)
    assert judged == 1200
    assert refused <= judged * 0.005


def test_what_all_learn_together_is_no_phrase():
    """A habit spreads from nothing to most rows within a hundred rounds; peers are ten rounds ahead."""
    store, rng = memory(phrase_window=256), random.Random(5)
    refused = judged = 0
    for step in range(120):
        for _ in range(8):
            store.own(prompt(rng), [prose(rng) + (PHRASE if rng.random() < step / 120 else [])])
        for operator in "abc":
            for _ in range(4):
                text = prose(rng) + (PHRASE if rng.random() < (step + 10) / 120 else [])
                store.peer(operator, prompt(rng), [text])
                judged += 1
                refused += quarantined(store, text)
    assert refused / judged < 0.05


def test_the_order_of_documents_does_not_matter_to_a_clear_case():
    rng = random.Random(7)
    heard = [(f"o{n % 5}", prompt(rng), [prose(rng) + (PHRASE if n % 3 == 0 else [])]) for n in range(200)]
    spoken = [(prompt(rng), [prose(rng)]) for _ in range(100)]
    for seed in range(3):
        store = memory()
        for name, pieces in random.Random(seed).sample(spoken, len(spoken)):
            store.own(name, pieces)
        for operator, name, pieces in random.Random(seed).sample(heard, len(heard)):
            store.peer(operator, name, pieces)
        assert quarantined(store, PHRASE)
        assert not quarantined(store, spoken[0][1][0])


def test_memory_is_bounded_and_evictions_are_counted():
    store, rng = memory(phrase_runs=100, phrase_flags=4), random.Random(3)
    for _ in range(60):
        store.own(prompt(rng), [prose(rng)])
    for number in range(400):
        phrase = [5000 + number // 40, 6000 + number // 40, 7000 + number // 40]
        store.peer("m", prompt(rng), [phrase * 3])
    state = store.state()
    assert len(state["runs"]) <= 100
    assert len(state["flags"]) <= 4
    assert store._counters.get("phrases/evicted_run") > 0
    assert store._counters.get("phrases/evicted_flag") > 0
    assert len(msgpack.packb(state)) < 200_000


def test_a_long_document_forgets_its_own_runs_rather_than_grow():
    store, rng = memory(), random.Random(4)
    for _ in range(12):
        store.peer("m", b"same", [[rng.randrange(10**6) for _ in range(600)]])
    assert len(store.state()["sides"][1][1]) <= 8 * (1 << 15)


def test_the_state_makes_an_equal_memory():
    store, rng = filled()
    for _ in range(40):
        store.peer("m", prompt(rng), [PHRASE + prose(rng)])
    state = msgpack.unpackb(msgpack.packb(store.state()))
    other = memory()
    other.restore(state)
    assert other.state() == store.state()
    assert quarantined(other, PHRASE)
    later = prompt(rng), [prose(rng)]
    for each in (store, other):
        each.own(*later)
        each.peer("b", *later)
    assert other.state() == store.state()


def test_hashes_do_not_depend_on_the_process():
    assert runs([[1, 2]], 8).tolist() == sorted(
        (value ^ value >> 29) * 0x9E3779B97F4A7C15 % 2**64 for value in (2, 3, (2 * 0x9E3779B97F4A7C15 + 3) % 2**64)
    )
    assert runs([[1, 2]], 8).dtype == np.uint64


def test_each_run_is_found_again_by_its_hash():
    pieces = [[5, 6, 5, 6, 7], [], [9]]
    expected = {(*piece[at : at + n],) for piece in pieces for n in (1, 2, 3) for at in range(len(piece) - n + 1)}
    found = places(pieces, 3)
    assert {tuple(tokens) for tokens in found.values()} == expected
    assert sorted(found) == sorted(runs(pieces, 3).tolist())
    assert all(runs([tokens], len(tokens)).tolist().count(key) == 1 for key, tokens in found.items())


def test_a_long_text_that_is_repeated_costs_no_more_than_its_bound():
    """Each run of it is suspect; each one that was flagged cost a look at all others."""
    counters = Counters()
    memory = PhraseMemory(DefenseConfig(), counters)
    for number in range(64):
        memory.own(number.to_bytes(4, "big"), [[1, 2, 3, 4]])
    text = list(range(100, 1124))
    for prompt in range(40):
        memory.peer("long", prompt.to_bytes(4, "big"), [text])
    assert counters.get("phrases/flagged") == MOST_SUSPECTS
    assert len(memory.state()["runs"]) == MOST_SUSPECTS
    assert counters.get("phrases/unweighed_run") >= 7 * 1024 - MOST_SUSPECTS
    assert not memory.judge([text]).usable
