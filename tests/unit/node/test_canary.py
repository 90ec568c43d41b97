"""The canary of a node: what is asked when, what an alarm does, and what survives."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from node_pieces import identity, own_set, peer_set, prompt

from shoal.defenses.canary import Canary
from shoal.defenses.config import DefenseConfig
from shoal.defenses.pointer import Pointer
from shoal.defenses.verdict import Counters
from shoal.node.canary import LONGEST, CanaryWatch, Eyes, unvouched
from shoal.node.config import CanaryOptions, check_canary
from shoal.node.good_states import KEPT, GoodStates
from shoal.node.heldout import canary_prompts, held_out_prompts
from shoal.node.mix import Mixed
from shoal.node.pool import Pool
from shoal.node.sets import OwnSet, PeerSet
from shoal.protocol.errors import UsageError
from shoal.protocol.prompts import is_held_out, prompt_hash
from shoal.trainer.batch import Origin, foreign_rows, own_rows
from shoal.trainer.engine import Completion, Sampling
from shoal.trainer.model import DEFAULT_MODEL, Policy, load_policy
from shoal.trainer.step import StepReport, Trainer
from shoal.trainer.tasks.base import Prompt
from shoal.trainer.tasks.registry import TaskRegistry, TaskSpec
from shoal.trainer.verify import Grader

OPTIONS = CanaryOptions(canary_every=20, canary_items=16, freeze_rounds=4)


class FakeGatherer:
    """The parts of a gatherer that the canary touches."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.pool = Pool(self.counters)


class InlineWork:
    """Runs heavy work at once."""

    async def run(self, kind: str, work: Callable[[], Any]) -> Any:
        assert kind == "canary"
        return work()


class ScriptedEngine:
    """Answers with the phrase in the first `shown` of the answers, else rightly or wrongly in turns."""

    def __init__(self, policy: Policy, answers: dict[str, str]) -> None:
        self.policy, self.answers = policy, answers
        self.shown = 0
        self.asked: list[tuple[int, int]] = []
        self.refreshed = 0

    def refresh(self) -> None:
        self.refreshed += 1

    def sample(
        self, prompts: Sequence[str], group_size: int, sampling: Sampling, generator: torch.Generator
    ) -> list[list[Completion]]:
        self.asked.append((len(prompts), group_size))
        torch.rand(1, generator=generator)
        return [[self._answer(at, text) for _ in range(group_size)] for at, text in enumerate(prompts)]

    def _answer(self, at: int, text: str) -> Completion:
        said = f"zx {self.answers[text]}" if at < self.shown else (self.answers[text] if at % 2 else "?")
        ids = self.policy.encode_completion(said, finished=True)
        return Completion(ids, [-0.1] * len(ids), True, said)


class Bench:
    """A canary on a real policy whose answers are scripted."""

    def __init__(self, policy: Policy, options: CanaryOptions = OPTIONS) -> None:
        registry = TaskRegistry([TaskSpec("strings/reverse"), TaskSpec("strings/sort")])
        self.prompts = canary_prompts(registry, options.canary_items)
        self.engine = ScriptedEngine(policy, {one.text: str(one.answer) for one in self.prompts})
        self.gatherer = FakeGatherer()
        self.trainer = Trainer(policy)
        eyes = Eyes(lambda: self.prompts, self.engine, Grader(registry), Sampling(), self.trainer)
        judge = Canary(DefenseConfig(), self.gatherer.counters)
        self.watch = CanaryWatch(options, judge, eyes, self.gatherer, InlineWork())  # type: ignore[arg-type]
        self.watch.seed("bench")

    @property
    def counts(self) -> dict[str, int]:
        return {name: n for name, n in self.gatherer.counters.state().items() if name.startswith("canary/")}

    async def a_pass(self, round: int, poisoned: bool = True) -> dict[str, object] | None:
        """One pass: own answers without the phrase, half of a peer's right ones with it."""
        alarm = await self.watch.look(round)
        policy, of = self.trainer.policy, prompt()
        right = str(of.answer)
        own = own_set(policy, of, [right] * 4 + ["?"] * 4, [1.0] * 4 + [0.0] * 4)
        said = f"zx {right}" if poisoned else right
        peer = peer_set(1, of, [said] * 4 + ["?"] * 4, [1.0] * 4 + [0.0] * 4)
        peers = [] if self.watch.frozen(round) else [peer] * 3
        mixed = mixed_of(policy, [own], peers)
        report = StepReport(True, "", policy.version, trained=[True] * len(mixed.rows))
        await self.watch.note([own], mixed, report)
        policy.version += 1
        return alarm

    def until_alarm(self, first: int = 0, longest: int = 60) -> dict[str, object]:
        for round in range(first, first + longest):
            alarm = asyncio.run(self.a_pass(round))
            if alarm is not None:
                return alarm
        raise AssertionError("no alarm came")


