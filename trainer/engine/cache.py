"""Keys and values of the rows in flight, on one time line: in a step every row writes the same column.

Shapes: B rows, T columns, K key-value heads, D head size. A row that enters later is laid so that it ends at the
present column; each row has its own first column, and what stands before that is masked. So rows of any length and age
share one cache, a step writes one slice, and nobody reads further back than the longest row in flight reaches.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch


class Cache:
    """Keys and values [layers, 2, B, K, T, D]; `first` is each row's first column, `length` the columns written."""

    def __init__(self, keys_values: torch.Tensor, first: Sequence[int], length: int) -> None:
        """Take memory whose first `length` columns are written; what they hold must be finite numbers."""
        self.keys_values, self.first, self.length = keys_values, list(first), length
        self._blank = False  # True while the columns hold what was in memory before
        self._view: View | None = None
        self.settle(range(len(self.first)))

    @classmethod
    def fresh(cls, keys_values: torch.Tensor, length: int) -> "Cache":
        """Return a cache in this memory whose rows are empty, and will end at column `length`."""
        cache = cls(keys_values, [length] * keys_values.shape[2], length)
        cache._blank = True
        return cache

    def settle(self, alive: Iterable[int]) -> None:
        """Note that only these rows matter any more: `start` becomes the first column that one of them reads.

        To be called after every change of `first`; the rows that do not matter may hold anything.
        """
        self.start = min((self.first[at] for at in alive), default=self.length)
        self._view = None

    @property
    def view(self) -> "View":
        """What a step reads; made anew after the rows have changed."""
        if self._view is None:
            self._view = View.of(self)
        return self._view

    def seat(self, seats: Sequence[int], source: "Cache", rows: Sequence[int]) -> None:
        """Put a row of `source` in each of these seats, so that it ends at the present column; `settle` then."""
        width, end, device = source.length, self.length, self.keys_values.device
        written = source.keys_values[..., :width, :]
        target = self.keys_values[..., end - width : end, :]
        count, times = written.shape[2], len(seats) // written.shape[2]
        everyone = list(seats) == list(range(target.shape[2]))
        if self._blank and not (everyone and width == end):  # what is masked is read too, and times zero must be zero
            self.keys_values[..., :end, :] = 0
        self._blank = False
        if everyone and list(rows) == [at // times for at in range(count * times)]:
            target.unflatten(2, (count, times)).copy_(written.unsqueeze(3))
        else:
            taken = written.index_select(2, torch.tensor(rows, device=device))
            target.index_copy_(2, torch.tensor(seats, device=device), taken)
        for seat, row in zip(seats, rows, strict=True):
            self.first[seat] = end - width + source.first[row]

    def rows(self, keep: Sequence[int]) -> "Cache":
        """Return the cache of these rows."""
        kv = self.keys_values
        layers, two, _, heads, columns, size = kv.shape
        kept = kv.new_empty(layers, two, len(keep), heads, columns, size)
        kept[..., : self.start, :] = 0
        window = slice(self.start, self.length)
        kept[..., window, :] = kv[..., window, :].index_select(2, torch.tensor(keep, device=kv.device))
        return Cache(kept, [self.first[at] for at in keep], self.length)

    def move(self, shift: int) -> None:
        """Move what the rows that matter read to the left by `shift` columns."""
        for layer in self.keys_values:  # one after the other: the copy in between stays small
            layer[..., self.start - shift : self.length - shift, :] = layer[..., self.start : self.length, :].clone()
        self.length -= shift
        self.first = [max(at - shift, 0) for at in self.first]


@dataclass(frozen=True, slots=True)
class View:
    """A cache as a step reads it: for each layer (keys and values [2, B, K, T, D], keys, values [B K, T, D]).

    `first_B` holds each row's first column, or one for all where they are equal; `bias` [B K, 1, T] hides what stands
    before it, and is None where they are equal.
    """

    layers: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    first_B: torch.Tensor  # noqa: N815 (its shape)
    bias: torch.Tensor | None

    @classmethod
    def of(cls, cache: Cache) -> "View":
        """Return the view of a cache in its present state."""
        kv, start = cache.keys_values, cache.start
        layers = [(both, both[0].flatten(0, 1), both[1].flatten(0, 1)) for both in kv]
        first = [max(at, start) for at in cache.first]
        first_B = torch.tensor(first, device=kv.device)
        if all(at == start for at in first):
            return cls(layers, first_B[:1], None)
        hidden_BT = torch.arange(kv.shape[4], device=kv.device) < first_B[:, None]
        bias_BT = kv.new_zeros(hidden_BT.shape).masked_fill_(hidden_BT, float("-inf"))
        return cls(layers, first_B, bias_BT.repeat_interleave(kv.shape[3], 0)[:, None])
