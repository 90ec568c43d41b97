"""Names are resolved before anything is written, and every arm has the same honest nodes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.node.config import SimulateConfig
from shoal.node.plan import attackers_of, make_plan, roles_of, task_specs
from shoal.protocol.errors import EnvironmentFault, UsageError


def changed(group: str, **values: Any) -> SimulateConfig:
    config = SimulateConfig()
    return replace(config, **{group: replace(getattr(config, group), **values)})


def test_attackers_are_the_last_nodes() -> None:
    config = changed("swarm", nodes=8, attack=("text:0.25", "flood:0.125"))
    assert attackers_of(config) == {5: "text", 6: "text", 7: "flood"}


def test_colluders_know_their_place() -> None:
    config = changed("swarm", nodes=8, attack=("split-phrase:0.25", "text:0.125"))
    attacks = [role.attack for role in roles_of("swarm", config, attackers_of(config))]
    assert [(a.place, a.of) for a in attacks if a is not None] == [(0, 2), (1, 2), (0, 1)]


def test_an_unknown_attack_names_those_there_are() -> None:
    with pytest.raises(UsageError, match="text"):
        attackers_of(changed("swarm", attack=("nonsense:0.25",)))


def test_each_arm_makes_updates_of_the_same_size_from_the_same_honest_nodes() -> None:
    config = changed("swarm", attack=("text:0.25",))
    swarm = roles_of("swarm", config, {3: "text"})
    isolated = roles_of("isolated", config, {3: "text"})
    total = roles_of("isolated_total", config, {3: "text"})
    assert [role.number for role in swarm] == [0, 1, 2, 3]
    assert [role.number for role in isolated] == [role.number for role in total] == [0, 1, 2]
    assert {role.mixing.local + role.mixing.external for role in (*swarm, *isolated, *total)} == {8}
    assert {role.prompts for role in isolated} == {8}
    assert {role.prompts for role in total} == {32}
    assert not any(role.shares for role in (*isolated, *total))


def test_tasks_take_their_settings_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tasks.toml"
    file.write_text('["rg/chain_sum"]\nmin_terms = 2\n')
    [chain, gcd] = task_specs("rg/chain_sum, rg/gcd", file)
    assert (chain.name, chain.config) == ("rg/chain_sum", {"min_terms": 2})
    assert gcd.config == {}


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ('["rg/other"]\nx = 1\n', UsageError, "rg/other"),
        ("not toml at all [", UsageError, "not TOML"),
        ('"rg/chain_sum" = 3\n', UsageError, "must be a table"),
    ],
)
def test_bad_settings_of_tasks_are_refused(tmp_path: Path, text: str, error: type[Exception], says: str) -> None:
    file = tmp_path / "tasks.toml"
    file.write_text(text)
    with pytest.raises(error, match=says):
        task_specs("rg/chain_sum", file)


def test_a_missing_file_is_an_environment_fault(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="cannot read"):
        task_specs("strings", tmp_path / "absent.toml")


def test_skills_are_only_for_the_default_model() -> None:
    assert make_plan(SimulateConfig()).skills
    assert not make_plan(changed("learning", model="elsewhere")).skills
    with pytest.raises(UsageError, match="--start skills"):
        make_plan(changed("swarm", start="skills", tasks="rg/chain_sum"))
