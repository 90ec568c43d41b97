"""A node behind NAT learns of it: peers try to reach it, and the verdict comes with advice."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from shoal.protocol.errors import FetchFailed
from shoal.protocol.libp2p.control import Remote, Stream
from shoal.protocol.libp2p.reach import NOT_REACHED, REACHED, Reach, ReachServer

HERE = "/ip4/127.0.0.1/tcp/4001"
RELAYED = "/ip4/10.0.0.1/tcp/4001/p2p/12D3KooWBaoNaYPm8FW5wxvGNSoKvyhSkbFnJFEtYoNQbnGcHo3c/p2p-circuit"


async def answering(remote: Remote, server: ReachServer, work: Callable[[int], Awaitable[None]]) -> None:
    """Run a server's end on a loopback port, as if `remote` had opened each stream, and do something meanwhile."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await server.serve(remote, reader, writer)
        finally:
            writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        await work(listener.sockets[0].getsockname()[1])
    finally:
        listener.close()


def asked(remote: Remote, port_of: Callable[[int], int], peers: list[str], repeat: int = 1) -> tuple[Reach, Counter]:
    """What a node learns that asks `peers`, all of which see it as `remote`; `port_of` is given an open port."""
    counts: Counter[str] = Counter()
    found: list[Reach] = []

    async def main() -> None:
        async def work(port: int) -> None:
            async def open_stream(peer: str, protocol: str) -> Stream:
                if peer == "gone":
                    raise FetchFailed("unreachable")
                return await asyncio.open_connection("127.0.0.1", port)

            reach = Reach(open_stream)
            found.append(reach)
            for _ in range(repeat):
                await reach.check(peers, port_of(port))

        await answering(remote, ReachServer(lambda reason: counts.update([reason])), work)

    asyncio.run(main())
    return found[0], counts


def closed_port(_: int) -> int:
    return 1  # nobody listens on it, and no test may


def test_who_is_reached_is_public() -> None:
    reach, counts = asked(Remote("me", HERE), lambda port: port, ["a"])
    verdict = reach.verdict([HERE], 47700)
    assert verdict.verdict == "public"
    assert "directly, on port 47700" in verdict.advice
    assert counts["reach_tried"] == 1


def test_who_is_not_reached_is_private_and_told_what_to_forward() -> None:
    reach, _ = asked(Remote("me", HERE), closed_port, ["a"])
    verdict = reach.verdict([HERE], 47700)
    assert verdict.verdict == "private"
    for word in ("47700", "TCP and UDP", "forward", "--announce"):
        assert word in verdict.advice
    assert verdict.seen_as == ("/ip4/127.0.0.1/tcp/1",), "the address under which others see it"


def test_a_relay_that_helps_is_named_as_such() -> None:
    reach, _ = asked(Remote("me", HERE), closed_port, ["a"])
    verdict = reach.verdict([HERE, RELAYED], 47700)
    assert verdict.verdict == "relayed"
    assert "forward port 47700" in verdict.advice


@pytest.mark.parametrize("peers", [[], ["gone"]])
def test_without_an_answer_nothing_is_claimed(peers: list[str]) -> None:
    reach, _ = asked(Remote("me", HERE), closed_port, peers)
    assert reach.verdict([HERE], 47700).verdict == "unknown"


def test_one_liar_decides_nothing() -> None:
    outcomes = {"a": NOT_REACHED, "b": REACHED, "c": REACHED}

    async def main() -> None:
        async def open_stream(peer: str, protocol: str) -> Stream:
            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(bytes([outcomes[peer], 0]))
                writer.close()

            server = await asyncio.start_server(answer, "127.0.0.1", 0)
            stream = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
            server.close()
            return stream

        reach = Reach(open_stream)
        await reach.check(list(outcomes), 47700)
        assert reach.verdict([HERE], 47700).verdict == "public"
        outcomes["b"] = NOT_REACHED
        await reach.check(list(outcomes), 47700)
        assert reach.verdict([HERE], 47700).verdict == "private"

    asyncio.run(main())


@pytest.mark.parametrize("address", [RELAYED, "/dns4/victim.example/tcp/80", "nonsense"])
def test_nobody_is_aimed_at_a_third_party(address: str) -> None:
    """Only the address from which the asker is seen is tried, never a relay's and never a name."""
    reach, counts = asked(Remote("me", address), lambda port: port, ["a"])
    assert reach.verdict([HERE], 47700).verdict == "unknown"
    assert counts == {"reach_not_tried": 1}


def test_asking_again_and_again_makes_nobody_dial_again_and_again() -> None:
    reach, counts = asked(Remote("me", HERE), closed_port, ["a"], repeat=5)
    assert counts == {"reach_tried": 2, "reach_too_often": 3}
    assert reach.verdict([HERE], 47700).verdict == "private", "a refusal to try says nothing"
