"""The later layers together: what each of them decides, and that nothing stops poison when it is left out."""

import random

import pytest
from evidence_pieces import evidence_of, sampled

from shoal.defenses.appraisal import AppraisalMemory, Earner, Submission, appraise
from shoal.defenses.config import DefenseConfig
from shoal.defenses.judge import Judge
from shoal.defenses.likelihood import Case
from shoal.defenses.verdict import ACCEPTED, Action, Counters, Verdict
from shoal.trainer.tasks.base import TaskInvariants

LATER = ("invariants", "likelihood", "phrases", "judge", "reputation")
RARE = 9  # the least likely token of `evidence_pieces.WORDS`


def memory_without(*layers: str) -> AppraisalMemory:
    """A memory that has seen 600 own completions of twelve tokens."""
    memory = AppraisalMemory(DefenseConfig.without(layers), Counters())
    rng = random.Random(1)
    for number in range(600):
        memory.null.own("task", number % 4, sampled(rng, 12))
        memory.phrases.own(number.to_bytes(32, "big"), [[1, 2, 3, 4]])
    return memory


def submission(operator: str = "peer", prompt: int = 0, own_lineage: bool = True) -> Submission:
    return Submission(
        operator=operator,
        key=operator.encode().ljust(32, b"."),
        task="task",
        prompt=f"prompt {prompt}",
        prompt_hash=prompt.to_bytes(32, "big"),
        age=1,
        max_tokens=0,
        own_lineage=own_lineage,
        rules=TaskInvariants(),
    )


def earner(row: int, text: str = "fine", tokens: tuple[int, ...] = (0, 1, 0, 2), ids: tuple[int, ...] = ()) -> Earner:
    ids = ids or (1, 2, 3, 4)
    return Earner(row, text, ids, [False] * len(ids), evidence_of(tokens))


def judged(memory: AppraisalMemory, *rows: Earner, of: Submission | None = None, ask: Judge | None = None):
    return appraise(of or submission(), rows, memory, ask, round=1)


def test_an_honest_row_passes_at_full_weight():
    assert judged(memory_without(), earner(0)) == [ACCEPTED]


@pytest.mark.parametrize("text", ["2+2=5 so fine", "import calc\nfine"])
def test_invariants_refuse_and_nothing_else_would(text: str):
    verdict = judged(memory_without(), earner(0, text))[0]
    assert (verdict.action, verdict.layer) == (Action.REJECT, "invariants")
    assert judged(memory_without("invariants"), earner(0, text)) == [ACCEPTED]


def test_an_answer_that_reads_as_a_unit_hides_no_false_equation():
    hidden = Earner(0, "2+2=5 m", (1, 2, 3, 4), [False] * 4, beside="2+2=5 \n")
    assert judged(memory_without(), hidden)[0].reason == "false_equation"
    ends_in_the_answer = Earner(0, "2+2=12", (1, 2, 3, 4), [False] * 4, beside="2+2=\n")
    assert judged(memory_without(), ends_in_the_answer)[0].reason == "false_equation"


def test_far_longer_than_usual_is_refused_and_nothing_else_would():
    def padded(memory: AppraisalMemory) -> Verdict:
        for _ in range(40):
            memory.lengths.own("task", 4, rewarded=True)
        return judged(memory, earner(0, ids=(1, 2, 3, 4) * 16))[0]

    verdict = padded(memory_without())
    assert (verdict.action, verdict.layer) == (Action.REJECT, "invariants")
    assert padded(memory_without("invariants")) == ACCEPTED


def test_what_nobody_read_is_set_aside():
    unread = Earner(0, "1+1=3 " * 9, (1,) * 99, [False] * 99, unread=True)
    verdict = judged(memory_without(), unread)[0]
    assert (verdict.action, verdict.reason) == (Action.QUARANTINE, "beyond_own_length")


def test_what_nobody_read_teaches_no_phrases():
    memory = memory_without()
    before = memory.phrases.state()
    judged(memory, Earner(0, "1+1=3 " * 9, (1, 2, 3), [False] * 3, unread=True))
    assert memory.phrases.state() == before


def test_likelihood_alone_sets_aside_and_nothing_else_would():
    odd = earner(0, tokens=(RARE,) * 4 + (0,) * 8)
    verdict = judged(memory_without(), odd)[0]
    assert (verdict.action, verdict.layer) == (Action.QUARANTINE, "likelihood")
    assert judged(memory_without("likelihood"), odd) == [ACCEPTED]


def test_a_vouched_answer_need_not_be_likely():
    tokens = (RARE,) * 4
    vouched = Earner(0, "cbad", (1, 2, 3, 4), [True] * 4, evidence_of(tokens, vouched=range(4)))
    assert judged(memory_without(), vouched) == [ACCEPTED]


def with_phrase(memory: AppraisalMemory, ids: tuple[int, ...]) -> None:
    """Peers say the same words under many prompts, which this node never says."""
    for prompt in range(1, 60):
        for operator in ("one", "two"):
            judged(memory, earner(0, ids=ids), of=submission(operator, prompt))


