"""`shoal swarm` as it is typed: what it writes, what it prints, and how it fails."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.node import cli, swarms
from shoal.node.commands import swarm
from shoal.node.home import Home
from shoal.node.shelf import Shelf
from shoal.node.swarms import open_swarm
from shoal.protocol.errors import UsageError
from shoal.protocol.identity import Identity
from shoal.protocol.invite import open_invite
from shoal.protocol.libp2p.keys import peer_id
from shoal.protocol.manifest import Manifest

GENESIS = "1970-01-12T13:46:40"  # 1,000,000 s
NOW = 1_001_000.0  # round 100 when rounds last 10 s
FOUNDER, MEMBER = Identity.from_seed(bytes([1]) * 32), Identity.from_seed(bytes([2]) * 32)
PEER = Identity.from_seed(bytes([3]) * 32).key.hex()
BOOTSTRAP = "/ip4/127.0.0.1/tcp/47700/p2p/12D3KooWExample"


@pytest.fixture(autouse=True)
def _in_a_folder_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(swarms.time, "time", lambda: NOW)
    for name, identity in (("founder", FOUNDER), ("member", MEMBER)):
        (tmp_path / name).mkdir()
        identity.save(Home(tmp_path / name).identity)


def run(*words: str, home: str = "founder") -> int:
    """Run one command as the founder, or on another home."""
    given = [] if words[0] == "show" else ["--home", home]
    return swarm.app([*words, *given], exit_on_error=False, print_error=False)


def create(*options: str) -> Manifest:
    usual = {"--lineage": "any", "--round-seconds": "10", "--genesis": GENESIS}
    words = [word for name, value in usual.items() if name not in options for word in (name, value)]
    assert run("create", "demo", *words, *options) == 0
    return read()


def read(file: str = "demo.toml") -> Manifest:
    manifest = Manifest.from_toml(Path(file).read_text(encoding="utf-8"))
    manifest.verify()
    return manifest


def printed(capsys: pytest.CaptureFixture[str], *words: str, **where: str) -> tuple[int, Any]:
    capsys.readouterr()
    code = run(*words, "--json", **where)
    return code, json.loads(capsys.readouterr().out)


def findings(capsys: pytest.CaptureFixture[str], home: str = "founder") -> tuple[int, dict[str, tuple[bool, str]]]:
    code, report = printed(capsys, "verify", "demo.toml", home=home)
    assert report["good"] == (code == 0)
    return code, {found["name"]: (found["good"], found["detail"]) for found in report["findings"]}


# -- create -----------------------------------------------------------------------------------------------------------


def test_a_swarm_is_made_with_one_command(capsys: pytest.CaptureFixture[str]):
    assert run("create", "demo", "--bootstrap", BOOTSTRAP) == 0
    manifest = read()
    assert (manifest.name, manifest.founder, manifest.genesis) == ("demo", FOUNDER.key.hex(), int(NOW))
    assert {task.name.partition("/")[0] for task in manifest.tasks} == {"strings"}
    assert len(manifest.lineages) == 1
    assert manifest.admission.mode == "open"
    out = capsys.readouterr().out
    assert manifest.swarm_id.hex() in out
    assert f"shoal://{manifest.swarm_id.hex()}@{BOOTSTRAP}" in out
    assert open_swarm(None, Home(Path("founder"))).current(0) == manifest  # the founder's node needs no --swarm


def test_the_default_lineage_is_that_of_the_shipped_model():
    from shoal.trainer.model import DEFAULT_MODEL, load_policy

    run("create", "demo")
    assert read().lineages == [load_policy(DEFAULT_MODEL).lineage.hex()]
    run("create", "same", "--lineage", str(DEFAULT_MODEL), "ab" * 32)
    assert read("same.toml").lineages == [*read().lineages, "ab" * 32]


def test_every_option_reaches_the_manifest():
    manifest = create(
        *("--tasks", "rg/chain_sum,strings/reverse", "--admission", "allow-list", "--operator", f"ada={PEER}"),
        *("--max-age-rounds", "2", "--max-lag", "3", "--set", "limits.shard_bits=2", "limits.temperature=[0.5, 1]"),
        *("--bootstrap", BOOTSTRAP),
    )
    assert [task.name for task in manifest.tasks] == ["rg/chain_sum", "strings/reverse"]
    assert manifest.genesis == 1_000_000
    assert manifest.round_seconds == 10
    assert manifest.lineages == []
    limits = manifest.limits
    assert (limits.max_age_rounds, limits.max_lag, limits.shard_bits) == (2, 3, 2)
    assert limits.temperature == (500_000, 1_000_000)
    assert manifest.admission.operators == {"ada": [PEER], "founder": [FOUNDER.key.hex()]}


def test_tasks_take_their_settings_from_a_file(tmp_path: Path):
    (tmp_path / "tasks.toml").write_text('["rg/chain_sum"]\nmin_terms = 3\n')
    manifest = create("--tasks", "rg/chain_sum", "--task-config", "tasks.toml")
    assert manifest.tasks[0].config == {"min_terms": 3}


def test_an_address_without_a_peer_is_the_founders_own_node():
    own = peer_id(Identity.from_seed(FOUNDER.derive("libp2p/transport/1")).key)
    assert create("--bootstrap", "/ip4/10.0.0.1/tcp/47700", BOOTSTRAP).bootstraps == [
        f"/ip4/10.0.0.1/tcp/47700/p2p/{own}",
        BOOTSTRAP,
    ]
    run("revise", "demo.toml", "--bootstrap", "/ip6/fd00::1/tcp/47700")
    assert read().bootstraps[2:] == [f"/ip6/fd00::1/tcp/47700/p2p/{own}"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--operator", "ada"], "NAME=KEY"),
        (["--bootstrap", "127.0.0.1:47700"], "multiaddr"),
        (["--genesis", "tomorrow"], "--genesis"),
        (["--set", "limits.max_lag"], "FIELD=VALUE"),
        (["--set", "limits.max_lags=4"], "max_lags"),
        (["--set", "founder=x"], "never changes"),
        (["--set", "rules.max_lag=4"], "no table 'rules'"),
        (["--set", "limits.max_lag=many"], "max_lag"),
        (["--tasks", "strings/none"], "strings/none"),
        (["--round-seconds", "0"], "round_seconds"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(options: list[str], named: str):
    with pytest.raises(UsageError, match=named):
        create(*options)
    assert not Path("demo.toml").exists()


def test_a_manifest_is_never_replaced_by_another_swarm():
    create()
    with pytest.raises(UsageError, match="exists"):
        create()
    Path("demo.toml").unlink()
    with pytest.raises(UsageError, match="founded demo with that genesis already"):
        create()


# -- show and verify --------------------------------------------------------------------------------------------------


def test_show(capsys: pytest.CaptureFixture[str]):
    manifest = create("--bootstrap", BOOTSTRAP)
    code, facts = printed(capsys, "show", "demo.toml")
    assert code == 0
    assert (facts["id"], facts["round"], facts["limits"]["max_lag"]) == (manifest.swarm_id.hex(), 100, 8)
    assert facts["limits"]["temperature"] == [0.0, 2.0]
    assert run("show", "demo.toml") == 0
    shown = capsys.readouterr().out
    assert manifest.swarm_id.hex() in shown
    assert "strings/reverse" in shown
    assert "since 1970-01-12T13:46:40Z" in shown


def test_what_a_manifest_says_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]):
    assert run("create", "a\x1b[2Jb\u202e", "--lineage", "any", "--out", "demo.toml") == 0
    assert run("show", "demo.toml") == 0
    assert run("verify", "demo.toml") == 0
    assert run("join", "demo.toml", home="member") == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_a_message_about_a_manifest_cannot_steer_the_terminal_either(capsys: pytest.CaptureFixture[str]):
    assert run("create", "a\x1b[2J", "--lineage", "any", "--out", "demo.toml") == 0
    with pytest.raises(UsageError) as caught:
        run("invite", "demo.toml", "--operator", "ada")
    assert "\x1b" not in str(caught.value)
    assert cli.fail("a\x1b[2Jb", 2) == 2
    assert "\x1b[2J" not in capsys.readouterr().err


def test_a_genesis_beyond_all_calendars_can_be_shown(capsys: pytest.CaptureFixture[str]):
    text = create().to_toml().replace("genesis = 1000000", f"genesis = {2**62}")
    Path("demo.toml").write_text(Manifest.from_toml(text).sign(FOUNDER).to_toml())
    assert run("show", "demo.toml") == 0
    assert f"{2**62} seconds after 1970" in capsys.readouterr().out
    assert findings(capsys)[0] == 1


def test_verify_finds_a_good_swarm_good(capsys: pytest.CaptureFixture[str]):
    create()
    code, found = findings(capsys)
    assert code == 0
    assert found["clock"] == (True, "round 100")
    assert found["task strings/reverse"] == (True, "weight 1")
    assert run("verify", "demo.toml") == 0
    assert "!!" not in capsys.readouterr().out


def test_verify_finds_what_stands_in_the_way(capsys: pytest.CaptureFixture[str]):
    create("--tasks", "rg/chain_sum,strings/reverse", "--admission", "allow-list", "--set", "protocol_versions=[9]")
    text = Path("demo.toml").read_text().replace("rg/chain_sum", "rg/unheard_of")
    later = Manifest.from_toml(text.replace("genesis = 1000000", "genesis = 999999999")).sign(FOUNDER)
    Path("demo.toml").write_text(later.to_toml())
    code, found = findings(capsys, home="member")
    assert code == 1
    bad = {name: detail for name, (good, detail) in found.items() if not good}
    assert set(bad) == {"protocol", "clock", "task rg/unheard_of", "admission"}
    assert "is this machine's clock right?" in bad["clock"]
    assert MEMBER.key.hex() in bad["admission"]
    assert run("verify", "demo.toml", home="member") == 1
    assert "!!  clock" in capsys.readouterr().out


def test_an_edited_manifest_is_refused_everywhere():
    create()
    Path("demo.toml").write_text(Path("demo.toml").read_text().replace("max_lag = 8", "max_lag = 80"))
    for words in (("show", "demo.toml"), ("verify", "demo.toml"), ("join", "demo.toml")):
        with pytest.raises(UsageError, match="did not sign"):
            run(*words)


# -- data sets --------------------------------------------------------------------------------------------------------


def test_a_data_set_is_pinned_by_its_hash_and_found_by_it(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (tmp_path / "sums.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    (tmp_path / "tasks.toml").write_text('["jsonl/sums"]\npath = "sums.jsonl"\n')
    (task,) = create("--tasks", "jsonl/sums", "--task-config", "tasks.toml").tasks
    assert len(task.data_sha256) == 64
    assert task.config == {}, "a path says nothing on another machine, and must not be opened there"
    assert findings(capsys)[0] == 0
    code, found = findings(capsys, home="member")
    assert code == 1
    assert task.data_sha256 in found["task jsonl/sums"][1]
    assert run("join", "demo.toml", "--data", "sums.jsonl", home="member") == 0
    assert f"{task.data_sha256} jsonl/sums" in capsys.readouterr().out
    assert findings(capsys, home="member")[0] == 0


def test_a_path_in_a_manifest_is_never_opened(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    from shoal.node.datasets import local_specs
    from shoal.protocol.manifest import TaskEntry

    (tmp_path / "private.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    where = {"path": str(tmp_path / "private.jsonl")}
    plain = create()
    for digest, named in (("", "does not pin"), ("ab" * 32, "ab" * 32)):
        task = TaskEntry(name="jsonl/x", config=where, data_sha256=digest)
        manifest = Manifest.from_toml(plain.to_toml())
        manifest.tasks[:] = [task]
        with pytest.raises(UsageError, match=named):
            local_specs(manifest, tmp_path / "data")


# -- invite -----------------------------------------------------------------------------------------------------------


def invited(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    code, issued = printed(capsys, "invite", "demo.toml", "--operator", "ada", *options)
    assert code == 0
    return issued


def test_an_invite_lets_a_member_in(capsys: pytest.CaptureFixture[str]):
    manifest = create("--admission", "invite")
    assert findings(capsys, home="member")[0] == 1
    capsys.readouterr()
    assert run("invite", "demo.toml", "--operator", "ada", "--expires-rounds", "50") == 0
    spoken = capsys.readouterr()
    (word,) = spoken.out.split()
    assert "shoal swarm revoke demo.toml" in spoken.err
    Path("token.txt").write_text(word + "\n")
    assert run("join", "demo.toml", "--invite", "token.txt", home="member") == 0
    chain = open_swarm(None, Home(Path("member"))).invite
    assert open_invite(chain, manifest, MEMBER.key, 150) == "ada"
    assert findings(capsys, home="member")[1]["admission"] == (True, "invite; this home is operator ada")


def test_how_long_an_invite_lasts(capsys: pytest.CaptureFixture[str]):
    create("--admission", "invite")
    assert invited(capsys)["expires_round"] == 100 + 30 * 8640
    assert invited(capsys, "--days", "0.5")["expires_round"] == 100 + 4320
    assert invited(capsys, "--expires-rounds", "7")["expires_round"] == 107
    for options in (["--days", "1", "--expires-rounds", "1"], ["--expires-rounds", "0"], ["--days", "-1"]):
        with pytest.raises(UsageError):
            run("invite", "demo.toml", "--operator", "ada", *options)


def test_who_may_not_invite():
    create("--admission", "invite")
    with pytest.raises(UsageError, match="only its founder"):
        run("invite", "demo.toml", "--operator", "ada", home="member")
    assert run("create", "open", "--lineage", "any") == 0
    with pytest.raises(UsageError, match="takes no invites"):
        run("invite", "open.toml", "--operator", "ada")


def test_a_wrong_invite_is_named():
    create("--admission", "invite")
    with pytest.raises(UsageError, match="neither an invite"):
        run("join", "demo.toml", "--invite", "no-such-file", home="member")


# -- revise and revoke ------------------------------------------------------------------------------------------------


def test_a_revision_is_signed_written_and_left_for_the_running_node(capsys: pytest.CaptureFixture[str]):
    first = create()
    running = open_swarm(None, Home(Path("founder")))
    running.current(99)
    options = ("--set", "limits.max_lag=4", "--add-operator", f"ada={PEER}", "--bootstrap", BOOTSTRAP)
    assert run("revise", "demo.toml", *options, "--effective-round", "+7") == 0
    later = read()
    assert (later.revision, later.effective_round, later.limits.max_lag) == (1, 107, 4)
    assert later.admission.operators == {"ada": [PEER]}
    assert later.bootstraps == [BOOTSTRAP]
    assert later.swarm_id == first.swarm_id
    assert "in force from round 107 (now 100)" in capsys.readouterr().out
    assert [running.current(round).revision for round in (100, 107)] == [0, 1]


def test_a_revision_follows_the_newest_one_even_when_the_file_is_behind():
    create()
    Path("old.toml").write_text(Path("demo.toml").read_text())
    run("revise", "demo.toml", "--set", "limits.max_lag=4")
    run("revise", "old.toml", "--set", "limits.max_age_rounds=2")
    later = read("old.toml")
    assert (later.revision, later.limits.max_lag, later.limits.max_age_rounds) == (2, 4, 2)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ([], "nothing is changed"),
        (["--set", "limits.max_lag=4", "--effective-round", "100"], "not after round 100"),
        (["--set", "limits.max_lag=4", "--effective-round", "soon"], "--effective-round"),
        (["--set", "round_seconds=4"], "never changes"),
        (["--set", "tasks=[]"], "never changes"),
        (["--set", f"lineages=['{'ab' * 32}']"], "lineage"),
        (["--set", "admission.mode=closed"], "mode"),
    ],
)
def test_what_no_revision_may_say(options: list[str], named: str):
    first = create()
    with pytest.raises(UsageError, match=named):
        run("revise", "demo.toml", *options)
    assert read() == first


def test_only_the_founder_revises():
    create()
    with pytest.raises(UsageError, match="only its founder"):
        run("revise", "demo.toml", "--set", "limits.max_lag=4", home="member")


def test_a_key_an_invite_or_an_operator_is_revoked(capsys: pytest.CaptureFixture[str]):
    create("--admission", "invite", "--operator", f"bob={PEER}")
    first, second, third = (invited(capsys) for _ in range(3))
    assert run("revoke", "demo.toml", first["key"], second["token"]) == 0
    assert read().revoked == [first["key"], second["key"]]
    assert (read().revision, read().effective_round) == (1, 102)
    assert run("revoke", "demo.toml", "ada", "bob", "--effective-round", "+1") == 0
    assert read().revoked == [first["key"], second["key"], third["key"], PEER]
    assert read().revision == 2
    assert "overtakes revision 1" in capsys.readouterr().err
    with pytest.raises(UsageError, match="no key, no invite"):
        run("revoke", "demo.toml", "carol")


def test_a_revoked_invite_lets_nobody_in_any_more(capsys: pytest.CaptureFixture[str]):
    create("--admission", "invite")
    word = invited(capsys)["token"]
    run("join", "demo.toml", "--invite", word, home="member")
    run("revoke", "demo.toml", word)
    code, found = findings(capsys, home="member")
    assert (code, found["admission"][0]) == (1, False)
    assert "invite_revoked" in found["admission"][1]
    with pytest.raises(UsageError, match="invite_revoked"):
        run("join", "demo.toml", "--invite", word, home="member")


def test_a_home_without_identity_is_told_what_to_do(capsys: pytest.CaptureFixture[str]):
    create()
    Path("empty").mkdir()
    for words in (("create", "other"), ("join", "demo.toml"), ("revise", "demo.toml", "--set", "limits.max_lag=4")):
        with pytest.raises(UsageError, match="shoal init"):
            run(*words, home="empty")
    code, found = findings(capsys, home="empty")
    assert code == 0
    assert "shoal init" in found["admission"][1]
    assert Shelf(Path("empty/swarms")).swarms() == []
