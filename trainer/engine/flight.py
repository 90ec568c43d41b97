"""Continuous batching: rows in flight share a cache; those that are done leave their seat, and waiting ones enter.

What is drawn in a step lies on a tape whose line is the cache column that the token will fill, so that nothing has to
be sorted while rows run. Uniforms lie there too: a row's k-th token meets its k-th uniform whenever it is drawn.
Shapes: B seats, T columns, V symbols, R rows of the whole job.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch

from shoal.trainer.engine.cache import Cache
from shoal.trainer.engine.decoder import Decoder
from shoal.trainer.engine.sampling import Sampling, draw

PREFILL_TOKENS = 4096  # read at once when rows enter: bounds what the forward holds
FREE_SHARE = 8  # rows enter when an eighth of the seats is free: fewer are not worth a pass of their own
DEAD_SHARE = 4  # with nobody waiting, a quarter of empty seats is worth a copy of the cache without them


@dataclass(frozen=True, slots=True)
class Request:
    """What a row reads before its next token, and how many of its tokens are among that."""

    prefix: tuple[int, ...]
    taken: int


@dataclass(slots=True)
class Drawn:
    """What a row got: new ids and their log-probabilities; `done` when it has its end mark or its last token."""

    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    done: bool = False


@dataclass(frozen=True, slots=True)
class Terms:
    """How to sample: settings, end marks, the filling of short prompts, and the most seats and bytes of cache."""

    sampling: Sampling
    eos: torch.Tensor
    pad_id: int
    seats: int
    cache_bytes: int


@dataclass(slots=True)
class Seat:
    """Where a row sits, and the columns of its first token that was not read off yet and of its last possible one."""

    row: int
    place: int
    begin: int
    limit: int


class Flight:
    """One job: requests in, drawn tokens out."""

    def __init__(self, decoder: Decoder, requests: Sequence[Request], uniform_RT: torch.Tensor, terms: Terms) -> None:
        """Take requests and their uniforms, and memory for as many seats as the terms allow."""
        self._decoder, self._requests, self._uniform_RT, self._terms = decoder, requests, uniform_RT, terms
        self._waiting = deque(range(len(requests)))
        self._drawn = [Drawn() for _ in requests]
        self._done = [False] * len(requests)
        self._base = max(len(request.prefix) for request in requests)
        more = max(terms.sampling.max_tokens - request.taken for request in requests)
        shape = self._shape(more)
        self._columns, lines = shape[4], shape[4] + more + 1
        self._cache = Cache.fresh(decoder.memory(shape[2], shape[4]), self._base)
        device = uniform_RT.device
        self._ids_TB = torch.zeros(lines, shape[2], dtype=torch.int64, device=device)
        self._logps_TB, self._uniform_TB = (torch.zeros(lines, shape[2], device=device) for _ in range(2))
        self._logits_BV = torch.empty(0)
        self._alive: list[Seat] = []
        self._over: list[Seat] = []  # done, and still on the tape; `limit` is their last token's column
        self._free = list(range(shape[2]))
        self._limit = 0  # the first column at which a row must end
        self._kept: tuple[tuple[int, ...], torch.Tensor, Cache] | None = None

    def _shape(self, more: int) -> tuple[int, ...]:
        """Return the shape of the cache: seats for all rows, or as many as the terms allow and some room to go on."""
        shape_of, terms = self._decoder.cache_shape, self._terms
        column = math.prod(shape_of(1, 1)) * self._decoder.weights.embedding.element_size()
        need = self._base + more - 1  # the last token is never read
        for columns in (need, need + max(16, need // 4)):
            most = max(1, min(terms.seats, terms.cache_bytes // (column * columns)))
            if len(self._requests) <= most:
                return shape_of(len(self._requests), columns)
        return shape_of(most, columns)

    @torch.inference_mode()
    def run(self, enough: Callable[[Sequence[bool]], bool] | None) -> list[Drawn]:
        """Sample until all rows are done, or until `enough` says that it is; the rest has what it got by then."""
        while True:
            self._enter()
            column = self._cache.length
            ids_B, logps_B = draw(self._logits_BV, self._terms.sampling, self._uniform_TB[column])
            self._ids_TB[column], self._logps_TB[column] = ids_B, logps_B
            ended = self._end_rows(ids_B, column)
            if not (self._alive or self._waiting) or (ended and enough is not None and enough(self._done)):
                self._read_off(column + 1)
                return self._drawn
            if not self._alive:
                continue
            if not self._waiting and len(self._free) * DEAD_SHARE >= len(ids_B):
                ids_B = self._close_ranks(ids_B, column)
            if self._cache.length == self._columns:
                self._move()
            self._logits_BV = self._decoder.step(ids_B, self._cache)

    def _enter(self) -> None:
        """Give free seats to waiting rows, unless they are few and others are at work."""
        count = min(len(self._free), len(self._waiting))
        worth = not self._alive or count * FREE_SHARE >= len(self._cache.first) or count == len(self._waiting)
        if not count or not worth:
            return
        self._read_off(self._cache.length)
        rows, places = [self._waiting.popleft() for _ in range(count)], sorted(self._free)[:count]
        self._free = sorted(self._free)[count:]
        entered = self._sit(rows, places)
        self._alive += entered
        self._limit = min(seat.limit for seat in self._alive)
        for part in self._parts(entered):
            logits_PV, source, rows_of = self._prefilled([self._requests[seat.row].prefix for seat in part])
            self._cache.seat([seat.place for seat in part], source, rows_of)
            chosen_BV = logits_PV.index_select(0, torch.tensor(rows_of, device=logits_PV.device))
            if len(part) == len(self._cache.first):
                self._logits_BV = chosen_BV
                continue
            if not len(self._logits_BV):
                self._logits_BV = logits_PV.new_zeros(len(self._cache.first), logits_PV.shape[1])
            self._logits_BV[[seat.place for seat in part]] = chosen_BV
        self._cache.settle([seat.place for seat in self._alive])

    def _sit(self, rows: Sequence[int], places: Sequence[int]) -> list[Seat]:
        """Return the seats of these rows, and lay their uniforms on the tape."""
        begin, most = self._cache.length, self._terms.sampling.max_tokens
        taken = [self._requests[row].taken for row in rows]
        for count in set(taken):
            chosen = [at for at, already in enumerate(taken) if already == count]
            drawn_NT = self._uniform_RT[[rows[at] for at in chosen], count:most]
            self._uniform_TB[begin : begin + most - count, [places[at] for at in chosen]] = drawn_NT.t()
        limits = [begin + most - count - 1 for count in taken]
        return [Seat(row, place, begin, limit) for row, place, limit in zip(rows, places, limits, strict=True)]

    def _parts(self, seats: Sequence[Seat]) -> list[list[Seat]]:
        """Split where the prompts, each once, would be more than is read at once; a prompt's rows stay together."""
        parts: list[list[Seat]] = []
        count = width = 0
        for prefix, group in groupby(seats, lambda seat: self._requests[seat.row].prefix):
            width = max(width, len(prefix))
            count += 1
            if not parts or count * width > PREFILL_TOKENS:
                parts.append([])
                count, width = 1, len(prefix)
            parts[-1] += group
        return parts

    def _prefilled(self, prefixes: Sequence[tuple[int, ...]]) -> tuple[torch.Tensor, Cache, list[int]]:
        """Read each prefix once; return logits [P, V], their cache, and which row of it each prefix is."""
        places = {prefix: at for at, prefix in enumerate(dict.fromkeys(prefixes))}
        if self._kept is not None and list(places) == [self._kept[0]]:
            logits_PV, cache = self._kept[1:]
        else:
            width = max(map(len, places))
            padded = [[self._terms.pad_id] * (width - len(prefix)) + list(prefix) for prefix in places]
            first = [width - len(prefix) for prefix in places]
            logits_PV, cache = self._decoder.prefill(torch.tensor(padded, device=self._uniform_RT.device), first)
        self._kept = None
        last = prefixes[-1]
        if self._waiting and self._requests[self._waiting[0]].prefix == last:  # a group that has no seats for all
            at = places[last]
            self._kept = last, logits_PV[at : at + 1], cache.rows([at])
        return logits_PV, cache, [places[prefix] for prefix in prefixes]

    def _end_rows(self, ids_B: torch.Tensor, column: int) -> bool:
        """Free the seats of rows whose last token this was; return whether there were any."""
        eos = self._terms.eos
        hit_B = ids_B == eos if len(eos) == 1 else torch.isin(ids_B, eos)
        if column < self._limit and not bool(hit_B.any()):
            return False
        hit = hit_B.tolist()
        going: list[Seat] = []
        for seat in self._alive:
            if not hit[seat.place] and column < seat.limit:
                going.append(seat)
                continue
            self._drawn[seat.row].done = self._done[seat.row] = True
            seat.limit = column
            self._over.append(seat)
            self._free.append(seat.place)
        ended = len(going) < len(self._alive)
        self._alive = going
        self._limit = min((seat.limit for seat in going), default=self._columns)
        return ended

    def _close_ranks(self, ids_B: torch.Tensor, column: int) -> torch.Tensor:
        """Drop the empty seats, and return the ids of those that are left."""
        self._read_off(column)
        keep = [seat.place for seat in self._alive]
        self._cache.settle(keep)
        self._cache = self._cache.rows(keep)
        chosen = torch.tensor(keep, device=ids_B.device)
        self._ids_TB, self._logps_TB, self._uniform_TB = (
            tape.index_select(1, chosen) for tape in (self._ids_TB, self._logps_TB, self._uniform_TB)
        )
        for at, seat in enumerate(self._alive):
            seat.place = at
        self._free = []
        return ids_B.index_select(0, chosen)

    def _move(self) -> None:
        """Move cache and tape left, as far as nobody loses what it reads and whoever waits can still enter."""
        self._read_off(self._cache.length)
        alive = [seat.place for seat in self._alive]
        self._cache.settle(alive)
        shift = min(self._cache.start, self._cache.length - self._base)
        self._cache.move(shift)
        self._cache.settle(alive)
        for tape in (self._ids_TB, self._logps_TB, self._uniform_TB):
            tape[:-shift] = tape[shift:].clone()
        for seat in self._alive:
            seat.begin, seat.limit = seat.begin - shift, seat.limit - shift
        self._limit -= shift

    def _read_off(self, end: int) -> None:
        """Take from the tape all tokens before column `end`, and those of rows that are done."""
        if not (self._over or self._alive):
            return
        seats = [(seat, seat.limit + 1) for seat in self._over] + [(seat, end) for seat in self._alive]
        low = min(seat.begin for seat, _ in seats)
        high = max(until for _, until in seats)
        ids, logps = (tape[low:high].t().tolist() for tape in (self._ids_TB, self._logps_TB))
        for seat, until in seats:
            drawn, span = self._drawn[seat.row], slice(seat.begin - low, until - low)
            drawn.ids += ids[seat.place][span]
            drawn.logps += logps[seat.place][span]
            seat.begin = until
        self._over = []
