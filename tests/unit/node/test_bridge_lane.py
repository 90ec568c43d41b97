"""The unsigned lane: which sets it lets through, how they are graded, and how much they may weigh together."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from bridge_pieces import peer
from live_node import manifest
from node_pieces import identity, own_set, prompt

from shoal.defenses.verdict import Counters
from shoal.node.bridge.lane import (
    MUTE_AFTER,
    MUTED_ROUNDS,
    SETS_PER_PEER,
    Candidate,
    Judged,
    Lane,
    Moment,
    Mutes,
    lane_key,
)
from shoal.node.bridge.questions import DATA_TASK, Questions, Scorable, data_registry, question_of
from shoal.node.bridge.wire import ForeignSet
from shoal.node.config import Mixing
from shoal.node.draw import LocalPrompts
from shoal.node.loop import cap_operators
from shoal.protocol.prompts import SHARED, is_held_out, prompt_hash
from shoal.trainer.model import DEFAULT_MODEL, load_policy
from shoal.trainer.tasks.answers import ask
from shoal.trainer.tasks.base import Prompt
from shoal.trainer.tasks.registry import TaskRegistry, TaskSpec
from shoal.trainer.verify import Grader, Score

G = 4
REGISTRY = TaskRegistry([TaskSpec("strings/reverse")])
LONG = "the same long line of thought that nobody has twice by chance "


@pytest.fixture
def grader() -> Iterator[Grader]:
    with Grader(REGISTRY) as grader:
        yield grader


def lane(external: int = 8, share: float = 0.125, **mixing: object) -> Lane:
    settings = Mixing(**({"external": external, "group_size": G} | mixing))
    return Lane(settings, share, ("<|end|>",), Counters())


def candidate(grader: Grader, texts: Sequence[str], number: int = 1, index: int = 0, round: int = 7) -> Candidate:
    of = prompt(index)
    foreign = ForeignSet(of.text, tuple(texts))
    return Candidate(peer(number), round, foreign, Scorable(of, REGISTRY, grader))


def mixed_answers(index: int = 0) -> list[str]:
    right = str(prompt(index).answer)
    return [right, "wrong", f"it is {right}", "no"]


def judge(judging: Lane, candidates: Sequence[Candidate], most: int = 8, **moment: object) -> Judged:
    settings = {"round": 40, "age": lambda round: 7 - round if 0 <= 7 - round <= 1 else None, "most": most} | moment
    return judging.sets(candidates, Moment(**settings))


def reasons(judging: Lane) -> dict[str, int]:
    return {name.removeprefix("bridge/"): count for name, count in judging.counters.state().items() if count}


def test_rewards_are_those_of_the_own_verifier(grader: Grader) -> None:
    [found] = judge(lane(), [candidate(grader, mixed_answers())]).sets
    assert [completion.reward for completion in found.completions] == [1.0, 0.0, 1.0, 0.0]
    assert found.prompt == prompt(0)
    assert found.prompt_hash == prompt_hash(prompt(0).text)


def test_that_a_completion_ended_is_not_assumed(grader: Grader) -> None:
    [found] = judge(lane(), [candidate(grader, mixed_answers())]).sets
    assert not any(completion.finished for completion in found.completions)


def test_the_whole_lane_is_one_operator_and_its_keys_are_no_public_keys(grader: Grader) -> None:
    found = judge(lane(16), [candidate(grader, mixed_answers(), number) for number in (1, 2)]).sets
    assert [one.pointer.operator for one in found] == ["bridge", "bridge"]
    assert [one.pointer.key for one in found] == [lane_key(peer(1)), lane_key(peer(2))]
    assert len({one.pointer.arrival for one in found}) == 2
    assert all(one.pointer.arrival < 0 for one in found), "no pointer's arrival is negative"


def test_age_is_counted_in_the_other_swarms_rounds_and_told_in_own_ones(grader: Grader) -> None:
    found = judge(lane(16), [candidate(grader, mixed_answers(), n, round=round) for n, round in ((1, 7), (2, 6))]).sets
    assert [one.pointer.round for one in found] == [40, 39]


@pytest.mark.parametrize("round", [5, 8])
def test_a_round_out_of_bounds_is_stale(grader: Grader, round: int) -> None:
    judging = lane()
    assert judge(judging, [candidate(grader, mixed_answers(), round=round)]).sets == []
    assert reasons(judging) == {"stale": 1}


@pytest.mark.parametrize("size", [1, G - 1, G + 1, 64])
def test_a_group_of_another_size_is_refused_without_offence(grader: Grader, size: int) -> None:
    judging = lane()
    judged = judge(judging, [candidate(grader, ["a"] * size)])
    assert (judged.sets, judged.offenders) == ([], [])
    assert reasons(judging) == {"other_group_size": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a\x1b[2Jb", "control_character"),
        ("a\u202eb", "bidi_character"),
        ("a\u200bb", "zero_width"),
        ("a<|end|>b", "special_token"),
        ("a" * 65, "too_long"),
    ],
)
def test_text_that_breaks_the_policy_is_an_offence(grader: Grader, text: str, reason: str) -> None:
    judging = lane()
    judged = judge(judging, [candidate(grader, [*mixed_answers()[1:], text])])
    assert (judged.sets, judged.offenders) == ([], [peer(1)])
    assert reasons(judging) == {reason: 1}


def test_a_set_without_variance_takes_no_place(grader: Grader) -> None:
    judging = lane()
    uniform = candidate(grader, ["wrong"] * G)
    [found] = judge(judging, [uniform, candidate(grader, mixed_answers(), 2)]).sets
    assert found.pointer.key == lane_key(peer(2))
    assert reasons(judging) == {"no_variance": 1, "used": 1}


def test_in_a_joined_mix_only_what_was_asked_is_used_and_variance_is_no_matter(grader: Grader) -> None:
    judging = lane(16, mix="joined")
    right = [str(prompt(1).answer)] * G
    asked = frozenset([prompt_hash(prompt(1).text)])
    found = judge(judging, [candidate(grader, mixed_answers()), candidate(grader, right, 2, 1)], asked=asked).sets
    assert [one.prompt for one in found] == [prompt(1)]
    assert reasons(judging) == {"not_asked": 1, "used": 1}


def test_own_completions_do_not_come_back_through_the_lane() -> None:
    registry = TaskRegistry([TaskSpec("rg/chain_sum")])
    of = registry.prompt("rg/chain_sum", 1, 1)
    texts = [LONG + str(number) for number in range(G)]
    judging = lane()
    judging.remember_own([own_set(load_policy(DEFAULT_MODEL), of, texts, [0.0] * G)])
    with Grader(registry) as grader:
        copied = Candidate(peer(1), 7, ForeignSet(of.text, tuple(texts)), Scorable(of, registry, grader))
        judged = judge(judging, [copied])
    assert (judged.sets, judged.offenders) == ([], [peer(1)])
    assert reasons(judging) == {"copied_text": 1}


class DeadlyGrader:
    """A verifier in which every answer has to be killed."""

    def grade(self, items: Sequence[tuple[Prompt, str]], most_killed: int) -> list[Score]:
        return [Score(None, "cpu_time" if at < most_killed else "budget") for at in range(len(items))]


def test_a_set_that_kills_the_verifier_is_an_offence() -> None:
    judging = lane()
    judged = judge(judging, [candidate(DeadlyGrader(), mixed_answers())])  # type: ignore[arg-type]
    assert (judged.sets, judged.offenders) == ([], [peer(1)])
    assert reasons(judging) == {"unscorable_cpu_time": 2, "unscorable_budget": 2, "verifier_killed": 1}


@pytest.mark.parametrize(
    ("external", "share", "places", "weight"),
    [(4, 0.125, 1, 0.5), (1, 0.125, 1, 0.125), (8, 0.125, 1, 1.0), (12, 0.125, 1, 1.0), (16, 0.125, 2, 1.0)],
)
def test_all_sets_together_weigh_at_most_the_share(
    grader: Grader, external: int, share: float, places: int, weight: float
) -> None:
    judging = lane(external, share)
    many = [candidate(grader, mixed_answers(), number) for number in range(60)]
    found = judge(judging, judging.draw(many, external, random.Random(0)), most=external).sets
    assert len(found) == places
    assert {completion.weight for one in found for completion in one.completions} == {weight}
    assert len(found) * weight <= share * external


def test_without_external_rollouts_there_is_no_lane(grader: Grader) -> None:
    judging = lane(0)
    assert judging.draw([candidate(grader, mixed_answers())], 8, random.Random(0)) == []
    assert judge(judging, [candidate(grader, mixed_answers())]).sets == []


def test_one_loud_peer_of_51_gets_its_turn_and_no_more(grader: Grader) -> None:
    judging = lane(16)
    loud = [candidate(grader, mixed_answers(), 0, index) for index in range(SETS_PER_PEER)]
    others = [candidate(grader, mixed_answers(), number) for number in range(1, 51)]
    drawn: Counter[str] = Counter()
    for seed in range(2000):
        drawn.update(one.peer for one in judging.draw([*loud, *others], 8, random.Random(seed))[:2])
    assert sum(drawn.values()) == 4000
    assert drawn[peer(0)] / 4000 < 2 / 51, "a fair share is 1 / 51"


def test_a_muted_peer_may_come_back_in_time() -> None:
    mutes = Mutes(Counters())
    for _ in range(MUTE_AFTER - 1):
        mutes.offend(peer(1), 10)
    assert not mutes.muted(peer(1), 10)
    mutes.offend(peer(1), 11)
    assert mutes.muted(peer(1), 10 + MUTED_ROUNDS)
    assert not mutes.muted(peer(2), 10)
    assert not mutes.muted(peer(1), 11 + MUTED_ROUNDS)
    assert not mutes.muted(peer(1), 11), "its offences are forgotten"


def test_the_lanes_rows_are_capped_apart_from_signed_ones() -> None:
    advantages = [1.0] * 8 + [1.0, 1.0] + [2.0] * 4 + [1.0] * 40
    operators = [""] * 8 + ["a", "a"] + ["b"] * 4 + ["bridge"] * 40
    factors = cap_operators(advantages, operators, share=1.0, lane=0.125)
    assert factors[:14] == cap_operators(advantages[:14], operators[:14], share=1.0), "signed ones do not notice"
    mass = sum(abs(a) * f for a, f in zip(advantages[14:], factors[14:], strict=True))
    assert mass == pytest.approx(0.125 * 8.0)
    assert cap_operators([1.0, 1.0], ["", "bridge"], share=1.0, lane=0.0) == [1.0, 0.0]
    assert cap_operators([9.0, 1.0], ["", "bridge"], share=1.0, lane=0.125) == [1.0, 1.0]


def test_only_questions_of_the_own_prompts_are_known(grader: Grader) -> None:
    swarm = manifest()
    local = LocalPrompts(swarm, TaskRegistry(swarm.tasks))
    questions = Questions(local, grader, identity(1).key, own_slots=2)
    questions.refresh(range(5, 7))
    for scope_key, slot in ((SHARED, 0), (SHARED, 63), (identity(1).key, 1)):
        known = local.at(6, scope_key, slot)[1]
        found = questions.find(known.text)
        assert found is not None
        assert found.prompt.text == known.text
    for stranger in (local.at(9, SHARED, 0)[1].text, local.at(6, identity(2).key, 0)[1].text, "1 + 1", ""):
        assert questions.find(stranger) is None
    questions.refresh(range(8, 10))
    assert questions.find(local.at(6, SHARED, 0)[1].text) is None


def test_questions_of_the_bridges_own_data_set_are_known_but_for_held_out_ones(tmp_path, grader: Grader) -> None:
    asked = [f"How much is {number} + 1?" for number in range(60)]
    path = tmp_path / "data.jsonl"
    lines = [f'{{"question": "{text}", "answer": "{number + 1}"}}' for number, text in enumerate(asked)]
    path.write_text("\n".join(lines), encoding="utf-8")
    swarm = manifest()
    questions = Questions(LocalPrompts(swarm, TaskRegistry(swarm.tasks)), grader, identity(1).key, own_slots=0)
    registry = data_registry(str(path), "")
    with Grader(registry) as data_grader:
        questions.add_data(registry, data_grader)
        known = [text for text in asked if questions.find(text) is not None]
        held_out = [text for text in asked if is_held_out(prompt_hash(ask(text)))]
        assert held_out, "the test needs some"
        assert sorted(known) == sorted(set(asked) - set(held_out))
        found = questions.find(known[0])
    assert found is not None
    assert found.prompt.task == DATA_TASK
    assert found.prompt.answer == str(asked.index(known[0]) + 1)
    assert (found.registry, found.grader) == (registry, data_grader)


def test_a_question_is_written_bare_where_its_task_has_one() -> None:
    assert question_of(prompt(0)) == prompt(0).text
    gym = TaskRegistry([TaskSpec("rg/chain_sum")]).prompt("rg/chain_sum", 1, 1)
    assert question_of(gym) == gym.entry["question"]
