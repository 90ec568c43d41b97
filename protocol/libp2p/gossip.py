"""GossipSub for announcements: py-libp2p in a trio thread of its own, used from the asyncio loop.

The host listens on an ephemeral port of 127.0.0.1 only; `tunnel` carries its connections to other machines. Other users
of this machine can connect to that port too. That is harmless: Noise tells who they are, they can do only what any peer
of the swarm can do, and what they send passes the same rule within the same budget.

A dead trio thread is noticed, counted and reported; `start` begins a new life under the same identity.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import cast

from shoal.protocol.errors import EnvironmentFault
from shoal.protocol.libp2p import imports
from shoal.protocol.libp2p.gossip_life import Life

START_SECONDS = 60.0
STOP_SECONDS = 10.0
MAX_OUTBOX = 256  # messages; a node publishes a few a minute

Valid = Callable[[bytes], bool | None]


class GossipThread:
    """A GossipSub host behind an asyncio interface; every method belongs to the loop that called `start`.

    `valid` is the rule for what is forwarded: True, False (dropped, the forwarder is scored down) or None (dropped
    without blame, for what this node is too old to judge). It runs in the trio thread and must depend on its argument
    alone. `on_message(data, forwarder)`, `count(counter)` and `on_crash(reason)` are called in the loop. Peer ids are
    base58 text. A node's own messages are not delivered to it.
    """

    def __init__(
        self,
        seed: bytes,
        valid: Valid,
        on_message: Callable[[bytes, str], None],
        count: Callable[[str], None],
        on_crash: Callable[[str], None] | None = None,
    ) -> None:
        self._seed, self._valid = seed, valid
        self._on_message, self._count, self._on_crash = on_message, count, on_crash
        self._life: Life | None = None
        self._lock = asyncio.Lock()

    @property
    def alive(self) -> bool:
        """Whether the host runs; False before `start`, after `stop`, and after a crash."""
        return self._life is not None and self._life.usable

    @property
    def peer_id(self) -> str:
        """This host's peer id; empty before the first start."""
        return self._life.peer_id if self._life else ""

    @property
    def local_port(self) -> int:
        """The port on 127.0.0.1 that tunnels connect to; 0 while the host does not run."""
        return self._life.port if self._life and self._life.usable else 0

    def connected(self) -> frozenset[str]:
        """Peers whose gossip stream is open."""
        return self._life.peers if self._life else frozenset()

    async def start(self, topics: Iterable[str]) -> None:
        """Start the thread and subscribe; nothing when it runs already.

        Raises EnvironmentFault when the host does not come up within START_SECONDS.
        """
        async with self._lock:
            if self.alive:
                return
            life = self._life = Life(self._on_message, self._count, self._crashed)
            arguments = (life, self._seed, _guarded(self._valid, life.count), tuple(topics))
            life.thread = threading.Thread(target=_run, args=arguments, name="shoal-gossip", daemon=True)
            life.thread.start()
            waits = [asyncio.ensure_future(life.started.wait()), asyncio.ensure_future(life.ended.wait())]
            try:
                await asyncio.wait(waits, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            if not life.usable:
                await self._end(life)
                raise EnvironmentFault(f"gossip did not start: {life.reason or f'no answer in {START_SECONDS:.0f} s'}")

    async def stop(self) -> None:
        """Close the host and wait for its thread, at most STOP_SECONDS; a second call does nothing."""
        async with self._lock:
            if self._life is not None and not self._life.ended.is_set():
                await self._end(self._life)

    def publish(self, topic: str, data: bytes) -> bool:
        """Queue a message for the network; False when it was dropped, which is counted."""
        life = self._life
        session = life.session if life is not None and life.usable else None
        if session is None:
            self._count("gossip_publish_down")
        elif len(session.outbox) >= MAX_OUTBOX:
            self._count("gossip_publish_full")
        else:
            session.outbox.append((topic, data))
            session.call(session.wake)
            return True
        return False

    async def set_topics(self, topics: Iterable[str]) -> None:
        """Subscribe to exactly these topics from now on."""
        names = tuple(topics)
        if self._life is not None:
            await self._life.ask(lambda session: session.subscribe(names), None)

    async def dial(self, host: str, port: int, peer_id: str) -> bool:
        """Connect to a peer behind a port of this machine; True when its gossip stream is open."""
        if self._life is None:
            return False
        return await self._life.ask(lambda session: session.dial(host, port, peer_id), False)

    async def disconnect(self, peer_id: str) -> None:
        """Close the connections to a peer; one that is not connected is no error."""
        if self._life is not None:
            await self._life.ask(lambda session: session.disconnect(peer_id), None)

    async def _end(self, life: Life) -> None:
        """Stop one life; a thread that does not end in time is counted and left to the process's end."""
        life.stopping = True
        if life.session is not None:
            life.session.call(life.session.stop)
        try:
            await asyncio.wait_for(life.ended.wait(), STOP_SECONDS)
        except TimeoutError:
            self._count("gossip_stuck")
        else:
            life.thread.join(STOP_SECONDS)  # it has said goodbye: a moment

    def _crashed(self, reason: str) -> None:
        self._count("gossip_crashed")
        if self._on_crash is not None:
            self._on_crash(reason)


def _guarded(valid: Valid, count: Callable[[str], None]) -> Valid:
    """The rule, made so that it cannot raise: inside the library, that would end the service."""

    def rule(data: bytes) -> bool | None:
        try:
            return valid(data)
        except Exception:  # noqa: BLE001  whatever it is, it is this node's own fault: dropped without blame, counted
            count("gossip_rule_fault")
            return None

    return rule


def _run(life: Life, seed: bytes, rule: Valid, topics: tuple[str, ...]) -> None:
    """The gossip thread: one life of the host. The asyncio side starts the next one."""
    reason = ""
    try:
        imports.load_gossip()
        from shoal.protocol.libp2p.gossip_session import Session

        life.session = Session(seed, rule, life, topics)
        if not life.stopping:
            life.session.run()
    except Exception as fault:  # noqa: BLE001  the restart loop: whatever ended the host is told to the other side
        reason = _first_cause(fault)
    finally:
        life.handover.call(life.finish, reason)


def _first_cause(fault: BaseException) -> str:
    """The innermost first exception of nested groups, in one line."""
    while isinstance(fault, BaseExceptionGroup):
        fault = cast("tuple[BaseException, ...]", fault.exceptions)[0]
    return f"{type(fault).__name__}: {fault}"
