"""Settings in layers: what lies over what, where a value came from, and what is refused."""

from collections import Counter
from pathlib import Path

import pytest

from shoal.node import layers
from shoal.node.options import RunConfig, check
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
        ('[mixing]\nlocal = "2"\n', "mixing.local = '2'.*it takes integer"),
        ("[mixing]\nlocal = true\n", "mixing.local = True.*it takes integer"),
        ('[mixing]\nmix = "some"\n', "it takes whole, joined"),
        ("[network]\nbootstrap = 7\n", "it takes list of text"),
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


def test_no_two_settings_share_a_flag_and_each_has_a_help_text() -> None:
    counts = Counter(option.flag for option in layers.options())
    assert [flag for flag, count in counts.items() if count > 1] == []
    assert [option.path for option in layers.options() if not option.doc] == []
    assert len(counts) > 40


def test_the_file_that_init_writes_means_the_defaults_and_so_it_does_when_every_line_is_in_force(
    tmp_path: Path,
) -> None:
    text = layers.template()
    assert layers.load(write(tmp_path / "a.toml", text), {}, {}).config == RunConfig()
    names = {option.name for option in layers.options()}
    lines = [
        line.removeprefix("# ") if line.startswith("# ") and line.split()[1] in names and " = " in line else line
        for line in text.splitlines()
    ]
    in_force = "\n".join(line for line in lines if not line.endswith("= …"))
    layered = layers.load(write(tmp_path / "b.toml", in_force), {}, {})
    assert layered.config == RunConfig()
    assert sum(origin != "default" for origin in layered.origins.values()) > 35


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"observe": True, "rollouts_only": True}, "--rollouts-only and --observe exclude each other"),
        ({"learning.minibatches": 3}, "do not divide into --minibatches 3"),
        ({"network.port": 0}, "--port 0"),
        ({"network.port": 5, "health.health_port": 5}, "both 5"),
        ({"network.bootstrap": ("127.0.0.1:5",)}, "not a multiaddr"),
        ({"network.bootstrap": ("/ip4/127.0.0.1/tcp/5",)}, "the peer id is missing"),
        ({"network.announce": ("tcp/5",)}, "--announce"),
        ({"life.failures": 0}, "--failures 0"),
        ({"life.threads": 1000}, "--threads 1000"),
        ({"life.wait_fraction": float("nan")}, "--wait-fraction nan"),
        ({"life.until_round": -1}, "--until-round -1"),
        ({"life.defenses_off": ("tex",)}, "unknown defence layer 'tex'"),
        ({"learning.lr": 0.0}, "--lr 0.0"),
        ({"bridge.bridge_read": True}, "bridge"),
    ],
)
def test_settings_are_checked_whole_before_anything_is_loaded(tmp_path: Path, flags: dict, expected: str) -> None:
    """Failure 9."""
    config = layers.load(tmp_path / "none.toml", {}, flags).config
    with pytest.raises(UsageError, match=expected):
        check(config)


def test_the_defaults_are_good() -> None:
    check(RunConfig())


def test_the_page_of_settings_is_not_stale() -> None:
    page = Path(__file__).parents[3] / "docs" / "configuration.md"
    assert page.read_text(encoding="utf-8") == layers.page()
