"""The likelihood verdict: honest text passes at any age, what is planted does not, and nobody speaks for himself."""

import math
from random import Random

import pytest
from evidence_pieces import WORDS, Evidence, evidence_of, sampled, sharpened

from shoal.defenses.config import DefenseConfig
from shoal.defenses.likelihood import Case, Judgement, LikelihoodNull, judge
from shoal.defenses.verdict import Action, Counters

TASK = "task"
PHRASE = [8, 9, 9, 8]


def null(**changes: int | float | frozenset[str]) -> LikelihoodNull:
    return LikelihoodNull(DefenseConfig(**changes), Counters())  # type: ignore[arg-type]


def learned(count: int = 600, seed: int = 0, **changes: int | float | frozenset[str]) -> LikelihoodNull:
    memory, random = null(**changes), Random(seed)
    for _ in range(count):
        memory.own(TASK, 0, sampled(random, random.randint(5, 40), finished=True))
    return memory


def drifted(random: Random, power: float, length: int = 20) -> Evidence:
    """A text of another policy (sharper or flatter), looked at with the own one."""
    return evidence_of(random.choices(range(len(WORDS)), sharpened(power), k=length), finished=True)


def actions(memory: LikelihoodNull, case: Case, texts: list[Evidence]) -> dict[Action, float]:
    found = [judge(memory, case, text).verdict.action for text in texts]
    return {action: found.count(action) / len(found) for action in Action}


def test_honest_text_is_quarantined_as_rarely_as_said_and_loses_little_weight() -> None:
    memory, random = learned(1000), Random(1)
    found = [judge(memory, Case(TASK, 0), sampled(random, random.randint(5, 40), finished=True)) for _ in range(2000)]
    quarantined = sum(each.verdict.action is Action.QUARANTINE for each in found)
    assert quarantined <= 2000 * 0.005
    weight = sum(each.verdict.weight for each in found) / len(found)
    assert 0.95 < weight < 1.0


@pytest.mark.parametrize("place", [0, 10, 20])
def test_a_phrase_is_quarantined_wherever_it_stands(place: int) -> None:
    memory, random = learned(), Random(2)
    texts = []
    for _ in range(100):
        honest = random.choices(range(len(WORDS)), WORDS, k=20)
        texts.append(evidence_of([*honest[:place], *PHRASE, *honest[place:]], finished=True))
    assert actions(memory, Case(TASK, 0), texts)[Action.QUARANTINE] >= 0.99


def test_what_the_verifier_vouches_for_need_not_be_likely() -> None:
    memory = learned()
    tokens = [0, 0, 1, *PHRASE, 0]
    unlikely = judge(memory, Case(TASK, 0), evidence_of(tokens))
    assert unlikely.verdict.action is Action.QUARANTINE
    assert unlikely.verdict.layer == "likelihood"
    assert unlikely.verdict.weight == 0.0
    assert judge(memory, Case(TASK, 0), evidence_of(tokens, vouched=range(3, 7))).verdict.action is Action.ACCEPT
    assert judge(memory, Case(TASK, 0), evidence_of(tokens, vouched=range(8))) == Judgement(
        judge(memory, Case(TASK, 0), Evidence()).verdict
    )


def test_without_a_null_the_bounds_of_theory_judge_alone_and_it_is_counted() -> None:
    memory = null()
    # A token of the rarest hundredth is no wonder in a text of ten; three of one in a thousand side by side are.
    assert judge(memory, Case(TASK, 0), evidence_of([0] * 9 + [7])).verdict.action is Action.ACCEPT
    found = judge(memory, Case(TASK, 0), evidence_of([0] * 7 + [9, 9, 9]))
    assert found.verdict.action is Action.QUARANTINE
    assert set(found.p_values) == {"tail", "window"}
    assert found.p_values["tail"] == pytest.approx(10 * 0.001)
    assert memory.counters.state() == {"likelihood/no_null": 2}
    sure = [1 - 9e-6, *[1e-6] * 9]
    assert judge(memory, Case(TASK, 0), evidence_of([0] * 9 + [9], sure)).verdict.reason == "unlikely_token"


def test_theory_stands_in_only_for_the_tests_that_have_no_null() -> None:
    memory, random = null(), Random(11)
    for _ in range(100):
        memory.own(TASK, 0, sampled(random, 2))
    text = evidence_of([0, 6, 0, 0])
    found = judge(memory, Case(TASK, 0), text)
    assert set(found.p_values) == {"tail", "window"}
    assert found.p_values["tail"] == memory.p_value("tail", found.scores["tail"], Case(TASK, 0), 4)
    assert found.p_values["tail"] != pytest.approx(4 * 0.02)


