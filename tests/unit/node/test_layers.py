"""Settings in layers: what lies over what, where a value came from, and what is refused."""

from collections import Counter
from pathlib import Path

import pytest

from shoal.node import layers, settings_page
from shoal.node.config import Mixing
from shoal.node.declared import options, toml_text
from shoal.node.options import RunConfig
from shoal.protocol.errors import UsageError


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_flags_lie_over_the_environment_over_the_file_over_defaults(tmp_path: Path) -> None:
    file = write(tmp_path / "config.toml", 'swarm = "a.toml"\n[mixing]\nlocal = 1\nexternal = 1\ngroup_size = 3\n')
    environment = {"SHOAL_MIXING_EXTERNAL": "2", "SHOAL_MIXING_GROUP_SIZE": "5", "PATH": "/bin"}
    layered = layers.load(file, environment, {"mixing.group_size": 7})
    mixing = layered.config.mixing
    assert (mixing.local, mixing.external, mixing.group_size, mixing.mix) == (1, 2, 7, "whole")
    assert [layered.origins[f"mixing.{name}"] for name in ("local", "external", "group_size", "mix")] == [
        str(file),
        "environment SHOAL_MIXING_EXTERNAL",
        "flag --group-size",
        "default",
    ]


def test_a_missing_file_leaves_the_defaults(tmp_path: Path) -> None:
    assert layers.load(tmp_path / "none.toml", {}, {}).config == RunConfig()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[mixing]\nlocl = 2\n", "unknown setting mixing.locl; did you mean mixing.local"),
        ("mixng = 3\n", "unknown setting mixng"),
        ("mixing = 3\n", "unknown setting mixing"),
        ('[mixing]\nlocal = "2"\n', "mixing.local = '2'.*it takes a whole number"),
        ("[mixing]\nlocal = true\n", "mixing.local = True.*it takes a whole number"),
        ('[mixing]\nmix = "some"\n', "it takes one of whole, joined"),
        ("[network]\nbootstrap = 7\n", "it takes a list of text"),
        ("[mixing\n", "is not TOML"),
    ],
)
def test_a_wrong_file_is_named_with_the_setting(tmp_path: Path, text: str, expected: str) -> None:
    file = write(tmp_path / "config.toml", text)
    with pytest.raises(UsageError, match=expected) as caught:
        layers.load(file, {}, {})
    assert str(file) in str(caught.value)


def test_the_environment_is_read_by_type_and_unknown_names_are_errors(tmp_path: Path) -> None:
    none = tmp_path / "none.toml"
    config = layers.load(
        none,
        {
            "SHOAL_OBSERVE": "yes",
            "SHOAL_LIFE_WAIT_FRACTION": "1",
            "SHOAL_LIFE_UNTIL_ROUND": "9",
            "SHOAL_NETWORK_BOOTSTRAP": " /ip4/192.0.2.1/tcp/1/p2p/a, /ip4/192.0.2.2/tcp/1/p2p/b,",
            "SHOAL_HOME": "/nowhere",
        },
        {},
    ).config
    assert config.observe is True
    assert config.life.wait_fraction == 1.0
    assert config.life.until_round == 9
    assert config.network.bootstrap == ("/ip4/192.0.2.1/tcp/1/p2p/a", "/ip4/192.0.2.2/tcp/1/p2p/b")
    with pytest.raises(UsageError, match="SHOAL_MIXING_LOCL; did you mean SHOAL_MIXING_LOCAL"):
        layers.load(none, {"SHOAL_MIXING_LOCL": "2"}, {})
    with pytest.raises(UsageError, match=r"environment SHOAL_MIXING_LOCAL: mixing\.local = 'two'"):
        layers.load(none, {"SHOAL_MIXING_LOCAL": "two"}, {})


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("local = 2", "mixing.local"),
        ("[learning]\nlocal = 2", "mixing.local"),
        ("[mixing]\ngroup-size = 2", "mixing.group_size"),
        ("[mixing]\ngroupsize = 2", "mixing.group_size"),
        ("[health]\nhealth_port = 2", "health.port"),
        ("[health]\nprot = 2", "health.port"),
        ("[netwrok]\nport = 2", "network.port"),
        ("[mixing.local]\nx = 1", None),
    ],
)
def test_the_nearest_setting_is_named(tmp_path: Path, wrong: str, meant: str | None) -> None:
    with pytest.raises(UsageError, match=f"did you mean {meant}\\?" if meant else "it takes a whole number"):
        layers.load(write(tmp_path / "config.toml", wrong), {}, {})


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("SHOAL_PORT", "SHOAL_NETWORK_PORT"),
        ("SHOAL_HEALTH_HEALTH_PORT", "SHOAL_HEALTH_PORT"),
        ("SHOAL_SWRAM", "SHOAL_SWARM"),
        ("SHOAL_LOCAL", "SHOAL_MIXING_LOCAL"),
        ("SHOAL_mixing_local", "SHOAL_MIXING_LOCAL"),
    ],
)
def test_the_nearest_variable_is_named(tmp_path: Path, wrong: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"unknown setting {wrong}; did you mean {meant}\\?"):
        layers.load(tmp_path / "none.toml", {wrong: "1"}, {})


