"""Whatever numbers a completion's evidence holds, the verdict is one of three, its weight fits, and state survives."""

import math
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.defenses.config import DefenseConfig
from shoal.defenses.likelihood import Case, LikelihoodNull, judge
from shoal.defenses.token_scores import theory_p
from shoal.defenses.verdict import Action, Counters
from shoal.defenses.vouched import answer_span, pieces, vouched_tokens


class Evidence:
    """Columns of a drawn table."""

    def __init__(self, rows: list[tuple[float, float, float, float, int, bool]], finished: bool) -> None:
        self.surprise, self.entropy, self.variance, self.tail = ([row[at] for row in rows] for at in range(4))
        self.rank, self.vouched = [row[4] for row in rows], [row[5] for row in rows]
        self.finished = finished


positive = st.floats(0, 1e4, allow_nan=False)
tokens = st.tuples(positive, positive, positive, st.floats(0, 1), st.integers(0, 50_000), st.booleans())
texts = st.builds(Evidence, st.lists(tokens, max_size=40), st.booleans())


@settings(max_examples=60, deadline=None)
@given(st.lists(texts, max_size=12), texts, st.integers(-1, 500))
def test_any_evidence_gets_a_verdict_and_the_memory_its_state_back(
    known: list[Evidence], text: Evidence, age: int
) -> None:
    memory = LikelihoodNull(DefenseConfig(null_least=4), Counters())
    for at, each in enumerate(known):
        memory.own("task", at, each)
        memory.peer(Case("task", at, f"peer {at % 3}"), each)
    found = judge(memory, Case("task", age, "peer 0"), text)
    assert found.verdict.action in (Action.ACCEPT, Action.WEIGH, Action.QUARANTINE)
    assert (found.verdict.weight == 0) == (found.verdict.action is Action.QUARANTINE)
    assert 0 <= found.verdict.weight <= 1
    assert all(0 <= p <= 1 for p in (found.p, *found.p_values.values()))
    again = LikelihoodNull(DefenseConfig(null_least=4), Counters())
    again.restore(memory.state())
    assert again.state() == memory.state()
    assert judge(again, Case("task", age, "peer 0"), text) == found


@settings(max_examples=200, deadline=None)
@given(texts, st.integers(0, 39))
def test_a_rarer_token_never_looks_less_rare(text: Evidence, at: int) -> None:
    if not text.vouched or all(text.vouched):
        return
    before = theory_p(text)
    at %= len(text.tail)
    text.tail[at] /= 2
    after = theory_p(text)
    assert all(after[test] <= before[test] + 1e-12 for test in before)
    assert all(math.isfinite(p) for p in after.values())


letters = st.text("ab1. ,-", max_size=30)


@settings(max_examples=300, deadline=None)
@given(letters, letters, st.lists(st.integers(1, 5), max_size=30), st.booleans())
def test_only_the_answer_itself_is_ever_vouched(text: str, answer: str, widths: list[int], finished: bool) -> None:
    edges = [0]
    while edges[-1] < len(text):
        edges.append(min(len(text), edges[-1] + (widths.pop() if widths else 1)))
    offsets = [*pairwise(edges), *[(len(text), len(text))] * finished]
    vouched = vouched_tokens(offsets, answer_span(text, answer), finished)
    assert len(vouched) == len(offsets)
    confirmed = "".join(text[a:b] for (a, b), known in zip(offsets, vouched, strict=True) if known)
    assert confirmed in answer.strip()
    left = [token for run in pieces(range(len(offsets)), vouched) for token in run]
    assert left == [at for at, known in enumerate(vouched) if not known]
