"""The assessor on real parts: which rows of peers it reads, which it leaves, and what becomes of them."""

from dataclasses import replace

import pytest
from node_pieces import own_set, peer_set, pointer, prompt

from shoal.defenses.appraisal import AppraisalMemory
from shoal.defenses.config import DefenseConfig
from shoal.defenses.provenance import RebuiltPrompt
from shoal.defenses.screen import Screened
from shoal.defenses.verdict import ACCEPTED, Counters
from shoal.node.anchors import Anchors
from shoal.node.appraise import AppraisalContext, Assessor, Candidate
from shoal.node.reading import Text, read
from shoal.protocol.prompts import prompt_hash
from shoal.protocol.wire import PromptName, Rollout, SamplerSettings, pack_floats
from shoal.trainer.model import DEFAULT_MODEL, Policy, load_policy
from shoal.trainer.step import Trainer
from shoal.trainer.tasks.base import TaskInvariants

MAX_TOKENS = 8


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(DEFAULT_MODEL)


def assessor(policy: Policy, *off: str, anchors: Anchors | None = None) -> Assessor:
    context = AppraisalContext(lambda _: TaskInvariants(), 1.0, MAX_TOKENS, 4, 4, anchors=anchors or Anchors())
    return Assessor(Trainer(policy), context, AppraisalMemory(DefenseConfig.without(off), Counters()))


def candidate(texts: list[str], rewards: list[float], lineage: bytes) -> Candidate:
    of = prompt()
    digest = prompt_hash(of.text)
    rollout = Rollout(
        prompt=PromptName(0, 0, of.task, of.seed, of.index),
        prompt_hash=digest,
        lineage=lineage,
        tokenizer=bytes(32),
        sampler=SamplerSettings(1_000_000, 1_000_000, 0, MAX_TOKENS),
        round=0,
        policy_version=0,
        completions=tuple(texts),
        finish=bytes(len(texts)),
        token_ids=(),
        logps=(),
        mean_logps=pack_floats([-1.0] * len(texts)),
        rewards=pack_floats(rewards),
    )
    rebuilt = RebuiltPrompt.of(of.task, of.seed, of.index, of.text)
    source = pointer(1, of=of)
    screened = Screened(source, rollout, rebuilt, (ACCEPTED,) * len(texts))
    return Candidate(source, b"", screened, peer_set(1, of, texts, rewards))


@pytest.mark.parametrize("rewards", [[1.0, 1.0], [1.0, 0.0]], ids=["all right", "mixed"])
def test_poison_is_found_whether_or_not_all_rewards_are_equal(policy: Policy, rewards: list[float]) -> None:
    """Joined to an own group, a peer's set of right answers alone trains: it must be judged like any other."""
    sent = candidate(["1+1=3 ab", "ab"], rewards, policy.lineage)
    found = assessor(policy, "likelihood").assess([sent], 1)[0]
    assert found.screened.verdicts[0].reason == "false_equation"
    assert [one.row for one in found.peer.completions] == [1]


def test_rows_beyond_twice_the_own_cap_are_read_by_nobody(policy: Policy) -> None:
    longest = 2 * MAX_TOKENS
    sent = candidate(["a" * longest, "a" * (longest - 1)], [1.0, 1.0], policy.lineage)
    judge = assessor(policy)
    judge.note([own_set(policy, prompt(), ["ab", "ba"], [1.0, 0.0])])
    found = judge.assess([sent], 1)[0]
    assert found.screened.verdicts[0].reason == "beyond_own_length"  # the end mark is one more token
    assert found.screened.verdicts[1].reason != "beyond_own_length"
    assert all(one.row == 1 for one in found.peer.completions)


def test_a_base_of_another_lineage_does_not_read_them_either(policy: Policy) -> None:
    base = Anchors([str(DEFAULT_MODEL)])
    own = Policy(**{**vars(policy), "lineage": bytes([7]) * 32})
    sent = candidate(["a" * 99, "ab"], [1.0, 1.0], policy.lineage)
    asked: list[int] = []
    plain = base.evidence

    def counted(lineage: bytes, texts: list[Text], temperature: float, longest: int):
        asked.append(len(texts))
        return plain(lineage, texts, temperature, longest)

    base.evidence = counted  # pyright: ignore[reportAttributeAccessIssue]
    found = assessor(own, anchors=base).assess([sent], 1)[0]
    assert asked == [1]
    assert found.screened.verdicts[0].reason == "beyond_own_length"
    assert plain(policy.lineage, [Text(0, prompt(), "a" * 99, True, 1.0)], 1.0, 16) == [None]


def test_text_far_beyond_the_cap_is_not_even_encoded(policy: Policy) -> None:
    encoded: list[int] = []
    plain = policy.read_completions

    def counted(completions: list[tuple[str, bool]]):
        encoded.extend(len(text) for text, _ in completions)
        return plain(completions)

    watched = replace(policy)
    watched.read_completions = counted  # pyright: ignore[reportAttributeAccessIssue]
    texts = [Text(0, prompt(), text, True, 1.0) for text in ("ab", "ß" * 65, "a" * 129, "a" * 128, "ba")]
    found = read(watched, texts, 1.0, longest=16)
    assert [one.unread for one in found] == [False, True, True, True, False]
    assert encoded == [2, 128, 2]
    assert [one.text for one in found] == texts
    assert [one.row.completion_ids for one in found if one.unread] == [[], [], []]


def test_long_texts_are_encoded_a_few_at_a_time_and_stay_in_order(policy: Policy) -> None:
    calls: list[int] = []
    plain = policy.read_completions

    def counted(completions: list[tuple[str, bool]]):
        calls.append(len(completions))
        return plain(completions)

    watched = replace(policy)
    watched.read_completions = counted  # pyright: ignore[reportAttributeAccessIssue]
    texts = [Text(0, prompt(), letter * 30_000, True, 0.0) for letter in "abcde"]
    found = read(watched, texts, 1.0)
    assert calls == [2, 2, 1]
    assert [one.row.completion_ids for one in found] == [policy.encode_completion(one.text, True) for one in texts]
