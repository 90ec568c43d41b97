"""Rows: one completion each, with all that training needs to know about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(slots=True, eq=False)
class Row:
    """One completion with all that training needs to know about it.

    `uid` names the group (the prompt's set), `reward` is NaN when the verifier could not score it, `source` is b"" for
    own rows and the peer's key otherwise. `weight`, `baseline` and `train` are the verdict of the defences: how
    strongly the row trains, whether its reward enters the group's baseline, whether it trains at all.
    """

    uid: int
    prompt_ids: list[int]
    completion_ids: list[int]
    reward: float
    source: bytes = b""
    operator: str = ""
    policy_version: int = 0
    age: int = 0
    lag: int = 0
    weight: float = 1.0
    baseline: bool = True
    train: bool = True
    behaviour_logps: list[float] | None = None
    text: str = ""
    temperature: float = 1.0
    # Filled by Trainer.score: log-probs of the completion under the local policy, and the version that gave them.
    old_logps: Tensor | None = None
    ref_logps: Tensor | None = None
    scored_version: int = -1

    @property
    def own(self) -> bool:
        """Whether this node sampled the row itself."""
        return not self.source

    @property
    def total_length(self) -> int:
        """Tokens of prompt and completion together."""
        return len(self.prompt_ids) + len(self.completion_ids)


class TextEncoder(Protocol):
    """The part of a policy that turns text into token ids."""

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a prompt, with the chat template where there is one."""
        ...

    def encode_completion(self, text: str, finished: bool) -> list[int]:
        """Token ids of a completion, with EOS when it was finished."""
        ...


class SampledCompletion(Protocol):
    """What an engine gives for one completion."""

    @property
    def ids(self) -> list[int]:
        """Sampled token ids, EOS included when it was sampled."""
        ...

    @property
    def logps(self) -> list[float]:
        """Log-prob of each id under the distribution it was sampled from."""
        ...

    @property
    def text(self) -> str:
        """The completion as text."""
        ...


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a group's rows come from; the same for each completion of one rollout."""

    uid: int
    source: bytes = b""
    operator: str = ""
    policy_version: int = 0
    age: int = 0
    lag: int = 0
    temperature: float = 1.0


def own_rows(
    prompt_ids: Sequence[int], completions: Sequence[SampledCompletion], rewards: Sequence[float], origin: Origin
) -> list[Row]:
    """Rows of one locally sampled group; they keep the ids and behaviour log-probs that the engine sampled."""
    return [
        _row(prompt_ids, c.ids, reward, origin, behaviour_logps=list(c.logps), text=c.text)
        for c, reward in zip(completions, rewards, strict=True)
    ]


def foreign_rows(
    policy: TextEncoder,
    prompt: str,
    completions: Sequence[tuple[str, bool]],
    rewards: Sequence[float],
    origin: Origin,
) -> list[Row]:
    """Rows of a peer's rollout, built from (text, finished) alone (arXiv 2509.08721).

    The sender's token ids and log-probs are not even an argument: they say nothing about the local tokenizer and
    policy, so the text is re-encoded here and treated as if the local policy had written it.
    """
    prompt_ids = policy.encode_prompt(prompt)
    return [
        _row(prompt_ids, policy.encode_completion(text, finished), reward, origin, text=text)
        for (text, finished), reward in zip(completions, rewards, strict=True)
    ]


def _row(
    prompt_ids: Sequence[int],
    completion_ids: Sequence[int],
    reward: float,
    origin: Origin,
    *,
    behaviour_logps: list[float] | None = None,
    text: str = "",
) -> Row:
    return Row(
        uid=origin.uid,
        prompt_ids=list(prompt_ids),
        completion_ids=list(completion_ids),
        reward=reward,
        source=origin.source,
        operator=origin.operator,
        policy_version=origin.policy_version,
        age=origin.age,
        lag=origin.lag,
        behaviour_logps=behaviour_logps,
        text=text,
        temperature=origin.temperature,
    )
