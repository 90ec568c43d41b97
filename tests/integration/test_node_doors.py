"""Both doors of a node, over real sockets: what they say, what they refuse, and that nothing in them hurts the node."""

import asyncio
import json
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_view import FakeView, ServedNode
from prometheus_client.parser import text_string_to_metric_families

from shoal.node.control import Control, NoNode
from shoal.node.http import HealthServer, host_allowed
from shoal.protocol.errors import EnvironmentFault, ShoalError, UsageError


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ServedNode]:
    made = ServedNode(tmp_path)
    try:
        made.open()
        yield made
    finally:
        made.close()


def test_health_is_green_and_turns_red_with_its_reason(node: ServedNode) -> None:
    status, headers, body = node.ask("/healthz")
    assert (status, body) == (200, "stepping: last step ended 10 s ago, limit 180 s\n")
    assert headers["content-type"].startswith("text/plain")
    assert headers["cache-control"] == "no-store"
    assert "aiohttp" not in headers["server"]
    node.view.state["last_step_age_seconds"] = 500.0
    assert node.ask("/healthz")[0] == 503
    assert node.ask("/healthz")[2] == "stuck in gathering: no step ended for 500 s, limit 180 s\n"
    assert node.ask("/readyz")[0] == 200
    node.view.state["network"] = {"daemon_alive": False}
    assert node.ask("/readyz")[::2] == (503, "the transport is down\n")


def test_metrics_parse(node: ServedNode) -> None:
    status, headers, body = node.ask("/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=")
    families = {family.name: family for family in text_string_to_metric_families(body)}
    assert families["shoal_steps"].type == "counter"
    assert families["shoal_round"].samples[0].value == 60


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE"])
@pytest.mark.parametrize("path", ["/healthz", "/metrics"])
def test_tcp_serves_nothing_but_get(node: ServedNode, method: str, path: str) -> None:
    assert node.ask(path, method)[0] == 405


@pytest.mark.parametrize(
    "path", ["/", "/status", "/peers", "/pause", "/resume", "/export", "/checkpoint", "/../status"]
)
def test_steering_is_not_on_tcp(node: ServedNode, path: str) -> None:
    assert node.ask(path)[0] == 404
    assert node.ask(path, "POST")[0] == 404
    assert node.view.state["paused"] is False


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:47701", 200),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:47701", 200),
        (None, 400),
        ("", 400),
        ("evil.example", 421),
        ("evil.example:47701", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("node1", 421),
    ],
)
def test_a_rebound_name_is_refused(node: ServedNode, host: str | None, status: int) -> None:
    code, _, body = node.ask("/metrics", host=host)
    assert code == status
    assert ("shoal_round" in body) is (status == 200)


@pytest.mark.parametrize(
    ("header", "bound", "good"),
    [
        ("node1:47701", "0.0.0.0", True),
        ("evil.example", "0.0.0.0", False),
        ("192.0.2.7:47701", "0.0.0.0", True),
        ("box.lan", "box.lan", True),
        ("node1", "::1", False),
        ("node1", "localhost", False),
        (":80", "0.0.0.0", False),
    ],
)
def test_names_beyond_loopback(header: str, bound: str, good: bool) -> None:
    assert host_allowed(header, bound) is good


def test_a_taken_port_names_itself_and_the_option(node: ServedNode) -> None:
    async def second() -> None:
        server = HealthServer(FakeView())
        try:
            await server.open_public("127.0.0.1", node.port)
        finally:
            await server.close()

    with pytest.raises(UsageError, match=rf"{node.port}.*--health-port"):
        asyncio.run(second())


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--health-host 192\.0\.2\.1"):
        asyncio.run(HealthServer(FakeView()).open_public("192.0.2.1", 0))


def test_the_control_socket_is_its_owners_alone(node: ServedNode) -> None:
    mode = node.socket.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert mode & 0o777 == 0o600


def test_closing_takes_the_socket_along(tmp_path: Path) -> None:
    node = ServedNode(tmp_path)
    node.open()
    node.close()
    assert not node.socket.exists()


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "control.sock"))
    node = ServedNode(tmp_path)
    with pytest.raises(NoNode):
        node.control.status()
    try:
        node.open()
        assert node.control.status()["steps_total"] == 59
    finally:
        node.close()


def test_a_file_in_the_place_of_the_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "control.sock").write_text("mine")
    node = ServedNode(tmp_path)
    try:
        with pytest.raises(EnvironmentFault, match=r"control\.sock"):
            node.open()
    finally:
        node.close()
    assert (tmp_path / "control.sock").read_text() == "mine"


def test_steering_over_the_socket(node: ServedNode) -> None:
    assert node.control.status() == json.loads(json.dumps(node.view.state))
    node.view.known = [{"key": "ee" * 32, "operator": "x\x1b\n", "connected": True}]
    assert node.control.peers() == node.view.known
    node.control.pause()
    node.control.pause()
    assert node.view.state["paused"] is True
    node.control.resume()
    assert node.view.state["paused"] is False
    assert node.control.checkpoint() == "/checkpoints/step-0000000059-000"


