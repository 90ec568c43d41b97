"""Real libp2p transports on loopback for tests: how they are made, run and waited for."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import uvloop

from shoal.protocol.identity import Identity
from shoal.protocol.libp2p.settings import Libp2pSettings, RecordFacts, Rhythm
from shoal.protocol.libp2p.transport import Libp2pTransport

SWARM = bytes([7]) * 32
# Short waits, so that a test sees in seconds what takes minutes in the field.
QUICK = Rhythm(look=0.2, first_retry=0.2, last_retry=2.0, lonely=1.0, ping=2.0, sweep=1.0, probe=1.0)
GENEROUS = 45.0  # seconds: on a busy machine


def identity(number: int) -> Identity:
    return Identity.from_seed(bytes([number]) * 32)


def digest(blob: bytes) -> bytes:
    return hashlib.sha256(blob).digest()


def about() -> RecordFacts:
    return RecordFacts(bytes([1]) * 32, bytes([2]) * 32, 3, ("train",), revision=4)


def transport(
    number: int, *bootstraps: Libp2pTransport | str, swarm_id: bytes = SWARM, **fields: Any
) -> Libp2pTransport:
    """A transport that has not been started; `bootstraps` are others that have, or addresses."""
    addresses = tuple(each if isinstance(each, str) else each.addresses()[0] for each in bootstraps)
    # Without QUIC: a dial over UDP to a port where nobody listens takes five seconds. The streams' tests have QUIC.
    settings = replace(Libp2pSettings(host="127.0.0.1", quic=False, bootstraps=addresses, rhythm=QUICK), **fields)
    return Libp2pTransport(identity(number), swarm_id, settings, lambda data: True, about)


async def until(condition: Callable[[], object], seconds: float = GENEROUS) -> None:
    """Wait for a condition, and fail when it does not come true."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


async def meshed(*transports: Libp2pTransport) -> None:
    """Wait until each knows and gossips with all others."""
    others = len(transports) - 1
    await until(lambda: all(len(each.peers()) == others for each in transports))
    await until(lambda: all(each.gossip_peers == others for each in transports))


@asynccontextmanager
async def swarm(count: int, **fields: Any) -> AsyncIterator[list[Libp2pTransport]]:
    """That many started transports with the identities 1, 2, …, all connected; the first is the bootstrap."""
    started: list[Libp2pTransport] = []
    try:
        for number in range(1, count + 1):
            each = transport(number, *started[:1], **fields)
            await each.start()
            started.append(each)
        await meshed(*started)
        yield started
    finally:
        for each in started:
            await each.close()


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run a test in the loop that the daemon uses; what nobody caught fails it."""
    stray: list[dict[str, Any]] = []

    async def whole() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: stray.append(context))
        await main()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(whole())
    assert stray == []
