"""Calls to nodes of the other swarm's DHT, through a p2pd of the bridge's own that listens on nothing.

hivemind's unary call is one framed message each way on a stream of its own. Spoken here directly, a reply is read under
a cap, by itself, and a call that is given up closes its stream.
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from shoal.protocol.errors import FetchFailed
from shoal.protocol.libp2p.addresses import split
from shoal.protocol.libp2p.control import Control, framed, read_frame
from shoal.protocol.libp2p.imports import hivemind, p2pd_messages
from shoal.protocol.libp2p.keys import peer_bytes
from shoal.protocol.libp2p.p2pd import Daemon

START_SECONDS = 60.0
CONNECT_SECONDS = 5.0
CALL_SECONDS = 5.0
REQUEST_SECONDS = 10.0  # for p2pd itself
AGAIN_SECONDS = 20.0  # between two tries at bootstraps that are out of reach
# No listening, no DHT service for others, no port mapping; relays only to reach peers behind them. Without the last
# flag p2pd ends after a minute in which nobody used hivemind's own kind of connection to it.
FLAGS = (
    "-noListenAddrs=1",
    "-dhtClient=1",
    "-relay=1",
    "-connManager=0",
    "-natPortMap=0",
    "-autonat=0",
    "-idleTimeout=0s",
)


class Caller:
    """One p2pd after another: it is started when needed, and anew when it has ended or does not answer."""

    def __init__(self, seed: bytes, bootstraps: tuple[str, ...], count: Callable[[str], None]) -> None:
        """`seed` are 32 bytes derived for the bridge alone. Raises UsageError for what is no address of a peer."""
        self.bootstraps = {peer: where for where, peer in map(split, bootstraps)}
        self._seed, self._count = seed, count
        self._daemon: Daemon | None = None
        self._control: Control | None = None
        self._lock = asyncio.Lock()
        self._tried = -AGAIN_SECONDS

    @property
    def pid(self) -> int:
        """The process id of p2pd; 0 while there is none."""
        return self._daemon.pid if self._daemon else 0

    async def ready(self) -> None:
        """Make sure that p2pd runs and knows the bootstraps as far as they live. Raises EnvironmentFault."""
        async with self._lock:
            if self._control is not None and not await self._answers(self._control):
                self._count("daemon_restart")
                await self.close()
            control = self._control or await self._start()
            now = asyncio.get_running_loop().time()
            if now - self._tried >= AGAIN_SECONDS:
                self._tried = now
                await asyncio.gather(*(self._connect(control, *item) for item in self.bootstraps.items()))

    async def call(self, peer: str, method: str, request: Any, reply: Any) -> Any:
        """Call one node and return `reply` filled in; None, and a count, when nothing usable comes back."""
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await self._exchange(peer, method, request, reply)
        except (OSError, EOFError, ValueError, DecodeError, FetchFailed):  # TimeoutError is an OSError
            self._count("no_answer")
            return None

    async def close(self) -> None:
        """End p2pd; a second call does nothing."""
        daemon, self._daemon, self._control = self._daemon, None, None
        if daemon is not None:
            await daemon.stop()

    async def _start(self) -> Control:
        await asyncio.to_thread(hivemind)  # its messages; the first import takes seconds
        daemon = Daemon(self._seed, FLAGS)
        await daemon.start(START_SECONDS)
        self._daemon, self._tried = daemon, -AGAIN_SECONDS
        self._control = Control(daemon.control_path, "", self._count, REQUEST_SECONDS)
        return self._control

    async def _answers(self, control: Control) -> bool:
        try:
            await control.identify()
        except (OSError, EOFError, ValueError, DecodeError, FetchFailed):
            return False
        return True

    async def _connect(self, control: Control, peer: str, where: str) -> None:
        try:
            await control.connect(peer, [where], CONNECT_SECONDS)
        except (OSError, EOFError, ValueError, DecodeError, FetchFailed):
            self._count("bootstrap_unreachable")

    async def _exchange(self, peer: str, method: str, request: Any, reply: Any) -> Any:
        if self._control is None:
            raise EOFError("p2pd was ended")
        protocol, messages = f"DHTProtocol.{method}", p2pd_messages()
        call = messages.CallUnaryRequest(peer=peer_bytes(peer), proto=protocol, data=request.SerializeToString())
        message = messages.PersistentConnectionRequest(callId=secrets.token_bytes(16), callUnary=call)
        reader, writer = await self._control.open(peer, protocol, CALL_SECONDS)
        try:
            writer.write(framed(message.SerializeToString()))
            await writer.drain()
            answer = messages.PersistentConnectionRequest()
            answer.ParseFromString(await read_frame(reader))
        finally:
            writer.transport.abort()
        if not answer.HasField("unaryResponse") or not answer.unaryResponse.HasField("response"):
            raise EOFError("the node refused")
        reply.ParseFromString(answer.unaryResponse.response)
        return reply