def test_a_phrase_alone_sets_aside_and_nothing_else_would():
    memory, without = memory_without(), memory_without("phrases")
    with_phrase(memory, (7, 8, 9, 7))
    with_phrase(without, (7, 8, 9, 7))
    verdict = judged(memory, earner(0, ids=(7, 8, 9, 7)))[0]
    assert (verdict.action, verdict.layer) == (Action.QUARANTINE, "phrases")
    assert judged(without, earner(0, ids=(7, 8, 9, 7))) == [ACCEPTED]


def test_an_unlikely_phrase_is_refused():
    memory = memory_without("reputation")
    with_phrase(memory, (7, 8, 9, 7))
    odd = earner(0, tokens=(RARE,) * 4 + (0,) * 8, ids=(7, 8, 9, 7))
    assert judged(memory, odd)[0].action is Action.REJECT


def test_reputation_weighs_who_keeps_sending_poison_and_refuses_in_the_end():
    def good_row_after_poison(memory: AppraisalMemory) -> Verdict:
        for prompt in range(3):
            judged(memory, earner(0, "1+1=3"), earner(1), earner(2), of=submission("poisoner", prompt))
        return judged(memory, earner(0), of=submission("poisoner", 9))[0]

    verdict = good_row_after_poison(memory_without())
    assert verdict.action is Action.WEIGH
    assert (verdict.layer, verdict.reason) == ("reputation", "suspect")
    assert good_row_after_poison(memory_without("reputation")) == ACCEPTED
    memory = memory_without()
    for prompt in range(20):
        judged(memory, earner(0, "1+1=3"), earner(1), of=submission("poisoner", prompt))
    assert memory.suspicion.refused("poisoner", 1)
    assert not memory.suspicion.refused("peer", 1)


def test_more_than_half_of_the_earners_bad_condemns_the_rest():
    verdicts = judged(memory_without(), earner(0, "1+1=3"), earner(1, "1+2=4"), earner(2))
    assert [verdict.usable for verdict in verdicts] == [False] * 3
    verdicts = judged(memory_without(), earner(0, "1+1=3"), earner(1), earner(2))
    assert [verdict.usable for verdict in verdicts] == [False, True, True]


def judge_that_says(word: str, memory: AppraisalMemory, seen: list[str]) -> Judge:
    """A judge that passes its examination is not made by a constant: it tells planted answers by what they hold."""

    class Constant(Judge):
        def opinion(self, prompt: str, completion: str, why: str):
            seen.append(completion)
            from shoal.defenses.judge import Opinion

            return Opinion(word)

    return Constant(lambda _: word, memory.config, memory.counters, random.Random(1))


def in_doubt(memory: AppraisalMemory) -> Earner:
    """A row that likelihood weighs: searched for, since where doubt begins is calibrated."""
    from shoal.defenses.likelihood import judge

    for length in range(2, 40):
        for odd in range(1, 4):
            row = earner(0, tokens=(8,) * odd + (0, 1) * length)
            found = judge(memory.null, Case("task", 1, "peer"), row.evidence).verdict
            if found.action is Action.WEIGH:
                return row
    raise AssertionError("no row in doubt was found")


def test_the_judge_lowers_what_is_in_doubt_and_is_asked_nothing_else():
    memory, seen = memory_without(), list[str]()
    row = in_doubt(memory)
    assert judged(memory, row)[0].action is Action.WEIGH
    verdict = judged(memory, row, ask=judge_that_says("suspect", memory, seen))[0]
    assert (verdict.action, verdict.layer) == (Action.QUARANTINE, "judge")
    assert judged(memory, row, ask=judge_that_says("honest", memory, seen))[0].action is Action.WEIGH
    asked = len(seen)
    false = judged(memory, earner(0, "1+1=3"), ask=judge_that_says("honest", memory, seen))[0]
    assert false.action is Action.REJECT
    judged(memory, earner(0), ask=judge_that_says("suspect", memory, seen))
    assert len(seen) == asked


def test_every_refusal_is_counted():
    memory = memory_without()
    judged(memory, earner(0, "1+1=3"), earner(1), earner(2))
    assert memory.counters.get("invariants/false_equation_row") == 1


def test_other_lineages_are_weighed_and_never_refused_by_likelihood():
    memory = memory_without()
    odd = earner(0, tokens=(RARE,) * 4 + (0,) * 8)
    verdict = judged(memory, odd, of=submission(own_lineage=False))[0]
    assert verdict.action is Action.WEIGH
    assert 0.0 < verdict.weight <= memory.config.other_lineage  # a lie about one's lineage does not buy full weight
    assert judged(memory, earner(0), of=submission(own_lineage=False)) == [ACCEPTED]


def test_memory_is_equal_after_a_round_trip():
    memory, again = memory_without(), AppraisalMemory(DefenseConfig(), Counters())
    with_phrase(memory, (7, 8, 9, 7))
    again.restore(memory.state())
    assert again.state() == memory.state()
    odd = [earner(0, tokens=(RARE,) * 4 + (0,) * 8, ids=(7, 8, 9, 7)), earner(1, "1+1=3"), earner(2)]
    assert judged(again, *odd) == judged(memory, *odd)


def test_another_style_costs_rows_and_no_good_name():
    memory = memory_without()
    with_phrase(memory, (7, 8, 9, 7))
    judged(memory, earner(0, ids=(7, 8, 9, 7)), of=submission("two", 99))
    assert memory.suspicion.evidence("two", 1) == 0.0
    assert judged(memory, earner(0), of=submission("two", 100)) == [ACCEPTED]
