"""`shoal redteam` refuses what its sets of cells would pass over in silence, and says what its words mean."""

from pathlib import Path

import pytest
from test_redteam_results import result

from shoal.node.commands.redteam import Asked, check_sets, choice_of, list_attacks, say
from shoal.node.redteam.matrix import chosen
from shoal.node.redteam.results import Results
from shoal.node.redteam.run import Tidings
from shoal.protocol.errors import UsageError


def check(asked: Asked) -> None:
    choice = choice_of(asked)
    check_sets(asked, choice, chosen(choice, core=asked.core, paper=asked.paper))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Asked(model="no/such/model"), "--model no/such/model: no such directory"),
        (Asked(model=str(Path(__file__).parent), paper=True), "--paper is run with the default model"),
        (Asked(core=True, setting="horizontal"), "have settings of their own"),
        (Asked(paper=True, ablate="likelihood"), "--paper leaves no layer out"),
        (Asked(core=True, attacks="text,flood"), "--attacks flood: not in that set"),
        (Asked(core=True, attacks="text", shares="8"), "--attacks text: not in that set"),
    ],
)
def test_what_would_be_passed_over_is_refused(asked: Asked, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        check(asked)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "asked",
    [
        Asked(attacks="flood", setting="horizontal", ablate="quota"),
        Asked(core=True, attacks="text,none", shares="25", ablate="phrases"),
        Asked(core=True, paper=True, ablate="phrases"),
        Asked(paper=True, attacks="math"),
        Asked(model=str(Path(__file__).parent), core=True),
    ],
)
def test_what_can_be_met_passes(asked: Asked) -> None:
    check(asked)


def test_the_example_beside_a_wrong_number_is_one_of_its_option() -> None:
    with pytest.raises(UsageError, match=r"--seeds 'a': .* e\.g\. 0,1$"):
        choice_of(Asked(seeds="a"))
    with pytest.raises(UsageError, match=r"--shares 'a': .* e\.g\. 0,25$"):
        choice_of(Asked(shares="a"))


def test_the_list_says_what_partial_means(capsys: pytest.CaptureFixture[str]) -> None:
    list_attacks(as_json=False)
    assert "partial: some of it is expected to pass" in capsys.readouterr().out


@pytest.mark.parametrize(("hits", "unsure"), [(0, True), (200, False)])
def test_a_verdict_that_nobody_can_give_is_explained(
    hits: int, unsure: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cells = chosen(choice_of(Asked(attacks="text", shares="25")))
    found = [result(cell, hits if cell.share and cell.defenses == "off" else 0) for cell in cells]
    say(Results(found, cells), tmp_path, Tidings(), finished=True)
    assert ("not measurable: too few answers" in capsys.readouterr().out) is unsure
