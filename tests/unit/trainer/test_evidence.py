"""The evidence of a row against its definition, token by token, and that it costs the update nothing."""

import math
from typing import Any

import pytest
import torch
from tiny_policy import random_rows, same, tiny_policy, weights

from shoal.protocol.errors import UsageError
from shoal.trainer import evidence as evidence_module
from shoal.trainer.algorithm import OptimizerSpec
from shoal.trainer.batch import Row
from shoal.trainer.evidence import RowEvidence
from shoal.trainer.model import DEFAULT_MODEL, load_policy
from shoal.trainer.step import Trainer


def policy_with_end(**changes: Any) -> Any:
    policy = tiny_policy(**changes)
    policy.eos_ids = (1,)
    return policy


def unvouched(rows: list[Row]) -> list[list[bool]]:
    return [[False] * len(row.completion_ids) for row in rows]


def by_definition(model: Any, row: Row) -> dict[str, list[float]]:
    """Each statistic from the whole distribution as plain Python numbers: the row alone, one token at a time."""
    found: dict[str, list[float]] = {name: [] for name in ("surprise", "entropy", "variance", "tail", "rank")}
    for at, token in enumerate(row.completion_ids):
        ids = torch.tensor([row.prompt_ids + row.completion_ids[:at]])
        logits = [value / row.temperature for value in model(input_ids=ids, use_cache=False).logits[0, -1].tolist()]
        total = math.fsum(math.exp(value) for value in logits)
        p = [math.exp(value) / total for value in logits]
        entropy = -math.fsum(x * math.log(x) for x in p)
        found["surprise"].append(-math.log(p[token]))
        found["entropy"].append(entropy)
        found["variance"].append(math.fsum(x * (-math.log(x) - entropy) ** 2 for x in p))
        found["tail"].append(math.fsum(x for x in p if x <= p[token]))
        found["rank"].append(sum(x > p[token] for x in p))
    return found


@pytest.mark.parametrize("chunk", [1, 70, 1 << 20])
@pytest.mark.parametrize("share_prompts", [True, False])
def test_statistics_equal_their_definition(monkeypatch: pytest.MonkeyPatch, chunk: int, share_prompts: bool) -> None:
    monkeypatch.setattr(evidence_module, "CHUNK", chunk)
    policy, rows = policy_with_end(), random_rows(seed=3)
    for number, row in enumerate(rows):
        row.temperature = (1.0, 0.625, 1.75)[number % 3]  # exact in float32
    trainer = Trainer(policy, optimizer=OptimizerSpec(micro_tokens=40))
    trainer.share_prompts = share_prompts
    for row, found in zip(rows, trainer.evidence(rows, unvouched(rows)), strict=True):
        for name, expected in by_definition(policy.model, row).items():
            assert getattr(found, name) == pytest.approx(expected, rel=1e-9, abs=1e-12), name
        assert found.logps.tolist() == pytest.approx([-value for value in found.surprise])


def test_the_tail_of_the_likeliest_token_is_one_and_of_the_rarest_its_own_probability() -> None:
    policy = policy_with_end()
    row = Row(0, [2, 3], [4], 1.0)
    p = torch.softmax(policy.model(input_ids=torch.tensor([[2, 3]])).logits[0, -1], -1)
    for token, tail, rank in ((p.argmax(), 1.0, 0), (p.argmin(), p.min().item(), 31)):
        row.completion_ids = [int(token)]
        [found] = Trainer(policy).evidence([row], [[False]])
        assert found.tail == pytest.approx([tail])
        assert found.rank == [rank]


def test_scores_are_the_same_and_the_update_does_not_make_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = policy_with_end(), policy_with_end()
    plain, rows = random_rows(), random_rows()
    scored = Trainer(first).score(plain).logps
    Trainer(first).update(plain)
    trainer = Trainer(second)
    found = trainer.evidence(rows, unvouched(rows))
    assert same([each.logps for each in found], scored)
    again: list[Row] = []
    monkeypatch.setattr(trainer, "_logps", lambda model, missing: again.extend(missing) or [])
    assert trainer.update(rows).signal
    assert not again
    assert same(weights(first), weights(second))
    assert {row.scored_version for row in rows} == {0}
    assert all(row.old_logps is each.logps for row, each in zip(rows, found, strict=True))


