"""A node of a simulated swarm keeps a ledger; afterwards its updates are made again, and tampering shows."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded_swarm import BLOBS, LEDGER, record_swarm, with_mixing

from shoal.node.commands.replay import replay
from shoal.node.replay import Replayer
from shoal.node.replay_findings import PassReplay
from shoal.node.store.reader import LedgerReader
from shoal.protocol.envelope import Announcement
from shoal.protocol.errors import EnvironmentFault, UsageError


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("whole")
    record_swarm(home)
    return home


@pytest.fixture
def home(whole: Path, tmp_path: Path) -> Path:
    """A copy that may be tampered with."""
    return Path(shutil.copytree(whole, tmp_path / "home"))


def replay_all(home: Path, model: str | None = None) -> list[PassReplay]:
    with LedgerReader(home / LEDGER) as ledger, Replayer(ledger, home / BLOBS, model) as replayer:
        return [replayer.replay(done) for done in ledger.passes(100)]


def sql(home: Path, statement: str, *values: object) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(home / LEDGER)
    with connection:
        rows = connection.execute(statement, values).fetchall()
    connection.close()
    return rows


def differing(replay: PassReplay) -> set[str]:
    return {finding.what for _, finding in replay.differences}


def peer_row(home: Path, where: str = "used_rows > 0") -> int:
    return int(str(sql(home, f"SELECT max(id) FROM rollouts WHERE NOT own AND {where}")[0][0]))


def blob_of(home: Path, row: int) -> Path:
    [(digest,)] = sql(home, "SELECT digest FROM rollouts WHERE id = ?", row)
    assert isinstance(digest, bytes)
    [path] = (home / BLOBS).rglob(digest.hex())
    return path


def test_every_pass_is_made_again_bit_by_bit(whole: Path) -> None:
    replays = replay_all(whole)
    assert [replay.outcome for replay in replays] == ["equal"] * 4
    assert sum(replay.done.peer_sets for replay in replays) > 3, "no peer's set was mixed: the test shows nothing"
    own = [rollout for replay in replays for rollout in replay.rollouts if rollout.record.own]
    assert len(own) == 16
    assert all({"signature", "payload", "texts"} <= {one.what for one in rollout.findings.all} for rollout in own)
    names = {finding.what for replay in replays for finding in replay.findings.all}
    assert {"inputs", "advantages", "selection"} <= names
    assert not [finding for replay in replays for finding in replay.findings.having("gone")]


def test_joined_rows_are_made_again_too(tmp_path: Path) -> None:
    results = record_swarm(tmp_path, with_mixing(mix="joined", baseline="mixed"), rounds=3)
    assert any(row.source for result in results for row in result.mixed.rows), "nothing joined: the test shows nothing"
    assert {replay.outcome for replay in replay_all(tmp_path)} == {"equal"}


def test_the_cap_on_operators_is_made_again_too(tmp_path: Path) -> None:
    results = record_swarm(tmp_path, with_mixing(local=4, peer_rows="all"), rounds=2)
    assert any(weight != 1 for result in results for weight in result.report.weights), "nothing was capped"
    assert {replay.outcome for replay in replay_all(tmp_path)} == {"equal"}


def test_what_needs_the_weights_of_that_day_is_said_to_be_as_recorded(tmp_path: Path) -> None:
    record_swarm(tmp_path, with_mixing(peer_rows="likely"), rounds=3)
    replays = replay_all(tmp_path)
    assert {replay.outcome for replay in replays} == {"equal"}
    notes = [finding for replay in replays for finding in replay.findings.having("recorded")]
    assert {note.what for note in notes} == {"selection"}
    assert "weights" in notes[0].recomputed


def test_refusals_are_judged_again(tmp_path: Path) -> None:
    record_swarm(tmp_path, rounds=4, attack=("injection:0.3", "prompt-picking:0.3"))
    replays = replay_all(tmp_path)
    assert {replay.outcome for replay in replays} == {"equal"}
    refused = {
        (rollout.record.layer, finding.state)
        for replay in replays
        for rollout in replay.rollouts
        for finding in rollout.findings.all
        if finding.what == "verdict" and rollout.record.action == "reject"
    }
    assert refused == {("text", "equal"), ("provenance", "equal")}


def verdict_states(home: Path) -> set[str]:
    rollouts = [rollout for replay in replay_all(home) for rollout in replay.rollouts]
    return {finding.state for rollout in rollouts for finding in rollout.findings.all if finding.what == "verdict"}


def test_a_verdict_that_a_memory_gave_is_taken_over_and_said_to_be(home: Path) -> None:
    unused = peer_row(home, "place IS NULL")
    change = "UPDATE rollouts SET action = 'reject', layer = 'duplicates', reason = 'copied', rows = '[]' WHERE id = ?"
    sql(home, change, unused)
    assert {replay.outcome for replay in replay_all(home)} == {"equal"}
    assert verdict_states(home) == {"equal", "recorded"}


def test_rows_that_a_memory_refused_stay_refused(home: Path) -> None:
    unused = peer_row(home, "place IS NULL")
    assert verdict_states(home) == {"equal"}
    [(rows,)] = sql(home, "SELECT rows FROM rollouts WHERE id = ?", unused)
    first, rest = str(rows).split("],", 1)
    assert first.startswith('[["accept"')
    changed = f'[["reject","duplicates","copied",null,0.0],{rest}'
    sql(home, "UPDATE rollouts SET rows = ? WHERE id = ?", changed, unused)
    assert {replay.outcome for replay in replay_all(home)} == {"equal"}
    assert verdict_states(home) == {"equal", "recorded"}


def test_a_set_that_was_mixed_cannot_have_been_refused(home: Path) -> None:
    change = "UPDATE rollouts SET action = 'reject', layer = 'duplicates', reason = 'copied', rows = '[]' WHERE id = ?"
    sql(home, change, peer_row(home))
    assert "verdict" in set().union(*(differing(replay) for replay in replay_all(home)))


def a_reward(home: Path) -> None:
    [(rows,)] = sql(home, "SELECT rows FROM rollouts WHERE id = ?", peer_row(home))
    text = str(rows)
    changed = text.replace("1.0,1.0]", "0.0,1.0]", 1) if "1.0,1.0]" in text else text.replace("0.0,1.0]", "1.0,1.0]", 1)
    assert changed != text
    sql(home, "UPDATE rollouts SET rows = ? WHERE id = ?", changed, peer_row(home))


def an_own_reward(home: Path) -> None:
    sql(home, "UPDATE rollouts SET rows = replace(rows, '1.0,1.0]', '0.5,1.0]') WHERE own AND used_rows > 0")


def a_reward_that_becomes_unknown(home: Path) -> None:
    sql(home, "UPDATE rollouts SET rows = replace(rows, '1.0,1.0]', 'null,1.0]') WHERE id = ?", peer_row(home))


def a_byte_of_a_blob(home: Path) -> None:
    path = blob_of(home, peer_row(home))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def a_byte_of_the_own_samples(home: Path) -> None:
    [(digest,)] = sql(home, "SELECT samples FROM passes ORDER BY id DESC LIMIT 1")
    assert isinstance(digest, bytes)
    [path] = (home / BLOBS).rglob(digest.hex())
    path.write_bytes(path.read_bytes() + b"\0")


def an_announcement(home: Path) -> None:
    row = peer_row(home)
    [(data,)] = sql(home, "SELECT announcement FROM rollouts WHERE id = ?", row)
    assert isinstance(data, bytes)
    signature = bytearray(Announcement.decode(data).signature)
    signature[0] ^= 1
    sql(home, "UPDATE rollouts SET announcement = ? WHERE id = ?", data[: -len(signature)] + bytes(signature), row)


def no_announcement_any_more(home: Path) -> None:
    sql(home, "UPDATE rollouts SET announcement = NULL WHERE id = ?", peer_row(home))


def another_rollout_of_the_peer(home: Path) -> None:
    row = peer_row(home)
    statement = "SELECT announcement FROM rollouts WHERE NOT own AND key = (SELECT key FROM rollouts WHERE id = ?)"
    others = sql(home, f"{statement} AND id <> ?", row, row)
    sql(home, "UPDATE rollouts SET announcement = ? WHERE id = ?", others[0][0], row)


def the_lag(home: Path) -> None:
    sql(home, "UPDATE rollouts SET lag = lag + 1 WHERE id = ?", peer_row(home))


def the_place(home: Path) -> None:
    sql(home, "UPDATE rollouts SET place = 1 - place WHERE NOT own AND place IS NOT NULL")


def the_operator(home: Path) -> None:
    sql(home, "UPDATE rollouts SET operator = 'node-7' WHERE id = ?", peer_row(home))


def the_verdict(home: Path) -> None:
    change = "UPDATE rollouts SET action = 'reject', layer = 'text', reason = 'too_long' WHERE id = ?"
    sql(home, change, peer_row(home, "place IS NULL"))


def the_points(home: Path) -> None:
    sql(home, "UPDATE rollouts SET trained_rows = trained_rows + 1 WHERE id = ?", peer_row(home))


def the_temperature(home: Path) -> None:
    sql(home, """UPDATE settings SET json = replace(json, '"temperature":1.0', '"temperature":0.5')""")


def the_hash(home: Path) -> None:
    sql(home, "UPDATE passes SET inputs_hash = zeroblob(32)")


def the_advantages(home: Path) -> None:
    sql(home, "UPDATE passes SET advantages_hash = zeroblob(32)")


@pytest.mark.parametrize(
    ("tamper", "shown"),
    [
        (a_reward, "rewards"),
        (an_own_reward, "samples"),
        (a_reward_that_becomes_unknown, "inputs"),
        (a_byte_of_a_blob, "payload"),
        (a_byte_of_the_own_samples, "samples"),
        (an_announcement, "signature"),
        (no_announcement_any_more, "signature"),
        (another_rollout_of_the_peer, "header"),
        (the_lag, "inputs"),
        (the_place, "inputs"),
        (the_operator, "operator"),
        (the_verdict, "verdict"),
        (the_points, "rows"),
        (the_temperature, "inputs"),
        (the_hash, "inputs"),
        (the_advantages, "advantages"),
    ],
)
def test_tampering_shows(home: Path, tamper: Callable[[Path], None], shown: str) -> None:
    tamper(home)
    replays = replay_all(home)
    assert "differs" in {replay.outcome for replay in replays}
    assert shown in set().union(*(differing(replay) for replay in replays))


def test_an_evicted_blob_is_named_and_is_no_difference(home: Path) -> None:
    row = peer_row(home)
    path = blob_of(home, row)
    path.unlink()
    [*others, last] = replay_all(home)
    assert {replay.outcome for replay in others} == {"equal"}
    assert last.outcome == "incomplete"
    [gone] = [finding for rollout in last.rollouts for finding in rollout.findings.having("gone")]
    assert (gone.what, gone.recorded) == ("payload", path.name)


def test_a_lost_blob_of_what_was_not_mixed_leaves_the_update_whole(home: Path) -> None:
    blob_of(home, peer_row(home, "place IS NULL")).unlink()
    replays = replay_all(home)
    assert {replay.outcome for replay in replays} == {"equal"}
    assert [finding for replay in replays for r in replay.rollouts for finding in r.findings.having("gone")]


def test_a_manifest_that_the_founder_did_not_sign_is_refused(home: Path) -> None:
    sql(home, "UPDATE settings SET json = replace(json, 'round_seconds = 60', 'round_seconds = 61')")
    with pytest.raises(UsageError, match="signed"):
        replay_all(home)


def test_a_model_with_another_tokenizer_is_refused_and_one_that_moved_is_named(home: Path, tmp_path: Path) -> None:
    assert sql(home, "SELECT json ->> '$.model' FROM settings") == [("default",)]
    sql(home, """UPDATE settings SET json = json_set(json, '$.model', '/moved/away')""")
    assert sql(home, "SELECT count(*) FROM settings") == [(1,)]
    with pytest.raises(EnvironmentFault, match="/moved/away"):
        replay_all(home)
    assert {one.outcome for one in replay_all(home, "default")} == {"equal"}
    sql(home, """UPDATE settings SET json = json_set(json, '$.tokenizer', 'another')""")
    with pytest.raises(UsageError, match="tokenizer"):
        replay_all(home, "default")


def test_the_command_tells_people_and_programs_the_same(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(last=2, home=home) == 0
    shown = capsys.readouterr().out
    assert "pass 3: equal" in shown
    assert "pass 4: equal" in shown
    assert "not recomputed: copies, reputation" in shown
    assert replay(3, home=home, json=True) == 0
    [plain] = json.loads(capsys.readouterr().out)
    assert (plain["pass"], plain["outcome"]) == (3, "equal")
    assert {finding["what"] for finding in plain["findings"]} >= {"inputs", "advantages"}


def test_the_command_says_what_differs_and_what_is_evicted(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = blob_of(home, peer_row(home))
    data = path.read_bytes()
    path.unlink()
    assert replay(home=home) == EnvironmentFault.exit_code
    shown = capsys.readouterr().out
    assert f"payload {path.name}" in shown.replace("\n", "")
    assert "blobs are evicted" in shown
    path.write_bytes(data)
    a_reward(home)
    assert replay(home=home) == 1
    assert "differs: rollout" in capsys.readouterr().out
    assert replay(1, home=home) == 0


def test_the_command_names_the_passes_that_there_are(home: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it holds 1 to 4"):
        replay(9, home=home)
    with pytest.raises(UsageError, match="--last 0"):
        replay(last=0, home=home)
    with pytest.raises(EnvironmentFault, match="no ledger"):
        replay(home=tmp_path / "nowhere")
    sql(home, "DELETE FROM passes")
    with pytest.raises(EnvironmentFault, match="no pass yet"):
        replay(home=home)


def test_what_peers_wrote_is_shown_without_its_control_characters(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sql(home, "UPDATE rollouts SET operator = ? WHERE id = ?", "\x1b[2Jgone", peer_row(home))
    assert replay(home=home) == 1
    shown = capsys.readouterr().out
    assert "\x1b[2J" not in shown
    assert "gone" in shown