def test_the_null_of_an_age_is_asked_where_there_is_one() -> None:
    memory, random = learned(), Random(3)
    aged = [drifted(random, 0.4) for _ in range(300)]
    for text in aged[:200]:
        memory.own(TASK, 5, text)
    fresh, old = (actions(memory, Case(TASK, age), aged[200:])[Action.QUARANTINE] for age in (0, 4))
    assert fresh > 0.15
    assert old <= 0.02
    phrase = [evidence_of([*PHRASE, *PHRASE, *[0] * 12], finished=True)]
    assert actions(memory, Case(TASK, 4), phrase)[Action.QUARANTINE] == 1.0


def test_an_unknown_task_or_length_is_judged_by_the_next_coarser_null() -> None:
    memory = learned()
    text = sampled(Random(6), 300, finished=True)
    found = judge(memory, Case("another", 0), text)
    assert found.verdict.action is Action.ACCEPT
    assert "likelihood/no_null" not in memory.counters.state()
    unknown = null()
    for _ in range(63):
        unknown.own(TASK, 0, sampled(Random(1), 20, finished=True))
    assert unknown.p_value("tail", 1.0, Case(TASK, 0), 20) is None
    unknown.own("another", 9, sampled(Random(1), 200, finished=True))
    assert unknown.p_value("tail", 1.0, Case(TASK, 0), 20) is not None


def test_p_values_are_conformal_in_the_cell_of_task_age_and_length() -> None:
    memory, random = null(), Random(8)
    texts = [sampled(random, 20) for _ in range(160)]
    for text in texts:
        memory.own(TASK, 2, text)
        memory.own(TASK, 0, evidence_of([0] * 20))
        memory.own("other", 2, evidence_of([0] * 20))
    scores = [memory.scores(TASK, text)["tail"] for text in texts]
    for score in sorted(scores)[:-12]:
        expected = (1 + sum(other >= score for other in scores)) / 161
        assert memory.p_value("tail", score, Case(TASK, 3), 31) == pytest.approx(expected)


def test_greedy_text_and_rare_ends_only_weigh() -> None:
    memory = learned(2000)
    greedy = judge(memory, Case(TASK, 0), evidence_of([0] * 39, finished=True))
    assert greedy.verdict.action is Action.WEIGH
    assert greedy.verdict.reason == "too_likely"
    ended = evidence_of([1, 0, 0, 0, 2, 0], finished=True)
    assert judge(memory, Case(TASK, 0), ended).verdict.action is Action.ACCEPT
    ended.surprise[-1] = 60.0
    ended.tail[-1] = 0.1
    ended.entropy[-1] = 59.0
    found = judge(memory, Case(TASK, 0), ended)
    assert (found.verdict.action, found.verdict.reason) == (Action.WEIGH, "unlikely_end")
    assert found.verdict.weight == pytest.approx(max(found.p / 0.05, 0.05))


def test_a_completion_that_stops_before_its_cap_without_an_end_weighs_less() -> None:
    memory = learned()
    text = evidence_of([0, 1, 0, 0, 1, 0, 2, 0, 0, 0])
    for cap, action in ((0, Action.ACCEPT), (12, Action.ACCEPT), (14, Action.WEIGH)):
        assert judge(memory, Case(TASK, 0, max_tokens=cap), text).verdict.action is action
    text.finished = True
    assert judge(memory, Case(TASK, 0, max_tokens=100), text).verdict.action is Action.ACCEPT


def test_peers_that_were_trained_apart_pass_by_what_other_peers_look_like() -> None:
    memory, random = learned(), Random(4)
    honest = [drifted(random, 0.4) for _ in range(100)]
    alone = actions(memory, Case(TASK, 0, "a"), honest)[Action.QUARANTINE]
    for operator in ("a", "b", "c"):
        for _ in range(100):
            memory.peer(Case(TASK, 0, operator), drifted(random, 0.4))
    together = actions(memory, Case(TASK, 0, "a"), honest)[Action.QUARANTINE]
    assert alone > 0.2
    assert together <= 0.02
    assert actions(memory, Case(TASK, 0, "a"), [evidence_of([*PHRASE, *PHRASE, *[0] * 12])])[Action.QUARANTINE] == 1.0


