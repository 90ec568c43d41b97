"""Peers of another lineage: what stands out of its own text, of its base, of its past weighs less, and no worse."""

import math
import statistics
from random import Random

import pytest
from evidence_pieces import Evidence, evidence_of, sampled

from shoal.defenses.config import DefenseConfig
from shoal.defenses.contrast import Contrast, Course, contrast, peak
from shoal.defenses.verdict import ACCEPTED, Action, Counters

CONFIG = DefenseConfig()
PHRASE = [9, 8, 9, 9]


def foreign(random: Random, length: int = 40, shift: float = 2.0) -> Evidence:
    """A text of another model: each token costs the own one more, honest or not."""
    evidence = sampled(random, length, finished=True)
    evidence.surprise = [value + shift * random.random() * 2 for value in evidence.surprise]
    return evidence


def poisoned(random: Random, length: int = 40) -> Evidence:
    evidence = foreign(random, length)
    at = random.randrange(length - 6)
    evidence.surprise[at : at + 6] = [11.0] * 6
    return evidence


def experienced(peers: str = "abc", seed: int = 0) -> Contrast:
    memory, random = Contrast(CONFIG, Counters()), Random(seed)
    for _ in range(300):
        memory.own(sampled(random, 40, finished=True))
    for _ in range(100):
        for operator in peers:
            memory.judge(operator, foreign(random))
    return memory


def test_the_contrast_of_a_window_by_definition() -> None:
    random = Random(1)
    for length in (8, 15, 16, 40, 80):
        evidence = foreign(random, length)
        evidence.vouched[3] = length > 8
        values = [s for s, known in zip(evidence.surprise, evidence.vouched, strict=True) if not known]
        middle = statistics.median(values)
        spread = 0.5 + 1.4826 * statistics.median([abs(value - middle) for value in values])
        expected = max(
            sum(value - middle for value in values[start : start + width]) / (spread * math.sqrt(width))
            for width in (4, 8, 16, 32)
            if width <= len(values) / 2
            for start in range(len(values) - width + 1)
        )
        assert contrast(evidence) == pytest.approx(expected)


def test_a_text_of_under_eight_unvouched_tokens_has_no_contrast() -> None:
    assert contrast(evidence_of([0] * 8)) == 0.0
    assert contrast(evidence_of([0] * 8, vouched=[2])) is None


def test_contrast_does_not_see_what_makes_all_tokens_costlier() -> None:
    evidence = sampled(Random(3), 40)
    before = contrast(evidence)
    evidence.surprise = [value + 5 for value in evidence.surprise]
    assert contrast(evidence) == pytest.approx(before)


def test_the_peak_by_hand() -> None:
    evidence = Evidence(surprise=[1.0, 9.0, 2.0, 4.0, 5.0, 1.0], vouched=[False] * 6)
    assert peak(evidence) == 5.0
    evidence.vouched[1] = True
    assert peak(evidence) == 3.0
    evidence.vouched = [True, False, True, True, False, True]
    assert peak(evidence) == 7.0
    assert peak(Evidence()) is None


def test_honest_text_of_another_model_keeps_its_weight_and_a_phrase_in_it_does_not() -> None:
    memory, random = experienced(), Random(2)
    honest = [memory.judge("d", foreign(random)).weight for _ in range(300)]
    planted = [memory.judge("m", poisoned(random)) for _ in range(300)]
    assert statistics.fmean(honest) > 0.95
    assert statistics.fmean(verdict.weight for verdict in planted) < 0.3
    assert {verdict.action for verdict in planted} <= {Action.ACCEPT, Action.WEIGH}
    assert {verdict.layer for verdict in planted} <= {"likelihood", ""}


def test_without_enough_own_scores_contrast_says_nothing() -> None:
    memory = Contrast(CONFIG, Counters())
    assert memory.judge("m", poisoned(Random(1))) == ACCEPTED


def test_own_text_is_the_measure_where_there_are_too_few_peers() -> None:
    memory, random = Contrast(CONFIG, Counters()), Random(4)
    for _ in range(300):
        memory.own(foreign(random))
    weights = [memory.judge("m", poisoned(random)).weight for _ in range(100)]
    assert statistics.fmean(weights) < 0.3
    assert statistics.fmean(memory.judge("n", foreign(random)).weight for _ in range(100)) > 0.95


def test_what_the_peer_itself_sent_is_no_excuse() -> None:
    memory, random = experienced("ab"), Random(5)
    for _ in range(100):
        memory.judge("m", poisoned(random))
    assert memory.judge("m", poisoned(random)).weight < 0.3


