"""Rollouts as a node trains on them: its own sets, peers' sets, and the rows that both become."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from shoal.protocol.prompts import DerivedPrompt, prompt_hash
from shoal.trainer.batch import Row
from shoal.trainer.engine import Completion
from shoal.trainer.tasks.base import Prompt
from shoal.trainer.verify import Score


def reward_of(score: Score) -> float:
    """Return the reward, NaN where the verifier gave none: such a row trains nothing and is no baseline."""
    return math.nan if score.reward is None else score.reward


def is_uniform(rewards: Sequence[float]) -> bool:
    """Return True when the scored rewards do not differ: the set then has zero variance and carries no signal."""
    return len({reward for reward in rewards if not math.isnan(reward)}) < 2


@dataclass(frozen=True, slots=True)
class OwnSet:
    """The G completions that this node sampled for one prompt, graded by itself."""

    derived: DerivedPrompt
    prompt: Prompt
    completions: tuple[Completion, ...]
    rewards: tuple[float, ...]
    policy_version: int
    round: int
    # Completion → its row as the screen has read it under the present weights: the update need not read it again.
    read: dict[int, Row] = field(default_factory=dict[int, Row], compare=False, repr=False)

    @property
    def uniform(self) -> bool:
        """Return True when no completion is better than another."""
        return is_uniform(self.rewards)

    @property
    def prompt_hash(self) -> bytes:
        """Hash of the prompt's text."""
        return prompt_hash(self.prompt.text)


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Own log-probs of a completion's own-token ids at one policy version: the screen's pass, kept for the update."""

    ids: list[int]
    logps: Tensor
    version: int


@dataclass(frozen=True, slots=True)
class PeerCompletion:
    """One screened and regraded completion of a peer: text only, with the local reward.

    `scored` is what the screen read of it under the own weights, None where it did not need to.
    """

    row: int
    text: str
    finished: bool
    reward: float
    weight: float
    scored: Scored | None = field(default=None, compare=False)


class Source(Protocol):
    """Where a peer's set came from: a `Pointer`, or the unsigned lane to another client, which has no announcement."""

    @property
    def key(self) -> bytes: ...
    @property
    def operator(self) -> str: ...
    @property
    def round(self) -> int: ...
    @property
    def policy_version(self) -> int: ...
    @property
    def prompt_hash(self) -> bytes: ...
    @property
    def sequence(self) -> int: ...
    @property
    def received_round(self) -> int: ...
    @property
    def arrival(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PeerSet:
    """What the screen left of one peer's rollout, regraded by this node."""

    pointer: Source
    prompt: Prompt
    completions: tuple[PeerCompletion, ...]

    @property
    def uniform(self) -> bool:
        """Return True when no completion is better than another."""
        return is_uniform([completion.reward for completion in self.completions])

    @property
    def prompt_hash(self) -> bytes:
        """Hash of the prompt's text."""
        return self.pointer.prompt_hash