def test_what_a_container_platform_sets_is_passed_over_and_so_is_what_is_empty(tmp_path: Path) -> None:
    environment = {
        "SHOAL_PORT": "tcp://10.0.0.1:47700",
        "SHOAL_NETWORK_PORT": "tcp://10.0.0.1:47700",
        "SHOAL_PORT_47700_TCP_ADDR": "10.0.0.1",
        "SHOAL_NODE_0_SERVICE_HOST": "10.0.0.1",
        "SHOAL_SERVICE_PORT_HTTP": "1",
        "SHOAL_SWARM": "",
        "SHOAL_OBSERVE": "",
        "SHOAL_MIXING_LOCAL": "",
    }
    file = write(tmp_path / "config.toml", "[mixing]\nlocal = 3\n")
    layered = layers.load(file, environment, {})
    assert layered.config == RunConfig(mixing=Mixing(local=3))
    assert layered.origins["mixing.local"] == str(file)


def test_paths_in_the_file_count_from_its_folder_and_links_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    text = 'swarm = "my/swarm.toml"\n[learning]\nmodel = "~/model"\n[bridge]\ndata = "/data.jsonl"\n'
    config = layers.load(write(tmp_path / "config.toml", text), {}, {}).config
    assert config.swarm == str(tmp_path / "my" / "swarm.toml")
    assert config.learning.model == "/home/me/model"
    assert config.bridge.bridge_data == "/data.jsonl"
    for source in ("shoal://00@/ip4/192.0.2.1/tcp/1", "https://example.org/swarm.toml"):
        assert layers.load(write(tmp_path / "b.toml", f'swarm = "{source}"\n'), {}, {}).config.swarm == source
    text = '[learning]\nmodel = "default"\n'
    assert layers.load(write(tmp_path / "c.toml", text), {}, {}).config.learning.model == "default"
    assert layers.load(tmp_path / "none.toml", {"SHOAL_SWARM": "a.toml"}, {}).config.swarm == "a.toml"


def test_a_configuration_that_does_not_hold_together_says_where_its_parts_stand(tmp_path: Path) -> None:
    file = write(tmp_path / "config.toml", "[learning]\nminibatches = 3\n")
    layered = layers.load(file, {"SHOAL_MIXING_LOCAL": "3"}, {"mixing.external": 1})
    with pytest.raises(UsageError) as caught:
        layers.checked(layered)
    said = str(caught.value)
    assert "do not divide into --minibatches 3" in said
    assert f"learning.minibatches is set in {file}" in said
    assert "mixing.local is set in environment SHOAL_MIXING_LOCAL" in said
    assert "mixing.external" not in said  # a flag: whoever gave it sees it
    good = layers.load(tmp_path / "none.toml", {}, {})
    assert layers.checked(good) is good.config


def test_any_text_survives_the_file(tmp_path: Path) -> None:
    for text in ('/a "b" \\ c', "/fisch 🐟", "/tab\tand\x7f", "/ünïcode"):
        file = write(tmp_path / "config.toml", f"swarm = {toml_text(text)}\n")
        assert layers.load(file, {}, {}).config.swarm == text


def test_no_two_settings_share_a_flag_and_each_has_a_help_text() -> None:
    counts = Counter(option.flag for option in options())
    assert [flag for flag, count in counts.items() if count > 1] == []
    assert [option.path for option in options() if not option.doc] == []
    assert len(counts) > 40


def test_the_file_that_init_writes_means_the_defaults_and_so_it_does_when_every_line_is_in_force(
    tmp_path: Path,
) -> None:
    text = settings_page.template()
    assert layers.load(write(tmp_path / "a.toml", text), {}, {}).config == RunConfig()
    names = {option.key for option in options()}
    lines = [
        line.removeprefix("# ") if line.startswith("# ") and line.split()[1] in names and " = " in line else line
        for line in text.splitlines()
    ]
    in_force = "\n".join(line for line in lines if not line.endswith("= …"))
    layered = layers.load(write(tmp_path / "b.toml", in_force), {}, {})
    assert layered.config == RunConfig()
    in_file = {path for path, origin in layered.origins.items() if origin != "default"}
    assert in_file == {option.path for option in options() if option.default is not None}


def test_the_page_of_settings_is_not_stale() -> None:
    page = Path(__file__).parents[3] / "docs" / "configuration.md"
    assert page.read_text(encoding="utf-8") == settings_page.page()
