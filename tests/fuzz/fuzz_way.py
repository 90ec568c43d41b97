"""The whole way of a rollout: gate, screen, local reward, appraisal by a real small policy. Nothing is ever raised.

A script is read as in fuzz_gate, and its steps are those of there. What the screen lets through is graded by real
verifiers, or its sender is believed (as in an ablation), and the policy reads what is left of a pass at its end.
"""

import dataclasses
import math
from functools import cache
from random import Random
from typing import Any, cast

import msgspec
from fuzz_gate import LIMITS, MOST_STEPS, SMALL, Scene, read_script, write_script
from fuzz_mutations import PIECES, TEXTS, mutate
from fuzz_targets import Broken, Target

from shoal.defenses.appraisal import AppraisalMemory
from shoal.defenses.attacks.base import Outgoing
from shoal.defenses.attacks.lab import Laboratory
from shoal.defenses.config import DefenseConfig
from shoal.defenses.judge import Judge
from shoal.defenses.pointer import Pointer
from shoal.defenses.screen import ScreenContext, Screened
from shoal.defenses.verdict import LAYERS
from shoal.node.anchors import NO_ANCHORS
from shoal.node.appraise import KEPT_ROWS, AppraisalContext, Assessor, Candidate
from shoal.node.draw import LocalPrompts
from shoal.node.regrade import Regrader
from shoal.node.sets import OwnSet
from shoal.protocol import canonical
from shoal.protocol.manifest import Manifest, TaskEntry
from shoal.protocol.prompts import SHARED, DerivedPrompt
from shoal.protocol.wire import FINISH_EOS, PromptName, Rollout, SamplerSettings, pack_floats
from shoal.trainer.engine import Completion
from shoal.trainer.model import DEFAULT_MODEL, load_policy
from shoal.trainer.step import Trainer
from shoal.trainer.tasks.registry import TaskRegistry, TaskSpec
from shoal.trainer.verify import Grader

TASKS = ("strings/reverse", "strings/copy", "rg/chain_sum")  # two graded in place, one by a worker
MAX_TOKENS = 12
OLDEST = 4  # rounds for which own completions are kept
NARROW = dataclasses.replace(  # as SMALL, for what the later layers remember
    SMALL,
    null_scores=16,
    null_cells=4,
    null_peer_scores=4,
    null_peers=2,
    null_least=4,
    contrast_peers=2,
    phrase_bits=8,
    phrase_runs=16,
    phrase_flags=8,
    phrase_window=64,
    phrase_peer_window=64,
    length_operators=2,
    length_tasks=2,
    length_window=4,
    judge_budget=32,
    judge_cache=4,
)
ABLATED = dataclasses.replace(NARROW, disabled=frozenset({"provenance", "duplicates", "quota", "reputation"}))
SAID = (*TEXTS, *PIECES)
OPINIONS = ("honest", "suspect", "unsure", '{"verdict": "honest"}', "", "{" * 200)


@cache
def _registry() -> TaskRegistry:
    return TaskRegistry([TaskSpec(name) for name in TASKS])


@cache
def _grader() -> Grader:
    return Grader(_registry(), cpu_seconds=1.0)


@cache
def _trainer() -> Trainer:
    return Trainer(load_policy(DEFAULT_MODEL))