def test_evidence_follows_the_policy() -> None:
    policy, rows = policy_with_end(), random_rows()
    trainer = Trainer(policy, optimizer=OptimizerSpec(lr=0.05))
    before = trainer.evidence(rows, unvouched(rows))
    trainer.update(rows)
    after = trainer.evidence(rows, unvouched(rows))
    assert before[0].surprise != after[0].surprise
    assert {row.scored_version for row in rows} == {1}


def test_the_chunked_statistics_of_the_default_model_equal_its_scores_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = load_policy(DEFAULT_MODEL)
    rows = [
        Row(uid, policy.encode_prompt(prompt), policy.encode_completion(text, finished=True), 1.0, temperature=0.7)
        for uid, (prompt, text) in enumerate([("reverse abc=", "cba"), ("last wxyz=", "hm z"), ("copy ab=", "none")])
    ]
    trainer = Trainer(policy)
    scored = [logps.clone() for logps in trainer.score(rows).logps]
    monkeypatch.setattr(evidence_module, "CHUNK", 128)
    assert same([found.logps for found in trainer.evidence(rows, unvouched(rows))], scored)


def test_an_end_mark_makes_a_row_finished_and_what_is_vouched_is_kept() -> None:
    rows = [Row(0, [2, 3], [4, 5, 1], 1.0), Row(0, [2, 3], [4, 5], 1.0)]
    done, cut = Trainer(policy_with_end()).evidence(rows, [[True, False, False], [False, True]])
    assert (done.finished, done.vouched) == (True, [True, False, False])
    assert (cut.finished, cut.vouched) == (False, [False, True])


def test_rows_that_cannot_be_read_have_no_values_and_do_not_stop_the_others() -> None:
    rows = [Row(0, [2, 3], [4] * 70, 1.0), Row(0, [2, 3], [4, 5], 1.0), Row(0, [2, 3], [], 1.0)]
    found = Trainer(policy_with_end()).evidence(rows, unvouched(rows))
    assert [len(each.surprise) for each in found] == [0, 2, 0]
    assert [len(each.vouched) for each in found] == [0, 2, 0]
    assert rows[0].old_logps is None
    assert isinstance(found[0], RowEvidence)


def test_one_mark_a_token_must_be_given() -> None:
    with pytest.raises(UsageError, match="1 values for 2 tokens"):
        Trainer(policy_with_end()).evidence([Row(0, [2, 3], [4, 5], 1.0)], [[True]])


@pytest.mark.parametrize("text", ["cba", "  hm, 12", "", "né x\n\n 42"])
@pytest.mark.parametrize("finished", [True, False])
def test_offsets_of_a_completion_fit_its_ids(text: str, finished: bool) -> None:
    policy = load_policy(DEFAULT_MODEL)
    offsets = policy.completion_offsets(text, finished)
    assert len(offsets) == len(policy.encode_completion(text, finished))
    if finished:
        assert offsets.pop() == (len(text), len(text))
    assert "".join(text[start:end] for start, end in offsets) == text


def test_offsets_leave_out_white_space_before_a_tokens_text() -> None:
    policy = load_policy(DEFAULT_MODEL)
    text = "a  bc \n"

    class Wordwise:
        is_fast = True

        def __call__(self, texts: list[str], **options: Any) -> dict[str, Any]:
            return {"input_ids": [[1, 2, 3]], "offset_mapping": [[(0, 1), (1, 5), (5, 7)]]}

    policy.tokenizer = Wordwise()
    assert [text[a:b] for a, b in policy.completion_offsets(text, finished=False)] == ["a", "bc", " \n"]
