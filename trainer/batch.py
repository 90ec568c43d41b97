"""Rows (one completion each) and the padded batch that the objective reads.

Shapes in names: B rows, T positions of `[prompt | completion | padding]`. Padding stands on the right, so a causal
model never sees it: positions are 0..T-1 for every row and no attention mask is needed (left padding without
position ids silently shifts every position).
"""

# ruff: noqa: N815 (names end in the shape of their tensor)

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
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
    def ids(self) -> list[int]: ...
    @property
    def logps(self) -> list[float]: ...
    @property
    def text(self) -> str: ...


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


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded tensors of some rows. Log-probs stand at the position of the token they belong to, 0 elsewhere."""

    input_ids_BT: Tensor
    completion_mask_BT: Tensor
    advantages_BT: Tensor  # 0 until assigned
    old_logps_BT: Tensor
    ref_logps_BT: Tensor | None
    weight_B: Tensor
    train_mask_B: Tensor
    temperature_B: Tensor | None  # None: every row was sampled at temperature 1


def pad_rows(rows: Sequence[Row], pad_id: int, device: torch.device | str = "cpu") -> Batch:
    """Pad rows on the right into a Batch; advantages are 0 until they are assigned."""
    width = max(row.total_length for row in rows)
    ids = [row.prompt_ids + row.completion_ids + [pad_id] * (width - row.total_length) for row in rows]
    starts = torch.tensor([[len(row.prompt_ids)] for row in rows])
    ends = torch.tensor([[row.total_length] for row in rows])
    positions = torch.arange(width)
    mask_BT = ((positions >= starts) & (positions < ends)).to(device)
    temperatures = [row.temperature or 1.0 for row in rows]  # greedy rows are scored as sampled at 1
    return Batch(
        input_ids_BT=torch.tensor(ids, device=device),
        completion_mask_BT=mask_BT,
        advantages_BT=torch.zeros(mask_BT.shape, device=device),
        old_logps_BT=_place([row.old_logps for row in rows], mask_BT),
        ref_logps_BT=_place([row.ref_logps for row in rows], mask_BT) if rows[0].ref_logps is not None else None,
        weight_B=torch.tensor([row.weight for row in rows], device=device),
        train_mask_B=torch.tensor([row.train for row in rows], device=device),
        temperature_B=None if set(temperatures) == {1.0} else torch.tensor(temperatures, device=device),
    )


def _place(columns: Sequence[Tensor | None], mask_BT: Tensor) -> Tensor:
    """Columns of one value a completion token, laid where the mask is set; rows without a column stay 0."""
    present = [column for column in columns if column is not None]
    if not present:
        return torch.zeros(mask_BT.shape, device=mask_BT.device)
    has_column_B = torch.tensor([column is not None for column in columns], device=mask_BT.device)
    flat = torch.cat(present)
    zeros_BT = torch.zeros(mask_BT.shape, dtype=flat.dtype, device=mask_BT.device)
    return zeros_BT.masked_scatter(mask_BT & has_column_B[:, None], flat)


def micro_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Row indices in micro-batches of at most `budget` padded tokens (always at least one row each).

    Rows are sorted by length (longest first, ties by index, so the order is fixed), and a micro-batch also ends when
    its padding would exceed a quarter of the budget: on a large model padding costs as much as text.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batches: list[list[int]] = []
    used = 0
    for index in order:
        width = lengths[batches[-1][0]] if batches else 0
        rows = len(batches[-1]) + 1 if batches else 1
        padded = rows * width
        if not batches or padded > budget or padded - used - lengths[index] > budget // 4:
            batches.append([index])
            used = lengths[index]
        else:
            batches[-1].append(index)
            used += lengths[index]
    return batches
