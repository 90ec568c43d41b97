"""Which cells there are, and in which order."""

import pytest

from shoal.defenses.attacks import ATTACKS
from shoal.node.redteam.cells import NO_ATTACK, Cell, expected_layers, learnable
from shoal.node.redteam.matrix import Choice, check_choice, chosen
from shoal.protocol.errors import UsageError


def test_the_product_has_each_choice_once_and_its_controls() -> None:
    cells = chosen(Choice(attacks=("text", "math"), shares=(0, 8, 25), seeds=(0, 1), ablate=("likelihood",), rounds=7))
    attacked = [cell for cell in cells if cell.attack != NO_ATTACK]
    assert len(attacked) == 2 * 2 * 2 * 3
    controls = {(cell.setting, cell.share, cell.defenses) for cell in cells if cell.attack == NO_ATTACK}
    assert controls == {
        ("vertical", 0, "off"),
        ("vertical", 0, "full"),
        ("vertical", 8, "off"),
        ("vertical", 8, "full"),
        ("alone", 0, "full"),
    }
    assert {cell.rounds for cell in cells} == {7}
    assert len(set(cells)) == len(cells)


def test_no_attack_named_leaves_the_controls() -> None:
    assert {cell.attack for cell in chosen(Choice(attacks=(NO_ATTACK,), shares=(0,)))} == {NO_ATTACK}


def test_the_core_set_holds_what_the_targets_need() -> None:
    cells = chosen(Choice(), core=True)
    for seed in (0, 1, 2):
        for name in filter(learnable, ATTACKS):
            for kind in ("off", "full", *(f"no-{layer}" for layer in expected_layers(name))):
                assert Cell(name, 25, seed, kind) in cells
        for name in ("text", "code"):
            assert Cell(name, 50, seed, "full") in cells
        assert Cell(NO_ATTACK, 0, seed, "full") in cells
        assert Cell(NO_ATTACK, 0, seed, "full", "alone") in cells
    assert Cell("text", 25, 0, "only-likelihood") in cells
    assert not any(not learnable(cell.attack) for cell in cells if cell.attack != NO_ATTACK)


def test_all_of_the_first_seed_comes_before_the_second() -> None:
    seeds = [cell.seed for cell in chosen(Choice(), core=True)]
    assert seeds == sorted(seeds)
    both = chosen(Choice(), core=True, paper=True)
    first_paper = next(at for at, cell in enumerate(both) if cell.setting == "paper-vertical")
    assert {cell.seed for cell in both[:first_paper]} == {0}


def test_a_set_is_narrowed_by_attack_share_and_seed() -> None:
    cells = chosen(Choice(attacks=("math",), seeds=(5,)), core=True)
    assert {cell.attack for cell in cells} == {NO_ATTACK, "math"}
    assert {cell.seed for cell in cells} == {5}
    paper = chosen(Choice(attacks=("text",), seeds=(0,)), paper=True)
    assert {(cell.setting, cell.attack, cell.defenses) for cell in paper} == {
        (setting, attack, kind)
        for setting in ("paper-vertical", "paper-horizontal")
        for attack in ("text", NO_ATTACK)
        for kind in ("off", "full")
    }


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (Choice(attacks=("nope",)), "--attacks nope"),
        (Choice(shares=(30,)), "--shares 30"),
        (Choice(seeds=(-1,)), "--seeds -1"),
        (Choice(ablate=("schema",)), "--ablate schema"),
        (Choice(ablate=("only-nope",)), "--ablate only-nope"),
        (Choice(rounds=0), "--rounds 0"),
    ],
)
def test_what_there_is_not_is_refused_by_its_name(choice: Choice, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_choice(choice)
