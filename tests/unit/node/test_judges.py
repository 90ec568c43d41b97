"""Judge models: a directory, and a server that answers well, badly, slowly, too much or not at all."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from shoal.defenses.config import DefenseConfig
from shoal.defenses.judge import Judge, JudgeUnavailable, Opinion
from shoal.defenses.verdict import Counters
from shoal.node.config import SimulateConfig
from shoal.node.config import check as check_simulation
from shoal.node.defense_options import JUDGE_KEY, DefenseOptions, check_defenses
from shoal.node.judges import REPLY_BYTES, RemoteJudge, content, local_judge, make_judge
from shoal.node.options import RunConfig
from shoal.node.options import check as check_run
from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.trainer.model import DEFAULT_MODEL

URL = "http://127.0.0.1:9/v1"
Script = Callable[[BaseHTTPRequestHandler], None]


def reply(said: Any) -> bytes:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": said}}]}).encode()


def send(handler: BaseHTTPRequestHandler, data: bytes, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


class Server:
    """A local HTTP server that does what its script says, and remembers what it was asked."""

    def __init__(self, script: Script) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.over = threading.Event()
        requests = self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                requests.append((self.path, dict(self.headers), body))
                with contextlib.suppress(ConnectionError):  # whoever asked has had enough
                    script(self)

            def log_message(self, *_: Any) -> None:
                """Keep quiet."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"


@contextlib.contextmanager
def serving(script: Script | None = None) -> Iterator[Server]:
    server = Server(script or (lambda handler: send(handler, reply("HONEST"))))
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.http.shutdown()
        thread.join()
        server.http.server_close()


def ask(script: Script, seconds: float = 20.0) -> str:
    with serving(script) as server:
        return RemoteJudge(server.url, "judge-14b", seconds=seconds)("What?")


def test_the_question_goes_to_the_chat_endpoint_and_the_answer_comes_back() -> None:
    with serving() as server:
        assert RemoteJudge(server.url + "/", "judge-14b")("What?") == "HONEST"
        assert RemoteJudge(server.url + "/chat/completions", "judge-14b", "sk-1")("What?") == "HONEST"
    (path, headers, body), (second, more, _) = server.requests
    assert path == second == "/v1/chat/completions"
    assert body == {
        "model": "judge-14b",
        "messages": [{"role": "user", "content": "What?"}],
        "temperature": 0,
        "max_tokens": 16,
    }
    assert "Authorization" not in headers
    assert more["Authorization"] == "Bearer sk-1"
    assert headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("status", [204, 400, 401, 404, 429, 500, 503])
def test_an_error_is_no_answer(status: int) -> None:
    with pytest.raises(JudgeUnavailable, match=str(status)):
        ask(lambda handler: send(handler, b"", status))


def test_a_redirect_is_not_followed_anywhere() -> None:
    with serving() as other:
        target = other.url.replace("127.0.0.1", "localhost") + "/chat/completions"
        for status in (301, 302, 307, 308):
            with serving(lambda handler, status=status: send(handler, b"", status, Location=target)) as server:
                with pytest.raises(JudgeUnavailable, match=str(status)):
                    RemoteJudge(server.url, "m", "sk-secret")("What?")
                assert len(server.requests) == 1
    assert other.requests == []


def test_a_server_that_says_nothing_costs_no_more_than_the_limit() -> None:
    with serving(lambda handler: server.over.wait(60)) as server:  # type: ignore[func-returns-value]
        with pytest.raises(JudgeUnavailable, match=r"no answer within 0\.2 s"):
            RemoteJudge(server.url, "m", seconds=0.2)("What?")
        server.over.set()


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nX-", b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n"])
def test_a_server_that_drips_costs_no_more_than_the_limit(head: bytes) -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(head)
        while not server.over.wait(0.02):
            handler.wfile.write(b"x")

    with serving(drip) as server, pytest.raises(JudgeUnavailable, match="no answer within"):
        RemoteJudge(server.url, "m", seconds=0.3)("What?")


def test_a_huge_reply_is_cut_off_and_no_answer() -> None:
    sent: list[int] = []

    def flood(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not server.over.is_set():
            handler.wfile.write(b" " * REPLY_BYTES)
            sent.append(REPLY_BYTES)

    with serving(flood) as server, pytest.raises(JudgeUnavailable, match="larger than"):
        RemoteJudge(server.url, "m")("What?")
    assert sum(sent) < 200 * REPLY_BYTES  # what the sockets hold, and no more


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HONEST",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b"[" * 9000,
        b'{"choices": []}',
        b'{"choices": [{"text": "HONEST"}]}',
        b'{"choices": {"0": 1}}',
        b'{"choices": [{"message": "HONEST"}]}',
        reply(None),
        reply(["HONEST"]),
        reply(1),
    ],
)
def test_a_reply_of_another_form_is_no_answer(data: bytes) -> None:
    with pytest.raises(JudgeUnavailable, match="the reply has no"):
        content(data)


def test_a_compressed_reply_is_not_unpacked() -> None:
    import gzip

    with pytest.raises(JudgeUnavailable):
        ask(lambda handler: send(handler, gzip.compress(reply("HONEST")), **{"Content-Encoding": "gzip"}))


