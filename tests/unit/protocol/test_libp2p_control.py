"""The client of p2pd before what is no answer: it fails as before a p2pd that is gone, and nothing else is raised."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from shoal.protocol.libp2p import control
from shoal.protocol.libp2p.control import Control, framed

NO_MESSAGE = framed(b"\xff" * 20)
TOO_LONG = b"\xff\xff\xff\xff\x0f"


async def _asked(path: Path, answer: bytes, ask: Callable[[Control], Awaitable[Any]]) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        writer.close()

    async with await asyncio.start_unix_server(serve, str(path)):
        await ask(Control(str(path), "", lambda _: None, 10.0))


@pytest.mark.parametrize("answer", [NO_MESSAGE, TOO_LONG], ids=["no message", "too long"])
@pytest.mark.parametrize("ask", [Control.identify, Control.peers], ids=["identify", "peers"])
def test_what_is_no_answer_is_a_broken_connection(
    tmp_path: Path, answer: bytes, ask: Callable[[Control], Awaitable[Any]]
) -> None:
    with pytest.raises(ConnectionAbortedError, match="no message"):
        asyncio.run(_asked(tmp_path / "p2pd", answer, ask))


class _Writer:
    transport = None

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        """Nothing is left to end."""


@pytest.mark.parametrize("head", [NO_MESSAGE, TOO_LONG, b"", framed(b"")], ids=["none", "long", "end", "empty"])
def test_a_stream_whose_head_is_no_message_is_counted_and_closed(monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    counted: list[str] = []
    writer: Any = _Writer()
    writer.transport = writer

    async def work() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(head)
        reader.feed_eof()
        await Control("", "", counted.append, 10.0)._accept(reader, cast(asyncio.StreamWriter, writer))

    monkeypatch.setattr(control, "LINGER_SECONDS", 0.0)
    asyncio.run(work())
    assert counted == ["streams_refused" if head == framed(b"") else "streams_broken"]
    assert writer.closed
