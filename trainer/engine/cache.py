"""Keys and values of the rows in flight, on one time line: in a step every row writes the same column.

Shapes: B rows, T columns, K key-value heads, D head size. A row that enters later is laid so that it ends at the
present column; each row has its own first column, and what stands before that is masked. So rows of any length and age
share one cache, a step writes one slice, and nobody reads further back than the longest row in flight reaches.
"""

from collections.abc import Sequence

import torch


class Cache:
    """Keys and values [layers, 2, B, K, T, D]; `first` is each row's first column, `length` the columns written."""

    def __init__(self, keys_values: torch.Tensor, first: Sequence[int], length: int) -> None:
        """Take memory whose first `length` columns are written; what it holds elsewhere must be finite numbers."""
        self.keys_values, self.first, self.length = keys_values, list(first), length
        self.settle(range(len(self.first)))

    def settle(self, alive: Sequence[int]) -> None:
        """Note that only these rows matter any more: `start` becomes the first column that one of them reads.

        To be called after every change of `first`; the rows that do not matter may hold anything.
        """
        kv, device = self.keys_values, self.keys_values.device
        self.start = min((self.first[at] for at in alive), default=self.length)
        first = [max(at, self.start) for at in self.first]
        self.layers = [(both, both[0].flatten(0, 1), both[1].flatten(0, 1)) for both in kv]
        self.aligned = all(at == self.start for at in first)
        self.first_B = torch.tensor(first, device=device)
        self.bias: torch.Tensor | None = None  # [B K, 1, T], added to scores
        if not self.aligned:
            hidden_BT = torch.arange(kv.shape[4], device=device) < self.first_B[:, None]
            zeros_BT = kv.new_zeros(hidden_BT.shape)
            bias_BT = zeros_BT.masked_fill_(hidden_BT, float("-inf"))
            self.bias = bias_BT.repeat_interleave(kv.shape[3], 0)[:, None]

    @classmethod
    def fresh(cls, shape: Sequence[int], length: int, like: torch.Tensor) -> "Cache":
        """Return a cache of this shape whose rows are empty, and will end at column `length`."""
        keys_values = like.new_empty(*shape)
        keys_values[..., :length, :] = 0
        return cls(keys_values, [length] * shape[2], length)

    def expanded(self, group_size: int, columns: int) -> "Cache":
        """Return a cache of `columns` in which every row stands `group_size` times."""
        layers, two, rows, heads, _, size = self.keys_values.shape
        cache = self.fresh((layers, two, rows * group_size, heads, columns, size), self.length, self.keys_values)
        cache.seat(range(rows * group_size), self, [at // group_size for at in range(rows * group_size)])
        cache.settle(range(rows * group_size))
        return cache

    def seat(self, seats: Sequence[int], source: "Cache", rows: Sequence[int]) -> None:
        """Put a row of `source` in each of these seats, so that it ends at the present column; `settle` then."""
        width, end, device = source.length, self.length, self.keys_values.device
        written = source.keys_values[..., :width, :]
        target = self.keys_values[..., end - width : end, :]
        count, times = written.shape[2], len(seats) // written.shape[2]
        everyone = list(seats) == list(range(target.shape[2]))
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
        window = slice(self.start, self.length)
        kept = self.fresh((layers, two, len(keep), heads, columns, size), self.start, kv)
        chosen = torch.tensor(keep, device=kv.device)
        kept.keys_values[..., window, :] = kv[..., window, :].index_select(2, chosen)
        return Cache(kept.keys_values, [self.first[at] for at in keep], self.length)

    def move(self, shift: int) -> None:
        """Move what the rows that matter read to the left by `shift` columns."""
        for layer in self.keys_values:  # one after the other: the copy in between stays small
            layer[..., self.start - shift : self.length - shift, :] = layer[..., self.start : self.length, :].clone()
        self.length -= shift
        self.first = [max(at - shift, 0) for at in self.first]
