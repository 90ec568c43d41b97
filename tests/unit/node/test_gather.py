"""Gathering: what is held of peers at a time is bounded, however large their rollouts are."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest
from node_pieces import identity, peer_set, pointer, prompt

from shoal.defenses.appraisal import AppraisalMemory
from shoal.defenses.attacks.lab import Laboratory
from shoal.defenses.config import DefenseConfig
from shoal.defenses.pointer import Pointer
from shoal.defenses.provenance import RebuiltPrompt
from shoal.defenses.screen import Screened
from shoal.defenses.verdict import ACCEPTED
from shoal.node import gather
from shoal.node.appraise import AppraisalContext, Assessor, Candidate
from shoal.node.compute import InlineCompute
from shoal.node.gather import Gatherer, Order, Screening
from shoal.node.regrade import Regrader
from shoal.node.sets import PeerSet
from shoal.protocol.limits import MIB
from shoal.protocol.transport import Transport
from shoal.trainer.model import DEFAULT_MODEL, load_policy
from shoal.trainer.step import Trainer
from shoal.trainer.tasks.base import TaskInvariants
from shoal.trainer.tasks.registry import TASK_SETS, TaskRegistry
from shoal.trainer.verify import Grader

TEXTS = ["ab", "ba"]


class Opened(Gatherer):
    """A gatherer to whom every pointer is a rollout of `blob` bytes, and who notes how many it judges together."""

    blob = b""

    def __init__(self, *parts: object) -> None:
        super().__init__(*parts)  # pyright: ignore[reportArgumentType]
        self.judged: list[int] = []

    async def _open(self, pointer: Pointer, seconds: float | None) -> Candidate:
        lab = Laboratory()
        of = prompt()
        rebuilt = RebuiltPrompt.of(of.task, of.seed, of.index, of.text)
        screened = Screened(pointer, lab.rollout(TEXTS), rebuilt, (ACCEPTED,) * 2)
        return Candidate(pointer, self.blob, screened, replace(peer_set(1, of, TEXTS, [1.0, 0.0]), pointer=pointer))

    async def _appraise(self, candidates: Sequence[Candidate]) -> list[PeerSet]:
        self.judged.append(len(candidates))
        return await super()._appraise(candidates)


@pytest.mark.parametrize(("size", "batches"), [(0, [6]), (20 * MIB, [2, 2, 2]), (40 * MIB, [1] * 6)])
def test_no_more_is_held_than_may_be(size: int, batches: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "MOST_HELD", 32 * MIB)
    lab = Laboratory(config=DefenseConfig.without(("header", "admission")))
    registry = TaskRegistry(TASK_SETS["strings"])
    context = AppraisalContext(lambda _: TaskInvariants(), 1.0, 8, 4, 4)
    config = DefenseConfig.without(("likelihood",))
    assessor = Assessor(Trainer(load_policy(DEFAULT_MODEL)), context, AppraisalMemory(config, lab.counters))
    with Grader(registry) as grader:
        found = Opened(
            cast(Transport, None),
            lab.gate,
            Screening(lab.context, lab.memory, assessor),
            Regrader(registry, grader, lab.counters),
            InlineCompute(1e-6, 1.0, random.Random(0)),
        )
        found.blob = bytes(size)
        for node in range(6):
            found.pool.add(pointer(node))
        order = Order(6, 6, 0.0, float("inf"), lambda _: True, lambda _: True)
        sets = asyncio.run(found.usable_sets(order, random.Random(1)))
    assert found.judged == batches
    assert sorted(one.pointer.key for one in sets) == sorted(identity(node).key for node in range(6))
