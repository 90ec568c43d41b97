"""From rows to tensors: completions of one prompt share one pack, packs share micro-batches.

Shapes in names: B rows, T positions of the longest completion, N completion tokens of all rows. In a pack the prompt is
encoded once, and each completion sees the prompt and itself: its logits are those of a sequence of its own
(forward.py). Models whose layout is not known there read one padded sequence a row; the padding stands on the right,
where a causal model never sees it.
"""

# ruff: noqa: N815 (names end in the shape of their tensor)

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.trainer.batch import Row
from shoal.trainer.forward import Layout, lay_out

Pack = list[int]  # indices of rows that share a prompt

PACK_TOKENS = 512  # a pack is read in one micro-batch, whatever that holds: beyond this the prompt is read again


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded tensors of some rows. Log-probs stand at the place of the token they belong to, 0 elsewhere."""

    inputs: Layout | Tensor  # prompts and what follows each of them, or padded sequences [B, L]
    predictors_N: Tensor  # which token predicts each completion token, in row order
    targets_N: Tensor
    completion_mask_BT: Tensor
    advantages_BT: Tensor  # 0 until assigned
    old_logps_BT: Tensor
    ref_logps_BT: Tensor | None
    weight_B: Tensor
    train_mask_B: Tensor
    temperature_B: Tensor | None  # None: every row was sampled at temperature 1
    own_B: Tensor | None = None  # None: every row was sampled here
    behaviour_logps_BT: Tensor | None = None  # the sampler's, NaN for rows without; None: no own row has any


def pack_rows(rows: Sequence[Row], share_prompts: bool) -> list[Pack]:
    """Packs of rows with the same prompt, in order of first appearance; one row each without `share_prompts`."""
    if not share_prompts:
        return [[index] for index in range(len(rows))]
    packs: list[Pack] = []
    latest: dict[tuple[int, ...], tuple[Pack, int]] = {}
    for index, row in enumerate(rows):
        prompt, more = tuple(row.prompt_ids), len(row.completion_ids)
        pack, used = latest.get(prompt, ([], 0))
        if not pack or used + more > max(PACK_TOKENS, 2 * len(prompt)):
            pack, used = [], len(prompt)
            packs.append(pack)
        pack.append(index)
        latest[prompt] = (pack, used + more)
    return packs


def micro_batches(rows: Sequence[Row], budget: int, share_prompts: bool) -> list[list[Pack]]:
    """Packs in micro-batches of at most `budget` padded tokens (always at least one pack each).

    Packs are sorted by length (longest first, ties by appearance, so the order is fixed), and a micro-batch also ends
    when its padding would exceed a quarter of the budget: on a large model padding costs as much as text.
    """
    packs = pack_rows(rows, share_prompts)
    lengths = [_length([rows[i] for i in pack]) for pack in packs]
    batches: list[list[Pack]] = []
    width = used = 0
    for index in sorted(range(len(packs)), key=lambda i: -lengths[i]):
        padded = (len(batches[-1]) + 1) * width if batches else 0
        if not batches or padded > budget or padded - used - lengths[index] > budget // 4:
            batches.append([])
            width, used = lengths[index], 0
        batches[-1].append(packs[index])
        used += lengths[index]
    return batches


def _length(pack: Sequence[Row]) -> int:
    return len(pack[0].prompt_ids) + sum(len(row.completion_ids) for row in pack)


def pad_packs(
    packs: Sequence[Sequence[Row]], pad_id: int, device: torch.device | str = "cpu", shared: bool = True
) -> Batch:
    """Lay packs of rows out for one forward; rows stand in the batch in the order of the packs.

    Every prompt and completion must have tokens. Advantages are 0 until they are assigned. Without `shared` every pack
    is one row, and the layout is that of the library's own models: one padded sequence a row.
    """
    rows = [row for pack in packs for row in pack]
    if shared:
        completions = [[row.completion_ids for row in pack] for pack in packs]
        inputs, predictors_N = lay_out([pack[0].prompt_ids for pack in packs], completions, device)
    else:
        inputs, predictors_N = _sequences(rows, pad_id, device)
    lengths_B = torch.tensor([len(row.completion_ids) for row in rows])
    mask_BT = (torch.arange(int(lengths_B.max())) < lengths_B[:, None]).to(device)
    temperatures = [row.temperature or 1.0 for row in rows]  # greedy rows are scored as if sampled at 1
    return Batch(
        inputs=inputs,
        predictors_N=predictors_N,
        targets_N=torch.tensor([token for row in rows for token in row.completion_ids], device=device),
        completion_mask_BT=mask_BT,
        advantages_BT=torch.zeros(mask_BT.shape, device=device),
        old_logps_BT=_place([row.old_logps for row in rows], mask_BT),
        ref_logps_BT=_place([row.ref_logps for row in rows], mask_BT) if rows[0].ref_logps is not None else None,
        weight_B=torch.tensor([row.weight for row in rows], device=device),
        train_mask_B=torch.tensor([row.train for row in rows], device=device),
        temperature_B=None if set(temperatures) == {1.0} else torch.tensor(temperatures, device=device),
        own_B=None if all(row.own for row in rows) else torch.tensor([row.own for row in rows], device=device),
        behaviour_logps_BT=_behaviour(rows, mask_BT),
    )


def _behaviour(rows: Sequence[Row], mask_BT: Tensor) -> Tensor | None:
    """The sampler's log-probs of own rows. NaN, not 0, for rows without: 0 would say that the token was certain."""
    if not any(row.own and row.behaviour_logps for row in rows):
        return None
    columns = []
    for row in rows:
        length = len(row.completion_ids)
        known = row.own and row.behaviour_logps is not None and len(row.behaviour_logps) == length
        columns.append(torch.tensor(row.behaviour_logps if known else [math.nan] * length, device=mask_BT.device))
    return _place(columns, mask_BT)


def _sequences(rows: Sequence[Row], pad_id: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Rows as padded sequences [B, L], and where in B * L each completion token is predicted."""
    width = max(row.total_length for row in rows)
    ids = [row.prompt_ids + row.completion_ids + [pad_id] * (width - row.total_length) for row in rows]
    predictors = [
        number * width + place
        for number, row in enumerate(rows)
        for place in range(len(row.prompt_ids) - 1, row.total_length - 1)
    ]
    return torch.tensor(ids, device=device), torch.tensor(predictors, device=device)


def _place(columns: Sequence[Tensor | None], mask_BT: Tensor) -> Tensor:
    """Columns of one value a completion token, laid where the mask is set; rows without a column stay 0."""
    present = [column for column in columns if column is not None]
    if not present:
        return torch.zeros(mask_BT.shape, device=mask_BT.device)
    has_column_B = torch.tensor([column is not None for column in columns], device=mask_BT.device)
    flat = torch.cat(present)
    zeros_BT = torch.zeros(mask_BT.shape, dtype=flat.dtype, device=mask_BT.device)
    return zeros_BT.masked_scatter(mask_BT & has_column_B[:, None], flat)
