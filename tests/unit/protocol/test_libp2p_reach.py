"""Failures 6: behind NAT and does not know. Real sockets on loopback; the streams between the two are socket pairs."""

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable

import pytest

from shoal.protocol.errors import FetchFailed
from shoal.protocol.libp2p.control import Remote, Stream
from shoal.protocol.libp2p.reach import EACH_BURST, Reach, ReachServer

PEER = "12D3KooWAU47E7LU6riVFVTdpyme9YQJJXJcjKWqny9PBHYKNvd4"
HOME = "/ip4/127.0.0.1/tcp/5000"


class Net:
    """Peers that try to reach this node; each sees it under `seen`."""

    def __init__(self, seen: str = HOME) -> None:
        self.counts: Counter[str] = Counter()
        self.server = ReachServer(lambda reason: self.counts.update([reason]))
        self.seen = seen
        self.tasks: list[asyncio.Future[None]] = []
        self.reach = Reach(self.open)

    async def open(self, peer: str, protocol: str) -> Stream:
        assert protocol == "/shoal/reach/1"
        if peer == "gone":
            raise FetchFailed("unreachable")
        left, right = socket.socketpair()
        near, far = await asyncio.open_connection(sock=left), await asyncio.open_connection(sock=right)
        if peer == "liar":
            far[1].write(b"\x01\x09<script>1" + b"\xff" * 300)
        elif peer == "mute":
            far[1].close()
        else:
            self.tasks.append(asyncio.ensure_future(self.server.serve(Remote(peer, self.seen), *far)))
        return near


def run(main: Awaitable[None]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(30):
            await main

    asyncio.run(whole())


@pytest.fixture
def open_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def test_reached_by_peers(open_port: int):
    async def main() -> None:
        net = Net()
        await net.reach.check(["a", "b"], open_port)
        found = net.reach.verdict([HOME], open_port)
        assert found.verdict == "public"
        assert found.seen_as == (f"/ip4/127.0.0.1/tcp/{open_port}",)
        assert str(open_port) in found.advice
        assert net.counts == {"reach_tried": 2}

    run(main())


def test_not_reached_means_advice(closed_port: int):
    async def main() -> None:
        net = Net()
        assert net.reach.verdict([HOME], closed_port).verdict == "unknown"
        await net.reach.check(["a"], closed_port)
        found = net.reach.verdict([HOME], closed_port)
        assert found.verdict == "private"
        assert f"port {closed_port}" in found.advice
        assert "forward it from the router" in found.advice
        relayed = net.reach.verdict([HOME, f"/ip4/203.0.113.5/tcp/4001/p2p/{PEER}/p2p-circuit"], closed_port)
        assert relayed.verdict == "relayed"
        assert "relay" in relayed.advice

    run(main())


def test_the_majority_of_the_latest_answers_counts(open_port: int, closed_port: int):
    async def main() -> None:
        net = Net()
        await net.reach.check(["a", "b"], closed_port)
        await net.reach.check(["c"], open_port)
        assert net.reach.verdict([HOME], open_port).verdict == "private"
        await net.reach.check(["a"], open_port)
        assert net.reach.verdict([HOME], open_port).verdict == "public"

    run(main())


def test_peers_that_lie_or_do_not_answer_change_little(closed_port: int):
    async def main() -> None:
        net = Net()
        await net.reach.check(["gone", "mute", "liar"], closed_port)
        assert net.reach.verdict([], closed_port).seen_as == ()  # text that is no address is not shown
        await net.reach.check(["a", "b"], closed_port)
        assert net.reach.verdict([HOME], closed_port).verdict == "private"

    run(main())


@pytest.mark.parametrize("seen", ["", f"/ip4/203.0.113.5/tcp/1/p2p/{PEER}/p2p-circuit", "/dns4/localhost/tcp/5000"])
def test_nobody_is_dialled_but_the_asker_itself(seen: str, open_port: int):
    async def main() -> None:
        net = Net(seen)
        await net.reach.check(["a"], open_port)
        assert net.counts == {"reach_not_tried": 1}
        assert net.reach.verdict([HOME], open_port).verdict == "unknown"

    run(main())


def test_dialling_back_is_rare(open_port: int):
    async def main() -> None:
        net = Net()
        for _ in range(6):
            await net.reach.check(["a"], open_port)
        assert net.counts == {"reach_tried": EACH_BURST, "reach_too_often": 6 - EACH_BURST}
        for number in range(20):
            await net.reach.check([f"peer {number}"], open_port)
        assert net.counts["reach_tried"] == 10

    run(main())
