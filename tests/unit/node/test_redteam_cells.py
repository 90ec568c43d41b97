"""One cell: its settings are those that its name says."""

from pathlib import Path

import pytest

from shoal.defenses.attacks import ATTACKS
from shoal.node.config import check
from shoal.node.plan import attackers_of, make_plan
from shoal.node.redteam.cells import MIXES, NO_ATTACK, Cell, expected_layers, layers_off, learnable
from shoal.node.redteam.cells import OPTIONAL_LAYERS as TAKEN
from shoal.node.wiring import OPTIONAL_LAYERS
from shoal.protocol.errors import UsageError

OUT = Path("nowhere")


@pytest.mark.parametrize(("share", "nodes", "attackers"), [(8, 12, 1), (25, 4, 1), (50, 4, 2)])
def test_a_share_is_met_by_whole_nodes(share: int, nodes: int, attackers: int) -> None:
    config = Cell("text", share, 0, "full").config(OUT)
    assert config.swarm.nodes == nodes
    assert len(attackers_of(config)) == attackers


@pytest.mark.parametrize("setting", MIXES)
@pytest.mark.parametrize("defenses", ["off", "full", "no-likelihood", "only-mixing", "only-positive"])
def test_every_kind_of_cell_is_a_valid_simulation(setting: str, defenses: str) -> None:
    for attack, share in ((NO_ATTACK, 0), ("text", 25)):
        config = Cell(attack, share, 1, defenses, setting).config(OUT)
        check(config)
        assert make_plan(config).skills, "the built-in model is made unequally skilled"


def test_nothing_on_is_the_published_recipe_and_full_takes_positive_rows_alone() -> None:
    off, full = (Cell("text", 25, 0, kind).config(OUT) for kind in ("off", "full"))
    assert (off.mixing.peer_rows, off.swarm.defenses_off) == ("all", ("all",))
    assert (full.mixing.peer_rows, full.swarm.defenses_off) == ("positive", ())
    assert off.learning.lr == full.learning.lr == 1e-3


def test_layers_are_left_out_or_alone() -> None:
    assert TAKEN == OPTIONAL_LAYERS
    assert layers_off("no-likelihood") == ("likelihood",)
    assert set(layers_off("only-likelihood")) == set(OPTIONAL_LAYERS) - {"likelihood"}
    assert Cell("text", 25, 0, "only-likelihood").config(OUT).mixing.peer_rows == "all"
    assert Cell("text", 25, 0, "no-likelihood").config(OUT).mixing.peer_rows == "positive"
    assert Cell("text", 25, 0, "only-positive").config(OUT).mixing.peer_rows == "positive"
    assert layers_off("no-appraisal") == ("invariants", "likelihood", "phrases", "judge")
    for wrong in ("no-schema", "no-", "likelihood", "only-nothing"):
        with pytest.raises(UsageError, match="no defence layer"):
            layers_off(wrong)


def test_the_papers_update_has_equal_parts_of_four_nodes() -> None:
    for setting in ("paper-vertical", "paper-horizontal"):
        mixing = MIXES[setting]
        assert mixing.external == 3 * mixing.local
        assert (mixing.local + mixing.external) * mixing.group_size == 32 * 12
        assert mixing.sampled == mixing.local, "everything that is sampled is trained on"
    assert MIXES["paper-horizontal"].shared == 32


def test_expected_layers_are_read_from_the_attack() -> None:
    assert expected_layers("prompt-picking") == ("provenance",)
    partial = [name for name in ATTACKS if ATTACKS[name].expected.layer == "partial"]
    assert partial, "some attacks are expected to get through in part"
    assert all(expected_layers(name) == () for name in partial)


def test_what_plants_nothing_cannot_be_looked_for() -> None:
    assert learnable("text")
    assert not learnable("replay")


def test_names_tell_cells_apart() -> None:
    cells = [Cell("text", 25, 0, "off"), Cell("text", 25, 1, "off"), Cell("text", 25, 0, "off", rounds=3)]
    cells += [Cell("text", 25, 0, "off", model="a/b"), Cell("text", 25, 0, "off", "horizontal")]
    names = {cell.name for cell in cells}
    assert len(names) == len(cells)
    assert all("/" not in name for name in names)
    assert all(Cell(**cell.plain()) == cell for cell in cells)