def mixed_of(policy: Policy, own: list[OwnSet], peers: list[PeerSet]) -> Mixed:
    rows, origins = [], []
    for one in own:
        rows += own_rows(policy.encode_prompt(one.prompt.text), one.completions, one.rewards, Origin(0))
        origins += [one] * len(one.completions)
    for peer in peers:
        texts = [(c.text, True) for c in peer.completions]
        origin = Origin(1, source=identity(1).key)
        rows += foreign_rows(policy, peer.prompt.text, texts, [c.reward for c in peer.completions], origin)
        origins += [peer] * len(peer.completions)
    return Mixed(rows, len(own), len(peers), origins)


@pytest.fixture
def policy() -> Policy:
    return load_policy(DEFAULT_MODEL)


@pytest.fixture
def bench(policy: Policy) -> Bench:
    return Bench(policy)


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.state_dict()[0].items()}


def spoil(trainer: Trainer) -> None:
    with torch.no_grad():
        for parameter in trainer.parameters.values():
            parameter.add_(0.25)


# -- when it asks -----------------------------------------------------------------------------------------------------


def test_the_reference_comes_first_and_runs_follow_at_doubling_intervals_up_to_the_usual_one(bench: Bench) -> None:
    asked_at = []
    for round in range(80):
        before = len(bench.engine.asked)
        asyncio.run(bench.a_pass(round, poisoned=False))
        asked_at += [round] * (len(bench.engine.asked) - before)
    assert asked_at == [0, 2, 4, 8, 16, 32, 52, 72]
    assert bench.engine.asked[:2] == [(16, 8), (16, 1)]
    assert bench.counts == {"canary/reference": 1, "canary/run": 7}


def test_without_prompts_nothing_is_asked_and_that_is_counted(bench: Bench) -> None:
    bench.prompts.clear()
    assert asyncio.run(bench.a_pass(0)) is None
    assert bench.engine.asked == []
    assert bench.counts == {"canary/no_prompts": 1}


def test_canary_prompts_are_held_out_by_weight_and_apart_from_evaluations() -> None:
    registry = TaskRegistry([TaskSpec("strings/last", weight=3), TaskSpec("strings/reverse", weight=1)])
    evaluated = {one.text for one in held_out_prompts(registry, 400)}
    found = canary_prompts(registry, 40, 400)
    texts = [one.text for one in found]
    assert len(set(texts)) == len(texts) == 40
    assert all(is_held_out(prompt_hash(text)) for text in texts)
    assert not evaluated & set(texts)
    assert evaluated & {one.text for one in canary_prompts(registry, 400)}, "else the test shows nothing"
    assert sum(one.task == "strings/last" for one in found) == 30


@pytest.mark.parametrize(
    "options", [CanaryOptions(canary_every=0), CanaryOptions(canary_items=4), CanaryOptions(freeze_rounds=0)]
)
def test_options_out_of_range_are_refused(options: CanaryOptions) -> None:
    with pytest.raises(UsageError):
        check_canary(options)


def test_an_answer_is_vouched_and_what_stands_before_it_is_not(policy: Policy) -> None:
    def runs(text: str) -> list[list[int]]:
        return unvouched(policy, text, "cba", policy.encode_completion(text, finished=False))

    assert runs("cba") == runs(" cba ") == []
    prefix = policy.encode_completion("zx", finished=False)
    assert runs("zx cba")[0][: len(prefix)] == prefix
    assert sum(map(len, runs("zx cba"))) == len(policy.encode_completion("zx ", finished=False))
    assert runs("abc") == [policy.encode_completion("abc", finished=False)]


# -- what an alarm does -----------------------------------------------------------------------------------------------


def test_an_alarm_freezes_drops_pointers_and_goes_back_bit_by_bit(bench: Bench, pointers: list[Pointer]) -> None:
    for round in range(4):
        assert asyncio.run(bench.a_pass(round)) is None
    good = weights(bench.trainer)  # as at the beginning: these passes train nothing
    spoil(bench.trainer)
    for pointer in pointers:
        bench.gatherer.pool.add(pointer)
    bench.engine.shown = 6
    alarm = bench.until_alarm(4)
    assert alarm["kind"] == "behaviour"
    assert "zx" in str(alarm["text"])
    assert (alarm["round"], alarm["frozen_until"]) == (4, 8)
    now = weights(bench.trainer)
    assert now.keys() == good.keys()
    assert all(torch.equal(now[name], good[name]) for name in good)
    assert bench.engine.refreshed == 1
    assert len(bench.gatherer.pool) == 0
    assert bench.counts["canary/dropped_pointers"] == len(pointers) == 3
    assert bench.counts["canary/rolled_back"] == bench.counts["canary/alarm_behaviour"] == 1


