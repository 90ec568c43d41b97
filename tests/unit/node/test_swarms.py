"""Where manifests come from, how a home keeps them, and how revisions and invites are taken up."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.node import sources, swarms
from shoal.node.shelf import Shelf
from shoal.node.sources import check_hops, link_of, parse_link, read_manifest
from shoal.node.swarms import Revisions, load_manifest, open_swarm, redeem, settle, standing
from shoal.protocol.errors import BadSignature, EnvironmentFault, ProtocolError, UsageError
from shoal.protocol.identity import Identity
from shoal.protocol.invite import issue_invite, open_invite, token_text
from shoal.protocol.manifest import Admission, Manifest, SwarmLimits, TaskEntry

FOUNDER = Identity.from_seed(bytes([1]) * 32)
MEMBER = Identity.from_seed(bytes([2]) * 32)
ADDRESS = "/ip4/127.0.0.1/tcp/47700/p2p/12D3KooWExample"
NOW = 1_000_000.0  # round 100 of a swarm whose genesis is 999,000


@dataclass
class Place:
    """As much of a home as is needed."""

    path: Path

    @property
    def identity(self) -> Path:
        return self.path / "identity.key"

    @property
    def swarms(self) -> Path:
        return self.path / "swarms"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(swarms.time, "time", lambda: NOW)
    place = Place(tmp_path / "home")
    place.path.mkdir()
    MEMBER.save(place.identity)
    return place


def signed(revision: int = 0, effective: int = 0, founder: Identity = FOUNDER, **fields: Any) -> Manifest:
    plain = {
        "name": "test",
        "founder": founder.key.hex(),
        "genesis": 999_000,
        "round_seconds": 10,
        "tasks": [TaskEntry(name="strings/reverse")],
        "bootstraps": [ADDRESS],
        "revision": revision,
        "effective_round": effective,
    }
    return Manifest(**(plain | fields)).sign(founder)


def write(path: Path, manifest: Manifest) -> str:
    path.write_text(manifest.to_toml(), encoding="utf-8")
    return str(path)


# -- sources ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, Callable[[BaseHTTPRequestHandler], None]]]]:
    """A web server on loopback, and its pages by path."""
    pages: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path)
            if page is None:
                self.send_error(404)
            else:
                page(self)

        def log_message(self, *arguments: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.daemon_threads = True
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_address[1]}", pages
        finally:
            running.shutdown()
            thread.join()


def text(body: bytes, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        request.wfile.write(body)

    return answer


def redirect(to: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("Location", to)
        request.end_headers()

    return answer


def endless(request: BaseHTTPRequestHandler) -> None:
    """Send until nobody listens."""
    request.send_response(200)
    request.end_headers()
    try:
        while True:
            request.wfile.write(b"# more\n" * 10_000)
    except OSError:
        return


def test_a_manifest_in_a_file(tmp_path: Path):
    assert read_manifest(write(tmp_path / "m.toml", signed())) == signed()


@pytest.mark.parametrize(
    ("content", "error", "named"),
    [
        (None, EnvironmentFault, "cannot read"),
        (b"#" * 200_000, UsageError, "128 KiB"),
        (b"\xff\xfe", UsageError, "UTF-8"),
        (b"name = 5", UsageError, "m.toml: manifest"),
        (signed().to_toml().replace("max_lag = 8", "max_lag = 9").encode(), UsageError, "did not sign"),
    ],
)
def test_what_is_no_manifest_is_named(content: bytes | None, error: type[Exception], named: str, tmp_path: Path):
    path = tmp_path / "m.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=named):
        read_manifest(str(path))


def test_a_manifest_on_the_web(server):
    url, pages = server
    pages["/m"] = text(signed().to_toml().encode())
    pages["/moved"] = redirect("/m")
    assert read_manifest(f"{url}/m") == signed()
    assert read_manifest(f"{url}/moved") == signed()


def test_what_a_web_server_may_not_do(server, tmp_path: Path):
    url, pages = server
    pages["/file"] = redirect("file://" + write(tmp_path / "m.toml", signed()))
    pages["/round"] = redirect("/round")
    pages["/endless"] = endless
    pages["/packed"] = text(b"\x1f\x8b\x08\x00", Content_Encoding="gzip")
    for path, error in (("/file", EnvironmentFault), ("/round", EnvironmentFault), ("/none", EnvironmentFault)):
        with pytest.raises(error, match="cannot fetch"):
            read_manifest(url + path)
    with pytest.raises(UsageError, match="128 KiB"):
        read_manifest(f"{url}/endless")
    with pytest.raises(UsageError, match="UTF-8"):
        read_manifest(f"{url}/packed")


def test_a_server_that_never_finishes_is_given_up(server, monkeypatch: pytest.MonkeyPatch):
    url, pages = server
    released = threading.Event()

    def silent(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        released.wait(60)

    pages["/silent"] = silent
    monkeypatch.setattr(sources, "FETCH_SECONDS", 0.2)
    try:
        with pytest.raises(EnvironmentFault, match="no answer within"):
            read_manifest(f"{url}/silent")
    finally:
        released.set()


def test_a_way_that_loses_its_encryption_is_refused():
    check_hops("https://a", ["https", "https"])
    check_hops("http://a", ["http", "https"])
    with pytest.raises(UsageError, match="without encryption"):
        check_hops("https://a", ["https", "http"])


@pytest.mark.parametrize("source", ["ftp://host/m.toml", "file:///etc/passwd", "data://x"])
def test_other_kinds_of_address_are_refused(source: str):
    with pytest.raises(UsageError, match="give a file"):
        read_manifest(source)


def test_a_link_names_a_swarm_and_where_to_ask():
    manifest = signed(bootstraps=[ADDRESS, "/dns4/example.org/tcp/1/p2p/12D3KooWOther"])
    link = link_of(manifest)
    assert str(link) == f"shoal://{manifest.swarm_id.hex()}@{ADDRESS},/dns4/example.org/tcp/1/p2p/12D3KooWOther"
    assert parse_link(str(link)) == link
    assert link_of(signed(bootstraps=[])) is None
    for wrong in ("shoal://", "shoal://ab@/ip4/1.2.3.4", f"shoal://{'0' * 64}@host:1", f"shoal://{'0' * 64}"):
        with pytest.raises(UsageError, match="no link"):
            parse_link(wrong)


def test_an_answer_of_another_swarm_is_not_the_one_of_the_link(monkeypatch: pytest.MonkeyPatch):
    asked: list[sources.Link] = []

    def answer(link: sources.Link) -> bytes:
        asked.append(link)
        return signed().to_toml().encode()

    monkeypatch.setattr(sources, "_from_peers", answer)
    link = link_of(signed())
    assert read_manifest(str(link)) == signed()
    assert asked == [link]
    with pytest.raises(UsageError, match="another swarm"):
        read_manifest(str(sources.Link(bytes(32), (ADDRESS,))))


# -- what a home keeps ------------------------------------------------------------------------------------------------


def test_a_restart_works_with_the_address_dead(server, home: Place):
    url, pages = server
    pages["/m"] = text(signed().to_toml().encode())
    source = f"{url}/m"
    assert load_manifest(source, home) == signed()
    del pages["/m"]
    assert load_manifest(source, home) == signed()
    pages["/m"] = text(b"<html>log in to this hotel's network</html>")
    assert load_manifest(source, home) == signed()
    with pytest.raises(EnvironmentFault, match="cannot fetch"):
        load_manifest(f"{url}/never-read", home)


def test_a_restart_works_with_all_peers_of_a_link_dead(home: Place, monkeypatch: pytest.MonkeyPatch):
    def dead(link: sources.Link) -> bytes:
        raise EnvironmentFault("no peer of the link gives the manifest")

    monkeypatch.setattr(sources, "_from_peers", lambda link: signed().to_toml().encode())
    load_manifest(str(link_of(signed())), home)
    monkeypatch.setattr(sources, "_from_peers", dead)
    assert load_manifest(str(link_of(signed())), home) == signed()
    with pytest.raises(EnvironmentFault):
        load_manifest(str(link_of(signed(name="unknown"))), home)


def test_an_address_that_names_another_swarm_than_before_is_refused(server, home: Place):
    url, pages = server
    pages["/m"] = text(signed().to_toml().encode())
    load_manifest(f"{url}/m", home)
    other = signed(name="other")
    pages["/m"] = text(other.to_toml().encode())
    with pytest.raises(UsageError, match="--replace"):
        load_manifest(f"{url}/m", home)
    settle(other, f"{url}/m", home)  # what --replace does
    assert load_manifest(f"{url}/m", home) == other


def test_a_file_may_name_any_swarm(tmp_path: Path, home: Place):
    load_manifest(write(tmp_path / "m.toml", signed()), home)
    other = signed(name="other")
    assert load_manifest(write(tmp_path / "m.toml", other), home) == other
    assert len(Shelf(home.swarms).swarms()) == 2


def test_a_source_behind_what_peers_told_does_not_turn_back_time(tmp_path: Path, home: Place):
    old, newer = signed(), signed(3, 50)
    load_manifest(write(tmp_path / "new.toml", newer), home)
    assert load_manifest(write(tmp_path / "old.toml", old), home) == newer


def test_a_source_that_is_ahead_waits_for_its_round(tmp_path: Path, home: Place, monkeypatch: pytest.MonkeyPatch):
    source = write(tmp_path / "m.toml", signed())
    load_manifest(source, home)
    write(tmp_path / "m.toml", signed(1, 105))
    assert load_manifest(source, home) == signed()
    monkeypatch.setattr(swarms.time, "time", lambda: NOW + 50)
    assert load_manifest(source, home) == signed(1, 105)


def test_two_manifests_under_one_number_are_named(tmp_path: Path, home: Place):
    load_manifest(write(tmp_path / "m.toml", signed(1, 5)), home)
    with pytest.raises(UsageError, match="two manifests are signed as revision 1"):
        load_manifest(write(tmp_path / "n.toml", signed(1, 5, limits=SwarmLimits(max_lag=1))), home)


def test_a_damaged_shelf_is_named(tmp_path: Path, home: Place):
    load_manifest(write(tmp_path / "m.toml", signed()), home)
    (kept,) = home.swarms.glob("*.toml")
    kept.write_text("name = ")
    with pytest.raises(EnvironmentFault, match="delete the file"):
        load_manifest(str(tmp_path / "m.toml"), home)


def test_what_is_kept_is_the_owners_alone(tmp_path: Path, home: Place):
    load_manifest(write(tmp_path / "m.toml", signed()), home)
    assert home.swarms.stat().st_mode & 0o077 == 0
    assert {path.stat().st_mode & 0o077 for path in home.swarms.iterdir()} == {0}


def test_without_a_source_it_is_the_one_swarm_that_was_joined(tmp_path: Path, home: Place):
    with pytest.raises(UsageError, match="no swarm yet"):
        open_swarm(None, home)
    load_manifest(write(tmp_path / "m.toml", signed()), home)
    assert open_swarm(None, home).current(0) == signed()
    load_manifest(write(tmp_path / "m.toml", signed(name="other")), home)
    with pytest.raises(UsageError, match="2 swarms"):
        open_swarm(None, home)


# -- revisions --------------------------------------------------------------------------------------------------------


@pytest.fixture
def revisions(home: Place) -> Revisions:
    settle(signed(), "a test", home)
    return open_swarm(None, home)


def reopened(home: Place, round: int = 0) -> Manifest:
    return open_swarm(None, home).current(round)


def test_a_revision_of_a_peer_is_served_at_once_and_in_force_from_its_round(revisions: Revisions, home: Place):
    later = signed(1, 110)
    assert revisions.offer(later.to_toml())
    assert not revisions.offer(later.to_toml())
    assert revisions.newest == 1
    assert Manifest.from_toml(revisions.document().decode()) == later
    assert [revisions.current(round).revision for round in (100, 109, 110, 111)] == [0, 0, 1, 1]
    assert reopened(home) == later


def test_a_revision_that_waits_survives_a_restart(revisions: Revisions, home: Place):
    revisions.offer(signed(1, 110).to_toml())
    assert revisions.current(100).revision == 0
    again = open_swarm(None, home)
    assert again.newest == 1
    assert [again.current(round).revision for round in (100, 110)] == [0, 1]
    assert not list(home.swarms.glob("*.r1.toml")), "what is in force does not wait any more"


def test_a_node_that_was_cut_off_takes_a_revision_whose_round_is_over(revisions: Revisions):
    revisions.offer(signed(4, 50).to_toml())
    assert revisions.current(100).revision == 4


def test_what_is_no_revision_of_this_swarm_is_refused(revisions: Revisions):
    stranger = Identity.from_seed(bytes([9]) * 32)
    forged = msgspec.structs.replace(signed(1, 110), limits=SwarmLimits(max_lag=99))
    refused: list[tuple[Manifest, type[Exception]]] = [
        (forged, BadSignature),
        (signed(1, 110, founder=stranger), UsageError),
        (signed(1, 110, name="other"), UsageError),
        (signed(1, 110, round_seconds=5), UsageError),
        (signed(1, 110, tasks=[TaskEntry(name="strings/copy")]), UsageError),
        (signed(limits=SwarmLimits(max_lag=99)), ProtocolError),
    ]
    for manifest, error in refused:
        with pytest.raises(error):
            revisions.offer(manifest.to_toml())
    with pytest.raises(UsageError):
        revisions.offer("name = ")
    assert (revisions.newest, revisions.current(200)) == (0, signed())


def test_a_running_node_finds_what_a_command_left_on_the_shelf(revisions: Revisions, home: Place):
    assert revisions.current(100).revision == 0
    Shelf(home.swarms).put(signed(1, 102))
    bad = home.swarms / f"{signed().swarm_id.hex()}.r2.toml"
    bad.write_text(signed(2, 102).to_toml().replace("max_lag = 8", "max_lag = 9"))
    assert [revisions.current(round).revision for round in (101, 102)] == [0, 1]
    assert revisions.newest == 1


def test_a_full_disk_does_not_keep_a_revision_from_coming_into_force(
    revisions: Revisions, monkeypatch: pytest.MonkeyPatch
):
    def full(*arguments: Any) -> None:
        raise EnvironmentFault("cannot write: No space left on device")

    monkeypatch.setattr(Shelf, "put", full)
    monkeypatch.setattr(Shelf, "keep", full)
    assert revisions.offer(signed(1, 110).to_toml())
    assert revisions.current(110).revision == 1


def test_rounds_are_counted_from_the_manifest(revisions: Revisions):
    assert revisions.round_at(NOW) == 100
    assert revisions.round_at(998_995.0) == -1


# -- invites ----------------------------------------------------------------------------------------------------------

INVITING = signed(admission=Admission(mode="invite"))


def token(manifest: Manifest = INVITING, founder: Identity = FOUNDER, expires: int = 200) -> str:
    return token_text(issue_invite(founder, manifest.swarm_id, "ada", expires, bytes([7]) * 32))


def test_redeeming_binds_the_homes_key_and_keeps_no_secret(home: Place):
    settle(INVITING, "a test", home)
    revisions = open_swarm(None, home, token())
    assert open_invite(revisions.invite, INVITING, Identity.load(home.identity).key, 100) == "ada"
    assert open_swarm(None, home).invite == revisions.invite
    for path in home.swarms.iterdir():
        assert bytes([7]) * 32 not in path.read_bytes()


def test_a_running_node_takes_up_an_invite(home: Place):
    settle(INVITING, "a test", home)
    revisions = open_swarm(None, home)
    assert revisions.invite == b""
    revisions.current(100)
    assert redeem(token(), INVITING, home) == "ada"
    revisions.current(101)
    assert revisions.invite


@pytest.mark.parametrize(
    ("text", "manifest", "named"),
    [
        ("shoal-invite-1-xx", INVITING, "damaged"),
        (token(), signed(name="other", admission=Admission(mode="invite")), "another swarm"),
        (token(), signed(), "takes no invites"),
        (token(founder=Identity.from_seed(bytes(32))), INVITING, "invite_not_of_the_founder"),
        (token(expires=99), INVITING, "invite_expired"),
    ],
)
def test_an_invite_that_does_not_serve_is_named(text: str, manifest: Manifest, named: str, home: Place):
    with pytest.raises(UsageError, match=named):
        redeem(text, manifest, home)
    assert Shelf(home.swarms).invite(manifest.swarm_id) == b""


@pytest.mark.parametrize(
    ("fields", "admitted", "named"),
    [
        ({}, True, "open"),
        ({"admission": Admission(mode="allow-list")}, False, "not listed"),
        ({"admission": Admission(mode="allow-list", operators={"ada": [MEMBER.key.hex()]})}, True, "operator ada"),
        ({"revoked": [MEMBER.key.hex()]}, False, "revoked this home's key"),
        ({"admission": Admission(mode="invite")}, False, "has none"),
    ],
)
def test_a_node_that_peers_will_refuse_is_told(
    fields: dict[str, Any], admitted: bool, named: str, home: Place, caplog: pytest.LogCaptureFixture
):
    manifest = signed(**fields)
    settle(manifest, "a test", home)
    assert standing(manifest, home)[0] == admitted
    assert named in standing(manifest, home)[1]
    open_swarm(None, home).current(100)
    assert ("is not admitted" in caplog.text) != admitted


def test_a_node_that_a_revision_shuts_out_is_told(revisions: Revisions, caplog: pytest.LogCaptureFixture):
    revisions.offer(signed(1, 105, revoked=[MEMBER.key.hex()]).to_toml())
    revisions.current(104)
    assert "is not admitted" not in caplog.text
    for round in (105, 106, 107):
        revisions.current(round)
    assert caplog.text.count("the founder has revoked this home's key") == 1


def test_an_invite_of_the_key_before_a_rotation_does_not_serve(home: Place):
    settle(INVITING, "a test", home)
    redeem(token(), INVITING, home)
    assert standing(INVITING, home) == (True, "invite; this home is operator ada")
    home.identity.unlink()
    Identity.from_seed(bytes([4]) * 32).save(home.identity)
    assert standing(INVITING, home) == (False, "invite; this home's does not serve: invite_not_for_this_key")


def test_invites_given_out_are_noted_in_order(home: Place):
    shelf = Shelf(home.swarms)
    assert shelf.issued(bytes(32)) == []
    for operator in ("ada", "bob"):
        shelf.note_issued(bytes(32), {"operator": operator})
    assert shelf.issued(bytes(32)) == [{"operator": "ada"}, {"operator": "bob"}]
