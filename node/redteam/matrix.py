"""Which cells there are: a product of choices, the core set, the paper's setting; the most telling ones come first."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from shoal.defenses.attacks import ATTACKS
from shoal.node.redteam.cells import (
    NO_ATTACK,
    OPTIONAL_LAYERS,
    POSITIVE,
    ROUNDS,
    SHARES,
    Cell,
    Setting,
    expected_layers,
    layers_off,
    learnable,
)
from shoal.protocol.errors import UsageError

SEEDS = (0, 1, 2)
FIRST = ("text", "code", "math", "length")  # those that the targets name
BOTH = ("off", "full")
PAPER: tuple[Setting, ...] = ("paper-vertical", "paper-horizontal")


@dataclass(frozen=True, slots=True)
class Choice:
    """What was asked for; an empty tuple leaves the choice to the set of cells."""

    attacks: tuple[str, ...] = ()
    shares: tuple[int, ...] = ()
    seeds: tuple[int, ...] = ()
    ablate: tuple[str, ...] = ()
    rounds: int = ROUNDS
    setting: Setting = "vertical"
    model: str = "default"


def check_choice(choice: Choice) -> None:
    """Raise `UsageError` for an unknown attack or layer, or a share without a swarm of fitting size."""
    for name in choice.attacks:
        if name not in ATTACKS and name != NO_ATTACK:
            raise UsageError(f"--attacks {name}: unknown; choose from {', '.join([NO_ATTACK, *ATTACKS])}")
    for share in choice.shares:
        if share not in SHARES:
            raise UsageError(f"--shares {share}: choose from {', '.join(map(str, SHARES))} (percent of the nodes)")
    for seed in choice.seeds:
        if seed < 0:
            raise UsageError(f"--seeds {seed}: cannot be negative")
    for name in choice.ablate:
        try:
            layers_off(ablation(name))
        except UsageError as error:
            raise UsageError(f"--ablate {name}: {error}") from None
    if choice.rounds < 1:
        raise UsageError(f"--rounds {choice.rounds}: must be at least 1")


def ablation(name: str) -> str:
    """Return the defences that --ablate NAME means: NAME left out, or with only-NAME alone."""
    return name if name.startswith(("no-", "only-")) else f"no-{name}"


def in_order(names: Iterable[str]) -> list[str]:
    """Return attacks, those of the targets first."""
    ranks = {name: rank for rank, name in enumerate(dict.fromkeys([*FIRST, *ATTACKS]))}
    return sorted(names, key=ranks.__getitem__)


def product(choice: Choice) -> list[Cell]:
    """Return attacks x shares x seeds x defences, with the controls that they are measured against."""
    attacks = in_order(name for name in choice.attacks or ATTACKS if name != NO_ATTACK)
    shares = choice.shares or (0, 25)
    guilty = [share for share in shares if share]
    defenses = (*BOTH, *map(ablation, choice.ablate))
    cells: list[Cell] = []
    for seed in choice.seeds or (0,):
        cells.extend(controls(seed, shares, choice.setting))
        cells.extend(
            Cell(name, share, seed, kind, choice.setting) for name in attacks for share in guilty for kind in defenses
        )
    return [replace(cell, rounds=choice.rounds, model=choice.model) for cell in dict.fromkeys(cells)]


def controls(seed: int, shares: Sequence[int], setting: Setting) -> Iterator[Cell]:
    """Yield the swarm without attackers, with and without defences, and the same nodes alone.

    It is kept under the share 0; that of twelve nodes under the share that needs twelve.
    """
    for share in dict.fromkeys(share if share == 8 else 0 for share in shares):
        yield from (Cell(NO_ATTACK, share, seed, kind, setting) for kind in BOTH)
    yield Cell(NO_ATTACK, 0, seed, "full", "alone")


def _core(choice: Choice) -> list[Cell]:
    """Return the core set, narrowed to the attacks, shares and seeds that were asked for."""
    cells = [cell for seed in choice.seeds or SEEDS for cell in _core_of(seed, choice)]
    return [cell for cell in dict.fromkeys(cells) if _asked(cell, choice)]


def _paper(choice: Choice) -> list[Cell]:
    """Return the paper's setting, vertical and horizontal: attacks at 25 % and the swarm without them."""
    cells: list[Cell] = []
    for seed in choice.seeds or SEEDS:
        for name in (*FIRST, NO_ATTACK):
            if name == NO_ATTACK or name in ATTACKS:
                share = 0 if name == NO_ATTACK else 25
                cells.extend(Cell(name, share, seed, kind, setting) for setting in PAPER for kind in BOTH)
    return [replace(cell, rounds=choice.rounds) for cell in cells if _asked(cell, choice)]


def _core_of(seed: int, choice: Choice) -> Iterator[Cell]:
    """Yield the core set for one seed: each attack on and off, both at one half, then one layer out or alone."""
    attacks = in_order(name for name in ATTACKS if learnable(name))
    yield Cell(NO_ATTACK, 0, seed, "full", "loud")
    made = [*controls(seed, (0,), "vertical"), Cell(NO_ATTACK, 0, seed, "no-appraisal")]
    made += [Cell(name, 25, seed, kind) for name in attacks for kind in BOTH]
    made += [Cell(name, 50, seed, kind) for name in ("text", "code") if name in ATTACKS for kind in BOTH]
    for name in attacks:
        left_out = dict.fromkeys([*(f"no-{layer}" for layer in expected_layers(name)), *map(ablation, choice.ablate)])
        made += [Cell(name, 25, seed, kind) for kind in left_out]
    if seed == 0:  # most layers have nothing to do with it, which one seed shows
        made += [Cell("text", 25, seed, f"only-{layer}") for layer in (POSITIVE, *OPTIONAL_LAYERS)]
    yield from (replace(cell, rounds=choice.rounds, model=choice.model) for cell in made)


def _asked(cell: Cell, choice: Choice) -> bool:
    """Return whether a cell of a set is wanted; controls always are."""
    if cell.attack == NO_ATTACK:
        return True
    return (not choice.attacks or cell.attack in choice.attacks) and (not choice.shares or cell.share in choice.shares)


def chosen(choice: Choice, *, core: bool = False, paper: bool = False) -> list[Cell]:
    """Return the cells that were asked for, seed by seed: one or both of the sets, or else the product of choices."""
    cells = [*(_core(choice) if core else []), *(_paper(choice) if paper else [])]
    return sorted(dict.fromkeys(cells if core or paper else product(choice)), key=_turn)


def _turn(cell: Cell) -> int:
    """Return when a cell has its turn: further seeds of the paper's setting, whose cells are long, come last."""
    return cell.seed + len(SEEDS) if cell.setting in PAPER and cell.seed else cell.seed