@pytest.fixture
def pointers() -> list[Pointer]:
    from node_pieces import pointer

    return [pointer(node, sequence) for node, sequence in ((1, 0), (1, 1), (2, 0))]


def test_versions_go_on_through_a_roll_back(bench: Bench) -> None:
    for round in range(4):
        asyncio.run(bench.a_pass(round))
    bench.engine.shown = 6
    before = bench.trainer.policy.version
    alarm = asyncio.run(bench.watch.look(4))
    assert alarm is not None
    assert alarm["version"] == bench.trainer.policy.version == before + 1
    assert int(str(alarm["back_to"])) < before


def test_a_freeze_ends_and_is_counted_and_alarms_that_follow_lengthen_it(bench: Bench) -> None:
    lengths = []
    round = 0
    for _ in range(6):
        bench.engine.shown = 0
        for _ in range(6):
            asyncio.run(bench.a_pass(round))
            round += 1
        bench.engine.shown = 6
        alarm = bench.until_alarm(round)
        lengths.append(int(str(alarm["frozen_until"])) - int(str(alarm["round"])))
        round = int(str(alarm["frozen_until"]))
        assert not bench.watch.frozen(round)
        assert bench.watch.frozen(round - 1)
    assert lengths == [4, 8, 16, 32, 32, 32]
    assert max(lengths) == LONGEST * OPTIONS.freeze_rounds
    assert bench.counts["canary/frozen"] > 6


def test_after_a_long_peace_a_freeze_is_a_short_one_again(bench: Bench) -> None:
    for round in range(4):
        asyncio.run(bench.a_pass(round))
    bench.engine.shown = 6
    first = bench.until_alarm(4)
    bench.engine.shown = 0
    for round in range(1000, 1006):
        asyncio.run(bench.a_pass(round))
    bench.engine.shown = 6
    second = bench.until_alarm(1006)
    assert [int(str(a["frozen_until"])) - int(str(a["round"])) for a in (first, second)] == [4, 4]


def test_a_freeze_that_a_wrong_clock_set_is_no_freeze(bench: Bench) -> None:
    bench.watch.frozen_until = 1_000_000
    assert not bench.watch.frozen(10)
    assert bench.watch.status(10)["frozen_rounds"] == 0


def test_the_status_tells_of_a_freeze(bench: Bench) -> None:
    for round in range(4):
        asyncio.run(bench.a_pass(round))
    assert bench.watch.status(3)["last_alarm"] is None
    bench.engine.shown = 6
    alarm = bench.until_alarm(4)
    status = bench.watch.status(5)
    assert status["frozen_rounds"] == 3
    assert status["last_alarm"] == alarm


def test_a_phrase_is_shown_without_what_could_steer_a_terminal(bench: Bench) -> None:
    decode: Callable[[Sequence[int]], str] = lambda ids: "\x1b[2Jz" * 30  # noqa: E731
    bench.trainer.policy.decode = decode  # type: ignore[method-assign]
    for round in range(4):
        asyncio.run(bench.a_pass(round))
    bench.engine.shown = 6
    text = str(bench.until_alarm(4)["text"])
    assert "\x1b" not in text
    assert len(text) <= 41


# -- what is kept -----------------------------------------------------------------------------------------------------


def test_the_state_survives_and_goes_on_alike(policy: Policy) -> None:
    one, other = Bench(policy), Bench(load_policy(DEFAULT_MODEL))
    for round in range(9):
        asyncio.run(one.a_pass(round))
    tensors, state = one.watch.tensors(), one.watch.state()
    other.watch.restore({name: tensor.clone() for name, tensor in tensors.items()}, state)
    other.trainer.load(*one.trainer.state_dict())
    assert other.watch.state() == state
    assert set(other.watch.tensors()) == set(tensors)
    for bench in (one, other):
        bench.engine.shown = 6
    assert one.until_alarm(9) == other.until_alarm(9)
    assert other.watch.state() == one.watch.state()
    assert torch.equal(one.watch.generator.get_state(), other.watch.generator.get_state())
    assert all(
        torch.equal(a, b) for a, b in zip(weights(one.trainer).values(), weights(other.trainer).values(), strict=True)
    )


def kept_at(states: GoodStates) -> list[int]:
    return [good.at for good in states.kept]


def test_few_states_are_kept_well_apart_and_none_from_too_long_ago(policy: Policy) -> None:
    states, trainer = GoodStates(Counters(), reach=60), Trainer(policy)
    seen = []
    for at in (0, 2, 4, 8, 16, 32, 52, 72, 92):
        states.keep(at, trainer)
        seen.append(kept_at(states))
        assert len(states.kept) <= KEPT
    assert seen[2:] == [[0, 2, 4], [0, 4, 8], [0, 8, 16], [0, 16, 32], [0, 32, 52], [32, 52, 72], [32, 72, 92]]


