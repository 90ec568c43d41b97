"""Every decoder and the gate under broken messages: refused with a reason, or encoded again to what came; nothing else.

The targets and the changes are those of tests/fuzz, which `make fuzz` runs by the million.
"""

from random import Random

import fuzz_gate
import fuzz_way
import pytest
from fuzz_all import ALL, DECODERS
from fuzz_gate import GATE, new_script
from fuzz_mutations import mutate
from fuzz_run import case, run
from fuzz_targets import Broken, Target, same
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize("name", ALL)
def test_valid_messages_are_accepted(name: str):
    accepted = [ALL[name](data) for data in ALL[name].seeds]
    assert any(accepted)
    assert all(accepted) or name == "zstd"  # whose seeds are bombs, too


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=60)
@given(st.data(), st.randoms(use_true_random=False))
def test_a_broken_message_is_refused_or_encodes_to_itself(name: str, data: st.DataObject, rng: Random):
    target = DECODERS[name]
    target(mutate(data.draw(st.sampled_from(list(target.seeds))), rng, target.seeds))


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=40)
@given(st.binary(max_size=300))
def test_noise_is_refused_or_encodes_to_itself(name: str, noise: bytes):
    DECODERS[name](noise)


@settings(max_examples=80)
@given(st.randoms(use_true_random=False))
def test_no_script_of_messages_makes_the_gate_or_the_screen_raise(rng: Random):
    assert GATE(new_script(rng))


def test_a_thousand_seeded_cases_break_nothing_and_the_same_seed_gives_the_same_cases():
    report = run(1000, seed=1, names=list(ALL), progress=False)
    assert report.broken == []
    assert set(report.cases) == set(ALL)
    assert sum(report.cases.values()) == 1000
    again = case(1, 77, list(ALL))
    assert again == case(1, 77, list(ALL)) != case(2, 77, list(ALL))


def test_scripts_reach_every_layer_up_to_the_duplicates(monkeypatch: pytest.MonkeyPatch):
    seen: set[str] = set()
    checked = fuzz_gate.Scene.check_bounds

    def noting(scene: fuzz_gate.Scene) -> None:
        seen.update(scene.lab.counters.state())
        checked(scene)

    monkeypatch.setattr(fuzz_gate.Scene, "check_bounds", noting)
    rng = Random(2)
    for _ in range(800):
        GATE(new_script(rng))
    assert {name.split("/")[0] for name in seen} >= {
        *("admission", "quota", "header", "schema", "provenance", "duplicates", "text", "gate", "screen")
    }
    assert len(seen) > 45


def test_scripts_go_the_whole_way(monkeypatch: pytest.MonkeyPatch):
    seen: set[str] = set()
    usable = 0
    checked = fuzz_way.Path.check_bounds

    def noting(path: fuzz_way.Path) -> None:
        nonlocal usable
        checked(path)
        seen.update(path.lab.counters.state())
        usable += path.appraised

    monkeypatch.setattr(fuzz_way.Path, "check_bounds", noting)
    rng = Random(3)
    for _ in range(150):
        assert fuzz_way.WAY(fuzz_way.new_script(rng))
    layers = {name.split("/")[0] for name in seen}
    assert layers >= {
        "gate",
        "screen",
        "text",
        "verifier",
        "invariants",
        "likelihood",
        "phrases",
        "judge",
        "reputation",
    }
    assert usable > 30


def test_an_error_that_is_not_declared_is_a_find():
    def raising(data: bytes) -> None:
        raise IndexError("not an error of the protocol")

    def other(data: bytes) -> None:
        same(data.lower(), data, "text")

    with pytest.raises(IndexError):
        Target("raising", [b""], raising)(b"")
    with pytest.raises(Broken):
        Target("other", [b""], other)(b"A")
    assert Target("other", [b""], other)(b"a")
