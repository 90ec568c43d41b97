"""What grading one rollout of a peer may cost, whatever its answers do to the verifier."""

import pytest
from node_pieces import pointer, prompt

from shoal.defenses.provenance import RebuiltPrompt
from shoal.defenses.screen import Screened
from shoal.defenses.verdict import ACCEPTED, Counters
from shoal.node.regrade import MOST_SECONDS, Regrader
from shoal.protocol.wire import PromptName, Rollout, SamplerSettings, pack_floats
from shoal.trainer.tasks.base import Prompt
from shoal.trainer.tasks.registry import TASK_SETS, TaskRegistry
from shoal.trainer.verify import Grader, Score


class Scripted(Grader):
    """A grader whose answers cost what they say: a number of CPU seconds, or a kill."""

    def __init__(self, registry: TaskRegistry) -> None:
        super().__init__(registry)
        self.ran: list[str] = []

    def _at_once(self, prompt: Prompt, text: str) -> Score:
        self.ran.append(text)
        return Score(None, "cpu_time", 2.0) if text == "kill" else Score(1.0, cpu_seconds=float(text))


def screened(texts: list[str]) -> Screened:
    of = prompt()
    rebuilt = RebuiltPrompt.of(of.task, of.seed, of.index, of.text)
    count = len(texts)
    rollout = Rollout(
        prompt=PromptName(0, 0, of.task, of.seed, of.index),
        prompt_hash=rebuilt.prompt_hash,
        lineage=bytes(32),
        tokenizer=bytes(32),
        sampler=SamplerSettings(1_000_000, 1_000_000, 0, 8),
        round=0,
        policy_version=0,
        completions=tuple(texts),
        finish=bytes(count),
        token_ids=(),
        logps=(),
        mean_logps=pack_floats([-1.0] * count),
        rewards=pack_floats([1.0] * count),
    )
    return Screened(pointer(1, of=of), rollout, rebuilt, (ACCEPTED,) * count)


@pytest.mark.parametrize(
    ("texts", "ran"),
    [
        (["1.9"] * 64, 3),  # each just below the limit of one answer: no kill, and two minutes
        (["kill"] * 64, 2),
        (["kill", "0.01"] * 32, 3),
        (["0.05"] * 64, 64),  # honest
    ],
)
def test_a_rollout_costs_no_more_than_its_budget(texts: list[str], ran: int) -> None:
    registry, counters = TaskRegistry(TASK_SETS["strings"]), Counters()
    with Scripted(registry) as grader:
        found = Regrader(registry, grader, counters).regrade(pointer(1), screened(texts))
    assert len(grader.ran) == ran
    assert len(found.completions) == 64
    assert counters.get("verifier/unscorable_budget") == 64 - ran
    assert MOST_SECONDS == 4.0