def test_a_server_that_hangs_up_or_is_not_there_is_no_answer() -> None:
    def hang_up(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf")

    with pytest.raises(JudgeUnavailable):
        ask(hang_up)
    with pytest.raises(JudgeUnavailable):
        ask(lambda handler: handler.wfile.write(b"SSH-2.0-x\r\n") and None)
    with serving() as server:
        gone = server.url
    with pytest.raises(JudgeUnavailable):
        RemoteJudge(gone, "m", seconds=5.0)("What?")


def test_it_can_be_asked_where_an_event_loop_runs() -> None:
    async def inside(url: str) -> str:
        return RemoteJudge(url, "m")("What?")

    with serving() as server:
        assert asyncio.run(inside(server.url)) == "HONEST"


def test_a_failing_server_costs_a_pass_one_request_and_no_error() -> None:
    counters = Counters()
    with serving(lambda handler: send(handler, b"busy", 503)) as server:
        settings = DefenseOptions(judge=server.url, judge_model="m")
        judge = make_judge(settings, DefenseConfig(), counters)
        assert isinstance(judge, Judge)
        assert [judge.opinion("p", text, "unlikely") for text in "abc"] == [Opinion.UNSURE] * 3
        assert len(server.requests) == 1
    assert counters.state() == {"judge/unavailable": 3}


def test_the_budget_is_that_of_the_settings() -> None:
    counters = Counters()
    with serving(lambda handler: send(handler, reply("UNSURE"))) as server:
        judge = make_judge(DefenseOptions(judge=server.url, judge_model="m", judge_budget=3), DefenseConfig(), counters)
        assert judge is not None
        for text in "abcdef":
            judge.opinion("p", text, "unlikely")
        assert len(server.requests) == 3
    assert counters.get("judge/over_budget") == 6


def test_without_settings_or_with_the_layer_off_there_is_no_judge() -> None:
    config = DefenseConfig()
    assert make_judge(DefenseOptions(), config, Counters()) is None
    off = replace(config, disabled=frozenset({"judge"}))
    assert make_judge(DefenseOptions(judge="/no/such/model"), off, Counters()) is None


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"judge_budget": 0}, "--judge-budget 0"),
        ({"judge": ""}, "--judge is empty"),
        ({"judge": URL}, "--judge-model"),
        ({"judge": "/models/x", "judge_model": "m"}, "--judge-model"),
        ({"judge": "ftp://127.0.0.1/v1", "judge_model": "m"}, "http or https"),
        ({"judge": "file:///etc/passwd", "judge_model": "m"}, "http or https"),
        ({"judge": "http:///v1", "judge_model": "m"}, "http or https"),
        ({"judge": "http://127.0.0.1:99999/v1", "judge_model": "m"}, "--judge"),
        ({"judge": "http://me:secret@host/v1", "judge_model": "m"}, "without user"),
        ({"judge": "http://host/v1?key=secret", "judge_model": "m"}, "without user"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_asked(settings: dict[str, Any], says: str) -> None:
    options = DefenseOptions(**settings)
    for checked in (
        lambda: check_defenses(options),
        lambda: check_run(RunConfig(defenses=options)),
        lambda: check_simulation(SimulateConfig(defenses=options)),
    ):
        with pytest.raises(UsageError, match=says) as error:
            checked()
        assert "secret" not in str(error.value)


def test_a_key_is_not_sent_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JUDGE_KEY, "sk-1")
    for url in ("http://judge.example/v1", "http://192.0.2.1/v1"):
        with pytest.raises(UsageError, match="in the clear"):
            make_judge(DefenseOptions(judge=url, judge_model="m"), DefenseConfig(), Counters())
    for url in ("https://judge.example/v1", "http://localhost:1/v1", "http://[::1]:1/v1", URL):
        assert make_judge(DefenseOptions(judge=url, judge_model="m"), DefenseConfig(), Counters()) is not None
    monkeypatch.setenv(JUDGE_KEY, "sk-1\r\nX: y")
    with pytest.raises(UsageError, match="no spaces"):
        make_judge(DefenseOptions(judge=URL, judge_model="m"), DefenseConfig(), Counters())


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JUDGE_KEY, "sk-2")
    with serving(lambda handler: send(handler, reply("UNSURE"))) as server:
        judge = make_judge(DefenseOptions(judge=server.url, judge_model="m"), DefenseConfig(), Counters())
        assert judge is not None
        judge.opinion("p", "c", "unlikely")
    assert {headers["Authorization"] for _, headers, _ in server.requests} == {"Bearer sk-2"}


def test_a_directory_without_a_model_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"config\.json"):
        make_judge(DefenseOptions(judge=str(tmp_path)), DefenseConfig(), Counters())


def test_a_local_model_answers_greedily_and_is_loaded_once() -> None:
    judge = local_judge(DEFAULT_MODEL)
    assert judge is local_judge(DEFAULT_MODEL)
    assert isinstance(judge("reverse abc="), str)
    assert judge("reverse abc=") == judge("reverse abc=")
    assert judge("reverse abc=" * 500) == "", "longer than its context"


def test_a_question_reaches_a_local_model_without_its_special_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = local_judge(DEFAULT_MODEL)
    token = judge._policy.tokenizer.eos_token
    seen: list[str] = []
    plain = judge._engine.sample

    def sample(prompts: list[str], *rest: Any) -> Any:
        seen.extend(prompts)
        return plain(prompts, *rest)

    monkeypatch.setattr(judge._engine, "sample", sample)
    judge(f"a{token}b")
    assert token not in seen[0]


def test_a_local_model_without_memory_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = local_judge(DEFAULT_MODEL)

    def sample(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(judge._engine, "sample", sample)
    with pytest.raises(JudgeUnavailable, match="out of memory"):
        judge("reverse abc=")


def test_a_model_of_strings_is_no_judge_and_found_out() -> None:
    counters = Counters()
    judge = make_judge(DefenseOptions(judge=str(DEFAULT_MODEL)), DefenseConfig(), counters)
    assert judge is not None
    assert judge.opinion("What is 2 + 2?", "4", "unlikely") is Opinion.UNSURE
    assert counters.state() == {"judge/canary_malformed": 1, "judge/distrusted": 1}