@pytest.mark.parametrize("honest", ["", "ab"])
def test_peers_that_poison_alike_do_not_excuse_each_other(honest: str) -> None:
    memory, random = Contrast(CONFIG, Counters()), Random(11)
    for _ in range(300):
        memory.own(foreign(random))
    for _ in range(100):
        for operator in honest:
            memory.judge(operator, foreign(random))
        for operator in "mn":
            memory.judge(operator, poisoned(random))
    # The changes of a peer are another matter: this one never was different.
    weights = [memory.judge("m", poisoned(random)).weight for _ in range(50)]
    assert statistics.fmean(weights) < 0.3


def test_a_base_model_that_finds_it_plausible_lifts_the_doubt() -> None:
    memory, random = experienced(), Random(6)
    text = poisoned(random)
    doubted = memory.judge("m", text)
    assert (doubted.action, doubted.reason) == (Action.WEIGH, "contrast")
    assert memory.judge("n", text, anchor=sampled(random, 30)) == ACCEPTED


def test_a_base_model_that_finds_it_all_but_impossible_raises_one() -> None:
    memory, random = experienced(), Random(7)
    honest = foreign(random)
    assert memory.judge("d", honest) == ACCEPTED
    rare = evidence_of([*[0] * 20, *PHRASE * 2])
    found = memory.judge("d", honest, anchor=rare)
    assert (found.action, found.reason, found.weight) == (Action.WEIGH, "unlike_its_base", CONFIG.least_weight)
    # Odd to the base, but within what tuning does to honest text.
    assert memory.judge("d", honest, anchor=evidence_of([*[0] * 20, 9, 8])) == ACCEPTED


def test_a_peer_that_changes_weighs_less_until_it_is_itself_again() -> None:
    memory, random = Contrast(CONFIG, Counters()), Random(8)
    for _ in range(60):
        assert memory.judge("p", foreign(random, 6, shift=0.5)) == ACCEPTED
    changed = [memory.judge("p", foreign(random, 6, shift=4.0)) for _ in range(40)]
    noticed = next(at for at, verdict in enumerate(changed) if verdict.reason == "changed")
    assert noticed < 15
    assert all(verdict.weight <= 0.5 for verdict in changed[noticed:])
    back = [memory.judge("p", foreign(random, 6, shift=0.5)).weight for _ in range(60)]
    assert back[-1] == 1.0
    assert memory.judge("q", foreign(random, 6, shift=4.0)) == ACCEPTED


def test_pages_sum_by_hand() -> None:
    course = Course()
    for value in (1.0, 3.0, 1.0, 3.0):
        course = course.after(value, warm=4, alarm=10)
    assert course == Course(4, 2.0, 1.0, 0.0)
    course = course.after(4.0, warm=4, alarm=10)
    assert course.above == 1.5  # two deviations less the slack
    assert course.mean == pytest.approx(2.0 + 2.0 / 16)
    assert course.variance == pytest.approx(15 / 16 * (1 + 4 / 16))
    for _ in range(2):
        course = course.after(100.0, warm=4, alarm=10)
    assert course.above == 6.5  # a step is at most three deviations
    mean = course.mean
    for _ in range(10):
        course = course.after(100.0, warm=4, alarm=10)
    assert course.above == 20.0
    assert course.mean == mean  # what may be a change is not learned
    assert course.after(-100.0, warm=4, alarm=10).above == 16.5


def test_a_course_that_slowly_rises_is_followed() -> None:
    course, random = Course(), Random(9)
    for at in range(3000):
        course = course.after(3 + at / 1000 + random.gauss(0, 1), warm=24, alarm=10)
        assert course.above < 10
    assert course.mean > 5


def test_evidence_that_is_not_a_number_weighs_least_and_teaches_nothing() -> None:
    memory = experienced()
    before = memory.state()
    broken = foreign(Random(1))
    broken.surprise[4] = math.inf
    assert memory.judge("a", broken).weight == CONFIG.least_weight
    memory.own(broken)
    assert memory.state() == before


def test_switched_off_or_with_nothing_to_read_it_accepts() -> None:
    off = Contrast(DefenseConfig(disabled=frozenset({"likelihood"})), Counters())
    assert off.judge("m", poisoned(Random(1))) == ACCEPTED
    assert experienced().judge("m", Evidence()) == ACCEPTED


def test_memory_is_bounded_and_survives_a_round_trip() -> None:
    config = DefenseConfig(contrast_peers=3, null_scores=70, null_peer_scores=5)
    counters = Counters()
    memory, random = Contrast(config, counters), Random(3)
    for at in range(100):
        memory.own(sampled(random, 20))
        memory.judge(str(at % 9), foreign(random))
    state = memory.state()
    assert (len(state["own"]), len(state["peers"]), len(state["courses"])) == (70, 3, 3)
    assert all(len(scores) <= 5 for _, scores in state["peers"])
    assert counters.get("likelihood/evicted_contrast") > 0
    again = Contrast(config, Counters())
    again.restore(state)
    assert again.state() == state
    text = poisoned(random)
    assert again.judge("x", text) == memory.judge("x", text)
