"""Layer 12: whatever passed all other layers has bounded influence, counted by operator and not by key or rollout."""

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from shoal.defenses.pointer import Pointer


def choose(
    pointers: Sequence[Pointer], rng: random.Random, fair: bool = True, drawn: Mapping[str, int] | None = None
) -> Iterator[Pointer]:
    """Yield pointers without replacement in the order in which to fetch them.

    Draws one of the operators that came least often so far, uniformly, then one of its keys, then one of that key's
    pointers. So each operator's expected share is equal, and a loud one comes again only after all others had their
    turn. `drawn` tells how often operators came already, when a search goes on with a changed pool. `fair=False` draws
    uniformly over pointers (mixing switched off).
    """
    ordered = sorted(pointers, key=lambda p: (p.operator, p.key, p.round, p.sequence, p.arrival))
    if not fair:
        rng.shuffle(ordered)
        yield from ordered
        return
    shelves: dict[str, dict[bytes, list[Pointer]]] = {}
    for pointer in ordered:
        shelves.setdefault(pointer.operator, {}).setdefault(pointer.key, []).append(pointer)
    turns = {operator: (drawn or {}).get(operator, 0) for operator in shelves}
    while shelves:
        fewest = min(turns[operator] for operator in shelves)
        operator = rng.choice([operator for operator in shelves if turns[operator] == fewest])
        turns[operator] += 1
        yield _take(shelves, operator, rng)


def _take(shelves: dict[str, dict[bytes, list[Pointer]]], operator: str, rng: random.Random) -> Pointer:
    """Draw a key of the operator, then a pointer of the key, and clear what is empty."""
    keys = shelves[operator]
    key = rng.choice(list(keys))
    pile = keys[key]
    pointer = pile.pop(rng.randrange(len(pile)))
    if not pile:
        del keys[key]
    if not keys:
        del shelves[operator]
    return pointer


class JoinableRow(Protocol):
    """One foreign completion that may join the local group of its prompt."""

    @property
    def prompt_hash(self) -> bytes: ...
    @property
    def operator(self) -> str: ...
    @property
    def key(self) -> bytes: ...
    @property
    def sequence(self) -> int: ...
    @property
    def row(self) -> int: ...


R = TypeVar("R", bound=JoinableRow)


def share_rows(rows: Sequence[R], cap: int, fair: bool = True) -> list[R]:
    """Return up to `cap` foreign rows for each prompt, sorted by prompt, key, sequence, row.

    With m operators on a prompt, one gets at most ceil(cap / m) rows, also when others leave their share unused. Turns
    are taken in an order that differs by prompt, so that no name is favoured. `fair=False` takes the first `cap` rows.
    """
    by_prompt: defaultdict[bytes, list[R]] = defaultdict(list)
    for row in sorted(rows, key=_row_order):
        by_prompt[row.prompt_hash].append(row)
    shared: list[R] = []
    for prompt in sorted(by_prompt):
        candidates = by_prompt[prompt]
        taken = _equal_share(candidates, cap) if fair else candidates[: max(0, cap)]
        shared.extend(sorted(taken, key=_row_order))
    return shared


def _row_order(row: JoinableRow) -> tuple[bytes, bytes, int, int]:
    return (row.prompt_hash, row.key, row.sequence, row.row)


def _equal_share(rows: Sequence[R], cap: int) -> list[R]:
    """Deal rows of one prompt to its operators in turns, none beyond its equal share rounded up."""
    by_operator: defaultdict[str, list[R]] = defaultdict(list)
    for row in rows:
        by_operator[row.operator].append(row)
    turns = sorted(by_operator, key=lambda name: hashlib.sha256(rows[0].prompt_hash + name.encode()).digest())
    share = -(-cap // len(turns))
    taken: list[R] = []
    for turn in range(share):
        for operator in turns:
            if turn < len(by_operator[operator]) and len(taken) < cap:
                taken.append(by_operator[operator][turn])
    return taken


def operator_factors(masses: Mapping[str, float], asked: float = 0.0) -> dict[str, float]:
    """Return for each operator the factor in (0, 1] that caps its mass = sum over its rows of weight * abs(A).

    The cap is the greater of two that no operator can move for itself: the lower median of the m positive masses (what
    a typical operator weighs), and asked / m, its equal share of the mass that was asked of all peers together, which
    is the own mass * J / I. So up to half of the operators, whatever they send and with however many keys, weigh at
    most as one other operator or as an equal share; and none can, by sending next to nothing, push the others below
    it. (Of the foreign total itself a loud operator would lift its own share.) A lone operator has no other to be
    compared with: asked alone caps it, and nothing when asked is 0.
    """
    weighing = sorted(mass for mass in masses.values() if mass > 0.0)
    if not weighing or (len(weighing) == 1 and asked <= 0.0):
        return dict.fromkeys(masses, 1.0)
    typical = weighing[(len(weighing) - 1) // 2] if len(weighing) > 1 else 0.0
    cap = max(typical, asked / len(weighing))
    return {operator: min(1.0, cap / mass) if mass > 0.0 else 1.0 for operator, mass in masses.items()}


def row_factors(operators: Sequence[str], masses: Sequence[float], asked: float = 0.0) -> list[float]:
    """Return `operator_factors` row by row, for the foreign rows' operators and masses (weight * abs(A)) in order."""
    totals: dict[str, float] = {}
    for operator, mass in zip(operators, masses, strict=True):
        totals[operator] = totals.get(operator, 0.0) + mass
    factors = operator_factors(totals, asked)
    return [factors[operator] for operator in operators]
