"""`shoal config` and the flags of `shoal run`: what a node would run with, and where each value comes from."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from shoal.node import launch, layers
from shoal.node.commands import run as run_command
from shoal.node.commands.completion import completion
from shoal.node.commands.config import check, path, show
from shoal.node.commands.init import init
from shoal.node.declared import Option, options, value_of
from shoal.node.home import Home
from shoal.node.options import RunConfig
from shoal.protocol.errors import UsageError

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in options():
        monkeypatch.delenv(option.variable, raising=False)


def write(home: Path, text: str) -> Path:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(text, encoding="utf-8")
    return home / "config.toml"


def test_every_setting_is_shown_with_value_and_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    file = write(tmp_path, "[mixing]\nlocal = 2\nexternal = 2\n")
    monkeypatch.setenv("SHOAL_MIXING_EXTERNAL", "6")
    monkeypatch.setenv("SHOAL_NETWORK_ANNOUNCE", "/ip4/203.0.113.7/tcp/1,/ip4/203.0.113.8/tcp/1")
    show(home=tmp_path, json=True)
    shown = json.loads(capsys.readouterr().out)
    assert set(shown) == {option.path for option in options()}
    assert shown["mixing.local"] == {"value": 2, "origin": str(file)}
    assert shown["mixing.external"] == {"value": 6, "origin": "environment SHOAL_MIXING_EXTERNAL"}
    assert shown["mixing.group_size"] == {"value": 8, "origin": "default"}
    assert shown["network.announce"]["value"] == ["/ip4/203.0.113.7/tcp/1", "/ip4/203.0.113.8/tcp/1"]
    show(home=tmp_path, origin=True)
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["mixing.local"].split()[1:] == ["2", str(file)]
    assert lines["mixing.external"].endswith("environment SHOAL_MIXING_EXTERNAL")
    assert lines["swarm"].split()[1:] == ["–", "default"]
    show(home=tmp_path)
    assert "default\n" not in capsys.readouterr().out.replace('"default"', "")


def test_check_finds_what_run_would_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    check(home=tmp_path / "none")
    assert "no such file" in capsys.readouterr().out
    file = write(tmp_path, "[learning]\nminibatches = 4\n")
    check(home=tmp_path)
    assert capsys.readouterr().out == f"{file}: good\n"
    monkeypatch.setenv("SHOAL_MIXING_LOCAL", "3")
    with pytest.raises(UsageError, match=f"learning.minibatches is set in {file}"):
        check(home=tmp_path)


def test_the_path_is_printed_whether_the_file_is_there_or_not(tmp_path: Path, capsys: Captured) -> None:
    path(home=tmp_path)
    assert capsys.readouterr().out == f"{tmp_path}/config.toml\n"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Home, RunConfig]]:
    """What `shoal run` would have started."""
    calls: list[tuple[Home, RunConfig]] = []

    def noted(home: Home, config: RunConfig) -> int:
        calls.append((home, config))
        return 0

    monkeypatch.setattr(launch, "run_node", noted)
    return calls


def run(*words: str) -> int:
    return run_command.app(words, exit_on_error=False, print_error=False)


def another(option: Option) -> Any:
    """Return a value that is not the default."""
    kind, default = option.kind, option.default
    if option.is_list:
        return ("one", "two")
    if kind is bool:
        return not default
    choices = [choice for part in (kind, *get_args(kind)) for choice in get_args(part) if isinstance(choice, str)]
    if choices:
        return next(choice for choice in choices if choice != default)
    if kind is float or float in get_args(kind):
        return (default or 0.0) / 2 + 0.25
    return default + 1 if isinstance(default, int) else "7"


def words_for(flag: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    if isinstance(value, tuple):
        return [word for item in value for word in (flag, item)]
    return [flag, str(value)]


def test_every_setting_can_be_given_as_a_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[tuple[Home, RunConfig]]
) -> None:
    init(home=tmp_path)
    monkeypatch.setattr(layers, "check", lambda config: None)  # all of these at once go together never
    wanted = {option.path: another(option) for option in options()}
    words = [word for option in options() for word in words_for(option.flag, wanted[option.path])]
    assert run("--home", str(tmp_path), *words) == 0
    [(home, config)] = started
    assert home.path == tmp_path
    got = {option.path: value_of(config, option) for option in options()}
    assert {path: str(value) for path, value in got.items()} == {path: str(value) for path, value in wanted.items()}


def test_a_flag_at_its_default_still_lies_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[tuple[Home, RunConfig]]
) -> None:
    init(home=tmp_path)
    write(tmp_path, "[mixing]\nlocal = 6\nexternal = 6\n[network]\nrelays = false\n")
    monkeypatch.setenv("SHOAL_MIXING_GROUP_SIZE", "4")
    run("--home", str(tmp_path), "--local", "4", "--relays")
    run("--home", str(tmp_path))
    (_, first), (_, second) = started
    assert (first.mixing.local, first.mixing.external, first.mixing.group_size) == (4, 6, 4)
    assert first.network.relays is True
    assert (second.mixing.local, second.network.relays) == (6, False), "flags of one call do not stay for the next"


def test_nothing_starts_with_settings_that_do_not_go_together(
    tmp_path: Path, started: list[tuple[Home, RunConfig]]
) -> None:
    """Failure 9."""
    with pytest.raises(UsageError, match="shoal init"):
        run("--home", str(tmp_path))
    init(home=tmp_path)
    with pytest.raises(UsageError, match="do not divide into --minibatches 3"):
        run("--home", str(tmp_path), "--minibatches", "3")
    write(tmp_path, "[mixing]\nlokal = 6\n")
    with pytest.raises(UsageError, match=r"unknown setting mixing\.lokal; did you mean mixing\.local"):
        run("--home", str(tmp_path))
    assert started == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_of_a_shell_knows_the_commands(shell: Any, capsys: Captured) -> None:
    completion(shell)
    script = capsys.readouterr().out
    for word in ("simulate", "keys", "rotate", "group-size"):
        assert word in script, word
