"""Rewards of peers' completions, from this node's own verifier; the claimed ones are only evidence about the sender."""

from shoal.defenses.pointer import Pointer
from shoal.defenses.screen import Screened
from shoal.defenses.verdict import Counters, unscorable
from shoal.node.sets import PeerCompletion, PeerSet, reward_of
from shoal.protocol.columns import floats
from shoal.protocol.wire import FINISH_EOS
from shoal.trainer.tasks.registry import TaskRegistry
from shoal.trainer.verify import Grader, Score

# What one rollout may cost: verifier runs that end in a kill, and CPU seconds of all of them together. Each of 64
# answers that stay just below the limit of one answer would cost as much as a kill.
MOST_KILLED = 2
MOST_SECONDS = 4.0


class Regrader:
    """Grades what the screen let through. One that does not verify believes what senders claim: an ablation only."""

    def __init__(self, registry: TaskRegistry, grader: Grader, counters: Counters, verifies: bool = True) -> None:
        self.registry = registry
        self.grader = grader
        self.counters = counters
        self.verifies = verifies

    def regrade(self, pointer: Pointer, screened: Screened) -> PeerSet:
        """Return the kept completions of a rollout with local rewards; unscorable ones keep none and are counted."""
        rebuilt, rollout = screened.prompt, screened.rollout
        prompt = self.registry.prompt(rebuilt.task, rebuilt.seed, rebuilt.index)
        kept = screened.kept
        claimed = floats(rollout.rewards)
        scores = [Score(claimed[row]) for row in kept]
        if self.verifies:
            items = [(prompt, rollout.completions[row]) for row in kept]
            scores = self.grader.grade(items, most_killed=MOST_KILLED, most_seconds=MOST_SECONDS)
        completions: list[PeerCompletion] = []
        for row, score in zip(kept, scores, strict=True):
            if score.reward is None:
                verdict = unscorable(score.reason)
                self.counters.add(verdict.layer, verdict.reason)
            elif abs(score.reward - claimed[row]) > 1e-6:
                self.counters.add("verifier", "claim_differs")
            finished = rollout.finish[row] == FINISH_EOS
            weight = screened.verdicts[row].weight
            completions.append(PeerCompletion(row, rollout.completions[row], finished, reward_of(score), weight))
        return PeerSet(pointer, prompt, tuple(completions))