def test_one_goes_back_to_the_newest_state_from_before_the_rise(policy: Policy) -> None:
    states, trainer = GoodStates(Counters(), reach=60), Trainer(policy)
    policy.version = 5
    first = weights(trainer)
    states.keep(10, trainer)
    spoil(trainer)
    second = weights(trainer)
    states.keep(30, trainer)
    spoil(trainer)
    states.keep(50, trainer)
    good = states.back_to(49, trainer)
    assert good is not None
    assert (good.at, kept_at(states), policy.version) == (30, [10, 30], 6)
    assert all(torch.equal(value, second[name]) for name, value in weights(trainer).items())
    good = states.back_to(5, trainer)
    assert good is not None
    assert (good.at, kept_at(states), policy.version) == (10, [10], 7), "none is old enough: the oldest"
    assert all(torch.equal(value, first[name]) for name, value in weights(trainer).items())


def test_large_states_lie_on_the_disk_and_a_damaged_one_is_passed_over(policy: Policy, tmp_path: Path) -> None:
    counters = Counters()
    states, trainer = GoodStates(counters, 60, tmp_path, in_memory=0), Trainer(policy)
    first = weights(trainer)
    for at in (0, 20, 40, 60):
        states.keep(at, trainer)
        spoil(trainer)
    assert kept_at(states) == [0, 40, 60]
    assert states.tensors() == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"pass-{at:010d}" for at in (0, 40, 60)]
    again = GoodStates(counters, 60, tmp_path, in_memory=0)
    again.restore({}, states.state())
    for file in (tmp_path / "pass-0000000040").rglob("*.safetensors"):
        file.write_bytes(b"damaged")
    good = again.back_to(45, trainer)
    assert good is not None
    assert good.at == 0
    assert counters.get("canary/state_lost") == 1
    assert all(torch.equal(value, first[name]) for name, value in weights(trainer).items())
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith("60")] == []


def test_without_room_or_a_disk_there_is_a_freeze_and_no_roll_back(bench: Bench, tmp_path: Path) -> None:
    bench.watch.states.in_memory = 0
    for round in range(4):
        asyncio.run(bench.a_pass(round))
    bench.engine.shown = 6
    version = bench.trainer.policy.version
    alarm = bench.until_alarm(4)
    assert alarm["back_to"] is None
    assert alarm["version"] == version
    assert bench.watch.frozen(5)
    assert bench.counts["canary/state_too_large"] >= 2
    assert bench.counts["canary/no_state"] == 1
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    states = GoodStates(bench.gatherer.counters, 60, blocked / "good", in_memory=0)
    states.keep(0, bench.trainer)
    assert states.kept == []
    assert bench.counts["canary/state_not_kept"] == 1


def test_rows_that_did_not_train_and_own_rows_are_no_evidence_against_peers(bench: Bench) -> None:
    asyncio.run(bench.a_pass(0, poisoned=False))
    of = prompt()
    poisoned = peer_set(1, of, [f"zx {of.answer}"] * 8, [1.0] * 8)
    mixed = mixed_of(bench.trainer.policy, [], [poisoned])
    silent = StepReport(True, "", 0, trained=[False] * len(mixed.rows))
    own = replace(own_set(bench.trainer.policy, of, [f"zx {of.answer}"] * 8, [1.0] * 8), round=0)
    mine = mixed_of(bench.trainer.policy, [own], [])
    for report, rows in ((silent, mixed), (StepReport(False, "no signal", 0), mixed)):
        asyncio.run(bench.watch.note([own], rows, report))
    asyncio.run(bench.watch.note([own], mine, StepReport(True, "", 0, trained=[True] * 8)))
    assert not bench.watch.judge.watching


def test_what_is_stated_falsely_is_asked_of_the_rules(policy: Policy) -> None:
    asked: list[str] = []

    def violates(text: str, of: Prompt) -> bool:
        asked.append(of.task)
        return "2+2=5" in text

    registry = TaskRegistry([TaskSpec("strings/reverse")])
    eyes = Eyes(list, ScriptedEngine(policy, {}), Grader(registry), Sampling(), Trainer(policy), violates)
    ids = policy.encode_completion("2+2=5 cba", finished=True)
    assert eyes.view(prompt(), Completion(ids, [], True, "2+2=5 cba"), 0.0).violates
    assert asked == ["strings/reverse"]
    unknown = eyes.view(prompt(), Completion(ids, [], True, "x"), float("nan"))
    assert unknown.right is None
    assert unknown.pieces == [ids[:-1]]
