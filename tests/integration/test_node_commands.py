"""The verbs that look at a node and steer it, against a served one: what they print, and that no text does harm."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_view import KEY, ServedNode

from shoal.node.checks import place
from shoal.node.commands.doctor import doctor
from shoal.node.commands.peers import peers
from shoal.node.commands.service import service
from shoal.node.commands.status import status
from shoal.node.commands.steer import export, pause, resume
from shoal.node.control import NoNode
from shoal.node.home import Home
from shoal.protocol.errors import EnvironmentFault, UsageError

EVIL = "\x1b]0;owned\x07[bold red]\nok   everything\u202e"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedNode]:
    monkeypatch.setenv("COLUMNS", "160")
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    made = ServedNode(home)
    try:
        made.open()
        yield made
    finally:
        made.close()


def test_one_screen_tells_how_the_node_is(node: ServedNode, capsys: pytest.CaptureFixture[str]) -> None:
    node.view.state["last_failure"] = "ValueError: odd"
    assert status(home=node.home) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said, "no escape codes without a terminal"
    assert len(said.splitlines()) <= 24
    for words in (
        "river (cdcdcd",
        "round 60, 12 s left · gathering",
        "healthy  stepping: last step ended 10 s ago, limit 180 s",
        f"{KEY} · train · process 4242, up 1 h 00 min",
        "59 done, 1 failed · usually 20 s each",
        "policy version 59 · reward 0.50 · 4 own and 3 peers' rollouts",
        "7 live, 5 connected, 1 bootstraps · their clocks -0.25 s from ours · transport restarted 2 times",
        "private: forward it",
        "/ip4/192.0.2.7/tcp/47700",
        "text/zero_width 2, verifier/unscorable_cpu_time 1",
        "512 MiB resident · event loop late by 12.5 ms (p99)",
        "ValueError: odd",
    ):
        assert words in said, words
    assert "pool/used" not in said, "what was used was not refused"


def test_a_stuck_node_says_so(node: ServedNode, capsys: pytest.CaptureFixture[str]) -> None:
    node.view.state |= {"last_step_age_seconds": 999.0, "steps_total": 0, "failures_in_a_row": 3}
    node.view.state["network"] = {"daemon_alive": False}
    assert status(home=node.home) == 0
    said = capsys.readouterr().out
    assert "NOT HEALTHY  stuck in gathering" in said
    assert "not ready  the transport is down" in said
    assert "the transport is DOWN" in said
    assert "(3 in a row)" in said


def test_an_early_status_is_shown_as_far_as_it_goes(node: ServedNode, capsys: pytest.CaptureFixture[str]) -> None:
    node.view.state = {"phase": "starting", "step": None, "counts": None, "network": None, "swarm": None}
    assert status(home=node.home) == 0
    assert "none yet" in capsys.readouterr().out


def test_status_as_json_is_the_status(node: ServedNode, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(home=node.home, json=True) == 0
    assert json.loads(capsys.readouterr().out) == node.view.state


def test_peers_text_is_harmless_on_every_screen(node: ServedNode, capsys: pytest.CaptureFixture[str]) -> None:
    state = node.view.state
    state["swarm"] |= {"name": EVIL}
    state["counts"] = {f"text/{EVIL}": 1}
    state["last_failure"] = EVIL
    state["network"] |= {"addresses": [EVIL], "reachability": {"verdict": EVIL, "seen_as": [EVIL], "advice": EVIL}}
    node.view.known = [{"key": EVIL, "operator": EVIL, "addresses": [EVIL], "connected": True}]
    for show in (status, peers):
        for as_json in (False, True):
            assert show(home=node.home, json=as_json) == 0
            said = capsys.readouterr().out
            assert "\x1b" not in said
            assert "\u202e" not in said
            assert not any(line.startswith("ok   everything") for line in said.splitlines())


def test_peers_are_listed(node: ServedNode, capsys: pytest.CaptureFixture[str]) -> None:
    assert peers(home=node.home) == 0
    assert "trains alone" in capsys.readouterr().out
    node.view.known = [
        {
            "key": "ee" * 32,
            "operator": "mill",
            "connected": True,
            "last_seen": 0.0,
            "addresses": ["/ip4/192.0.2.9/tcp/1"],
            "policy_version": 12,
            "same_model": True,
            "used": 1234,
            "refused": 5,
            "reputation": 0.75,
        },
        {"key": "dd" * 32, "operator": "dd" * 32, "connected": False, "last_seen": 0.0, "same_model": False},
        {},
    ]
    assert peers(home=node.home) == 0
    first, second, third = capsys.readouterr().out.splitlines()[1:]
    assert first.split() == [
        *("eeeeeeeeeeeeeeee", "mill", "connected", "12", "as", "ours"),
        "1,234",
        "5",
        "0.75",
        "/ip4/192.0.2.9/tcp/1",
    ]
    assert second.startswith("dddddddddddddddd  –")
    assert "ago" in second
    assert "another" in second
    assert set(third.split()) == {"–"}
    assert peers(home=node.home, json=True) == 0
    assert json.loads(capsys.readouterr().out) == node.view.known


def test_pausing_resuming_exporting(node: ServedNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pause(home=node.home) == 0
    assert node.view.state["paused"] is True
    assert resume(home=node.home) == 0
    assert node.view.state["paused"] is False
    assert export(tmp_path / "model", home=node.home) == 0
    assert node.view.exported == [str(tmp_path / "model")]
    assert "the running node" in capsys.readouterr().out
    node.view.failure = UsageError("it exists")
    with pytest.raises(UsageError, match="it exists"):
        export(tmp_path / "model", home=node.home)


def test_without_a_node_each_verb_says_so(tmp_path: Path) -> None:
    for verb in (status, peers, pause, resume):
        with pytest.raises(NoNode, match=str(tmp_path)):
            verb(home=tmp_path)
    with pytest.raises(EnvironmentFault, match="checkpoint"):
        export(tmp_path / "model", home=tmp_path)


def test_the_doctor_reads_a_running_node(node: ServedNode, capsys: pytest.CaptureFixture[str]) -> None:
    doctor(home=node.home, json=True)
    found = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert "4242 runs a node" in found["node"]["detail"]
    assert "512 MiB" in found["memory"]["detail"]
    assert "0.25 s ahead of the peers" in found["clock"]["detail"]
    assert found["reachability"]["verdict"] == "warn"
    assert found["reachability"]["advice"] == "forward it"


def test_a_setting_that_is_not_known_fails_and_the_rest_is_still_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.toml").write_text("[network]\nprot = 1\n")
    assert doctor(home=tmp_path) == 1
    said = capsys.readouterr().out
    assert "fail configuration" in said
    assert "prot" in said
    assert "ok   python" in said


def test_a_node_that_does_not_listen_is_told_from_none(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert place.lock(home, None, "").verdict == "ok"
    with home.lock():
        assert place.lock(home, None, "").verdict == "warn"
    assert place.lock(home, None, "").verdict == "ok"
    assert place.lock(home, None, "it does not answer").verdict == "fail"


def test_the_unit_of_a_home_follows_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.toml").write_text('[learning]\ndevice = "cuda:0"\n')
    assert service(home=tmp_path) == 0
    assert "PrivateDevices=yes" not in capsys.readouterr().out
    assert service(home=tmp_path, gpu=False) == 0
    assert "PrivateDevices=yes" in capsys.readouterr().out
    assert service(user=True, home=tmp_path) == 0
    assert f"run --home {tmp_path}" in capsys.readouterr().out
    with pytest.raises(UsageError, match="--user or --system"):
        service(user=True, system=True, home=tmp_path)