def test_an_export_gets_an_absolute_path_whatever_folder_it_was_asked_from(
    node: ServedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert node.control.export(Path("model")) == str(tmp_path / "model")
    assert node.view.exported == [str(tmp_path / "model")]


@pytest.mark.parametrize(
    ("failure", "kind", "says"),
    [
        (UsageError("it exists already"), UsageError, "it exists already"),
        (EnvironmentFault("no room"), EnvironmentFault, "no room"),
        (ShoalError("no"), ShoalError, "no"),
        (OSError(28, "No space left on device", "/mnt/model"), EnvironmentFault, "/mnt/model: No space left"),
        (PermissionError(13, "Permission denied", "/root/x"), EnvironmentFault, "/root/x: Permission denied"),
        (RuntimeError("a mistake of ours"), ShoalError, "HTTP 500"),
    ],
)
def test_a_failed_export_is_an_answer_and_the_node_goes_on(
    node: ServedNode, failure: Exception, kind: type[ShoalError], says: str
) -> None:
    """Field failure 38: an upload that fails must not stop the training."""
    node.view.failure = failure
    with pytest.raises(kind, match=says) as caught:
        node.control.export(Path("/somewhere"))
    assert caught.type is kind
    node.view.failure = None
    assert node.control.status()["steps_total"] == 59
    assert node.control.export(Path("/somewhere")) == "/somewhere"
    assert node.ask("/healthz")[0] == 200


def test_a_status_that_fails_is_an_answer_too(node: ServedNode) -> None:
    node.view.failure = RuntimeError("half-built")
    assert [node.ask(path)[0] for path in ("/healthz", "/readyz", "/metrics")] == [500, 500, 500]
    with pytest.raises(ShoalError, match="500"):
        node.control.status()
    node.view.failure = None
    assert node.ask("/metrics")[0] == 200


def test_two_saves_at_once_are_refused(node: ServedNode) -> None:
    began, release = threading.Event(), threading.Event()

    async def slow(folder: str) -> str:
        began.set()
        for _ in range(1000):  # bounded, so that a mistake fails instead of hanging
            if not release.is_set():
                await asyncio.sleep(0.005)
        return folder

    node.view.export = slow  # type: ignore[method-assign]
    first = threading.Thread(target=node.control.export, args=(Path("/one"),))
    first.start()
    try:
        assert began.wait(30)
        with pytest.raises(ShoalError, match="under way"):
            node.control.checkpoint()
        assert node.control.status()["steps_total"] == 59, "the rest is served meanwhile"
    finally:
        release.set()
        first.join()


@pytest.mark.parametrize(
    "body", ["", "[]", "nonsense", "{}", '{"folder": "relative"}', '{"folder": 7}', '{"folder": "/a\\u0000b"}']
)
def test_a_bad_export_request_is_refused(node: ServedNode, body: str) -> None:
    status, answer = raw_post(node.socket, "/export", body)
    assert status == 409
    assert json.loads(answer)["exit_code"] == 2
    assert node.view.exported == []


def test_a_flood_of_a_body_is_refused(node: ServedNode) -> None:
    status, _ = raw_post(node.socket, "/export", json.dumps({"folder": "/" + "x" * 200_000}))
    assert status == 413
    assert node.view.exported == []


def raw_post(path: Path, verb: str, body: str) -> tuple[int, str]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(path))
        head = f"POST {verb} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall((head + body).encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    return int(answer.split()[1]), answer.partition("\r\n\r\n")[2]


def test_a_socket_of_another_user_is_not_trusted(node: ServedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 12345)
    with pytest.raises(EnvironmentFault, match="another user"):
        node.control.status()


def test_without_a_node_the_home_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoNode, match=rf"no node runs on {tmp_path}") as caught:
        Control(tmp_path / "control.sock", tmp_path).status()
    assert caught.value.exit_code == 3
    with pytest.raises(NoNode):
        Control(tmp_path / "not" / "there", tmp_path).status()


@contextmanager
def something_else(path: Path, act: Callable[[socket.socket], None]) -> Iterator[Control]:
    """A listener that is no node."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                act(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield Control(path, path.parent)
        thread.join()


def test_a_node_that_hangs_is_told_from_one_that_is_gone(tmp_path: Path) -> None:
    asked = threading.Event()
    with something_else(tmp_path / "s", lambda _: asked.wait(30) and None):
        with pytest.raises(EnvironmentFault, match="does not answer within"):
            Control(tmp_path / "s", tmp_path, seconds=0.05).status()
        asked.set()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnull",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{",
    ],
)
def test_nonsense_is_a_clear_error(tmp_path: Path, answer: bytes) -> None:
    def act(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(answer)

    with something_else(tmp_path / "s", act) as control, pytest.raises(EnvironmentFault, match="the node on"):
        control.status()