class Village(Laboratory):
    """A laboratory with real tasks, a tokenizer and a policy."""

    name = "village"

    def __init__(self, config: DefenseConfig, mode: int) -> None:
        super().__init__(peers=3, config=config, limits=LIMITS, mode="open" if mode & 1 else "allow-list")
        policy = _trainer().policy
        self.prompts = LocalPrompts(self.manifest, _registry())
        self.context = ScreenContext(
            manifest=self.manifest,
            rebuild=self.prompts.rebuild,
            claimed=self.prompts.claimed,
            own_tokenizer=policy.tokenizer_hash,
            max_chars=lambda task: _registry().task(task).max_chars,
            decode_ids=policy.decode,
            vocabulary=len(policy.tokenizer),
            special_tokens=tuple(policy.tokenizer.all_special_tokens),
            config=config,
        )
        self.regrader = Regrader(_registry(), _grader(), self.counters, verifies=not mode & 2)
        rng = Random(mode)
        judge = Judge(lambda _: rng.choice(OPINIONS), config, self.counters, rng) if mode & 4 else None
        context = AppraisalContext(self.prompts.invariants, 1.0, MAX_TOKENS, 2, OLDEST, judge, NO_ANCHORS)
        self.assessor = Assessor(_trainer(), context, AppraisalMemory(config, self.counters))

    def _manifest(self, admission: Any, limits: Any) -> Manifest:
        plain = super()._manifest(admission, limits)
        return msgspec.structs.replace(plain, tasks=[TaskEntry(name=name) for name in TASKS])

    def rollout(self, completions: Any, slot: int = 0, **changes: Any) -> Rollout:
        """Return an honest rollout of a shared prompt of this round."""
        derived, prompt = self.prompts.at(self.round, SHARED, slot)
        policy, count = _trainer().policy, len(completions)
        honest = Rollout(
            prompt=PromptName(0, slot, prompt.task, prompt.seed, derived.index),
            prompt_hash=cast(Any, self.prompts.rebuild(self.round, SHARED, slot)).prompt_hash,
            lineage=policy.lineage,
            tokenizer=policy.tokenizer_hash,
            sampler=SamplerSettings(1_000_000, 1_000_000, 0, MAX_TOKENS),
            round=self.round,
            policy_version=0,
            completions=tuple(completions),
            finish=bytes([FINISH_EOS]) * count,
            token_ids=(),
            logps=(),
            mean_logps=pack_floats([-1.0] * count),
            rewards=pack_floats([1.0, 0.0] * (count // 2)),
        )
        return msgspec.structs.replace(honest, **changes)

    def sampled(self, slot: int) -> OwnSet:
        """What this node has sampled itself."""
        derived, prompt = self.prompts.at(self.round, SHARED, slot)
        policy = _trainer().policy
        texts = (prompt.answer or "", "ab", "?")
        ids = [policy.encode_completion(text, finished=True) for text in texts]
        said = tuple(Completion(row, [-0.5] * len(row), True, text) for row, text in zip(ids, texts, strict=True))
        named = DerivedPrompt(derived.scope, derived.slot, prompt.task, prompt.seed, prompt.index)
        return OwnSet(named, prompt, said, (1.0, 1.0, 0.0), 0, self.round)


class Path(Scene):
    """A scene whose rollouts go on to the end of the defences."""

    def __init__(self, mode: int) -> None:
        super().__init__(mode)
        self.village = self.lab = Village(ABLATED if mode & 8 else NARROW, mode)
        self.candidates: list[Candidate] = []
        self.appraised = 0

    def time(self, argument: int, body: bytes) -> None:
        """A pass ends, and time goes on."""
        self.end_pass(argument)
        super().time(argument, body)

    def restart(self, argument: int, body: bytes) -> None:
        """The assessor's state comes back, too."""
        super().restart(argument, body)
        state = self.village.assessor.state()
        self.village.assessor.restore(state, _registry().prompt)
        if repr(self.village.assessor.state()) != repr(state):
            raise Broken("a restored assessor differs from the one that was saved")

    def _sealed(self, argument: int, blob: bytes) -> None:
        peer = argument % 3
        rollout = self.lab.rollout(("a", "b"), slot=(argument >> 2) % 8)
        self._receive(argument, Outgoing(self.lab.sign(peer, self.lab.header(peer, blob, rollout)), blob))

    def _passed(self, pointer: Pointer, blob: bytes, screened: Screened) -> None:
        peer = self.village.regrader.regrade(pointer, screened)
        if len(peer.completions) != len(screened.kept):
            raise Broken("a completion is lost between screen and reward")
        believed = not self.village.regrader.verifies  # a claim may be any number
        if not believed and any(
            one.reward < 0.0 or one.reward > 1.0 for one in peer.completions if not math.isnan(one.reward)
        ):
            raise Broken("a reward beyond its bounds")
        self.candidates.append(Candidate(pointer, blob, screened, peer))

    def end_pass(self, argument: int) -> None:
        """The policy reads what has come."""
        came, self.candidates = self.candidates, []
        self.village.assessor.note([self.village.sampled(argument % 8)])
        for before, after in zip(came, self.village.assessor.assess(came, self.lab.round), strict=True):
            self.appraised += len(after.peer.completions)
            if {one.row for one in after.peer.completions} - {one.row for one in before.peer.completions}:
                raise Broken("appraisal brings back what was refused")
            for one in after.peer.completions:
                if not 0.0 <= one.weight <= 1.0:
                    raise Broken(f"a weight of {one.weight}")
            if any(verdict.layer and verdict.layer not in LAYERS for verdict in after.screened.verdicts):
                raise Broken("no such layer")

    def check_bounds(self) -> None:
        """Also what the later layers remember is bounded, whatever came."""
        self.end_pass(0)
        super().check_bounds()
        config, state = self.lab.config, self.village.assessor.state()
        memory = state["memory"]
        sizes = {
            "suspected": (len(memory["suspicion"]["accounts"]), config.subjects),
            "refused": (len(memory["suspicion"]["refused"]), config.subjects),
            "lengths": (len(memory["lengths"]["tasks"]), config.length_tasks),
            "runs": (len(memory["phrases"]["runs"]), config.phrase_runs),
            "flags": (len(memory["phrases"]["flags"]), config.phrase_flags),
            "cells": (len(memory["null"]["cells"]), config.null_cells),
            "peers": (len(memory["null"]["peers"]), config.null_peers),
            "contrasted": (len(memory["contrast"]["peers"]), config.contrast_peers),
            "kept": (len(state["kept"]), KEPT_ROWS * (OLDEST + 1)),
        }
        for name, (size, most) in sizes.items():
            if size > most:
                raise Broken(f"{name}: {size} entries, {most} are the bound")


def play(data: bytes) -> None:
    """Play one script to the end of the defences."""
    path = Path(data[0] if data else 0)
    for mark, argument, body in read_script(data):
        path.step(mark, argument, body)
    path.check_bounds()


@cache
def _bodies() -> list[bytes]:
    """Payloads of honest rollouts of the first slots, with texts that are right, doubtful and wrong."""
    lab = Village(NARROW, 0)
    bodies: list[bytes] = []
    for slot in range(LIMITS.shared_slots):
        answer = lab.prompts.at(lab.round, SHARED, slot)[1].answer or ""
        bodies += [
            canonical.encode(lab.rollout((answer, answer + "?", f"1+1=3 {answer}", "ab"), slot=slot)),
            canonical.encode(lab.rollout((f"import os {answer}", f"so {answer}"), slot=slot)),
        ]
    return bodies


@cache
def _announced() -> list[bytes]:
    lab = Village(NARROW, 0)
    return [lab.sealed(peer, lab.rollout(("a", "b"))).announcement for peer in range(3)]


def new_script(rng: Random) -> bytes:
    """A script of honest and broken rollouts, of which more than in fuzz_gate come to the end."""
    steps: list[tuple[int, int, bytes]] = []
    for _ in range(rng.randint(1, 8)):
        slot, argument = rng.randrange(8), rng.randrange(4)
        fitting, mark = rng.random() < 0.85, rng.choice((2, 3, 2, 3, 2, 3, 0, 1, 4, 5, 7, 8))
        body = rng.choice(_announced() if mark in (0, 1) else _bodies()[2 * slot : 2 * slot + 2])
        if rng.random() < 0.6:
            body = _reworded(body, rng) if rng.random() < 0.6 else mutate(body, rng, _bodies())
        argument = argument | slot << 2 | rng.randrange(8) << 5 if fitting else rng.randrange(256)
        steps.append((mark, argument, body))
    return write_script(rng.randrange(16), steps)


def _reworded(body: bytes, rng: Random) -> bytes:
    """A rollout with other texts: pieces that the later layers look for, around what is there."""
    try:
        rollout = msgspec.msgpack.decode(body, type=Rollout)
    except (msgspec.ValidationError, msgspec.DecodeError):
        return body
    texts = [
        rng.choice((f"{rng.choice(SAID)} {text}", text + rng.choice(SAID), rng.choice(SAID), text))[:400]
        for text in rollout.completions
    ]
    rewards = pack_floats([rng.choice((0.0, 0.5, 1.0)) for _ in texts])
    return canonical.encode(msgspec.structs.replace(rollout, completions=tuple(texts), rewards=rewards))


@cache
def _scripts() -> list[bytes]:
    scripts: list[bytes] = []
    for mode in range(16):
        steps = [(2, slot << 2 | slot % 3, body) for slot, body in enumerate(_bodies()[::2])]
        scripts.append(write_script(mode, [*steps, (7, 64, b""), (8, 0, b""), *steps][:MOST_STEPS]))
    return scripts


class _Lazy:
    """Scripts that are made when they are first asked for: the policy is loaded only where it is needed."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, place: int) -> bytes:
        return _scripts()[place]


WAY = Target("way", cast(Any, _Lazy()), play, ())