@pytest.mark.parametrize("poisoners", [["m"], ["m", "n"], ["m", "n", "o"]])
def test_poison_does_not_vouch_for_poison_while_the_honest_are_as_many(poisoners: list[str]) -> None:
    memory, random = learned(), Random(5)

    def poisoned() -> Evidence:
        return evidence_of([*PHRASE, *random.choices(range(len(WORDS)), WORDS, k=12)], finished=True)

    for _ in range(100):
        for operator in ("a", "b", "c"):
            memory.peer(Case(TASK, 0, operator), sampled(random, 16, finished=True))
        for operator in poisoners:
            memory.peer(Case(TASK, 0, operator), poisoned())
    assert actions(memory, Case(TASK, 0, "m"), [poisoned() for _ in range(50)])[Action.QUARANTINE] == 1.0


def test_nobody_speaks_for_himself() -> None:
    memory = learned()
    text = evidence_of([*PHRASE, *[0] * 12], finished=True)
    for _ in range(100):
        for operator in ("m", "z"):
            memory.peer(Case(TASK, 0, operator), text)
    # Of two, half is not believed. Counting himself, the other would be left, and say that such text is common.
    assert judge(memory, Case(TASK, 0, "m"), text).verdict.action is Action.QUARANTINE
    assert judge(memory, Case(TASK, 0, "x"), text).verdict.action is Action.ACCEPT


def test_a_twelfth_of_poison_among_honest_rows_lets_no_poison_through() -> None:
    memory, random = learned(), Random(7)
    for at in range(120):
        for operator in ("a", "b", "c", "d"):
            text = evidence_of([*PHRASE, *[0] * 12]) if at % 12 == 0 else sampled(random, 16, finished=True)
            memory.peer(Case(TASK, 0, operator), text)
    once, twice = (judge(memory, Case(TASK, 0, "a"), evidence_of([*PHRASE * n, *[0] * 12])).verdict for n in (1, 2))
    assert once.weight < 0.5
    assert twice.action is Action.QUARANTINE


def test_evidence_that_is_not_a_number_is_quarantined_and_teaches_nothing() -> None:
    memory = learned(100)
    before = memory.state()
    broken = evidence_of([0, 1, 0, 0])
    broken.surprise[2] = math.nan
    memory.own(TASK, 0, broken)
    memory.peer(Case(TASK, 0, "a"), broken)
    assert memory.state() == before
    assert judge(memory, Case(TASK, 0), broken).verdict.reason == "not_finite"


def test_switched_off_it_accepts() -> None:
    memory = learned(100, disabled=frozenset({"likelihood"}))
    assert judge(memory, Case(TASK, 0), evidence_of(PHRASE * 3)) == Judgement(
        judge(memory, Case("", 0), Evidence()).verdict
    )


def test_memory_is_bounded_and_evictions_are_counted() -> None:
    memory = null(null_cells=6, null_scores=5, null_peers=4, null_peer_scores=3)
    random = Random(0)
    for task in range(30):
        for _ in range(7):
            memory.own(str(task), task, sampled(random, 10))
            memory.peer(Case("t", 0, str(task)), sampled(random, 10))
    state = memory.state()
    assert (len(state["cells"]), len(state["peers"]), len(state["rates"])) == (6, 4, 6)
    assert {len(scores) for *_, samples in state["cells"] for scores in samples.values()} <= {1, 2, 3, 4, 5}
    assert {len(scores) for *_, samples in state["peers"] for scores in samples.values()} == {3}
    counts = memory.counters.state()
    assert counts["likelihood/evicted_rate"] == 24
    assert counts["likelihood/evicted_cell"] > 0
    assert counts["likelihood/evicted_peer"] > 0


def test_state_round_trips_exactly() -> None:
    memory, random = learned(150), Random(9)
    for operator in ("a", "b"):
        memory.peer(Case(TASK, 3, operator), sampled(random, 10))
    again = null()
    again.restore(memory.state())
    assert again.state() == memory.state()
    for _ in range(50):
        text = sampled(random, 12, finished=True)
        assert judge(again, Case(TASK, 0, "z"), text) == judge(memory, Case(TASK, 0, "z"), text)
        again.own(TASK, 0, text)
        memory.own(TASK, 0, text)
    assert again.state() == memory.state()


def test_the_rate_of_rare_tokens_is_the_tasks_own_and_forgets() -> None:
    memory = null(rare_rank=3, rate_tokens=1000)
    rare = evidence_of([5, 0, 0, 0] * 5)
    before = memory.scores(TASK, rare)["rank"]
    for _ in range(90):
        memory.own(TASK, 0, rare)
    assert memory.scores(TASK, rare)["rank"] < 1 < before
    assert memory.scores("another", rare)["rank"] == before
    [[_, found, tokens]] = memory.state()["rates"]
    assert found / tokens == pytest.approx(0.25)
    assert tokens <= 1020
