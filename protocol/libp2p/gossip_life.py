"""Between two threads: what the gossip thread hands to the asyncio loop, and how the loop asks it for something."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from shoal.protocol.libp2p.gossip_session import Session

ASK_SECONDS = 20.0
MAX_HANDOVER = 1_024  # messages on their way into the asyncio loop
BATCH = 128  # messages for one turn of the loop

T = TypeVar("T")


class Handover:
    """What crosses from the trio thread into the asyncio loop: in order, in batches, bounded."""

    def __init__(self, on_message: Callable[[bytes, str], None], count: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_message, self._count = on_message, count
        self._messages: deque[tuple[bytes, str]] = deque()
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._scheduled = False

    def deliver(self, data: bytes, forwarder: str) -> None:
        """Hand a message over, from the trio thread; when the loop is far behind, drop and count it."""
        if len(self._messages) < MAX_HANDOVER:
            self._messages.append((data, forwarder))
            self._schedule()
        else:
            self.count("gossip_handover_full")

    def count(self, name: str) -> None:
        """Count something, from the trio thread."""
        with self._lock:
            self._counts[name] += 1
        self._schedule()

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call a function in the loop, from the trio thread; nothing when the loop is gone."""
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.call(self._drain)

    def _drain(self) -> None:
        """In the loop: pass on what has come."""
        self._scheduled = False  # before reading: what comes after this line schedules the next turn
        with self._lock:
            counts, self._counts = self._counts, Counter()
        for name in counts.elements():
            self._count(name)
        try:
            for _ in range(min(len(self._messages), BATCH)):
                self._on_message(*self._messages.popleft())
        finally:
            if self._messages:
                self._schedule()


class Life:
    """One run of the trio thread, as the asyncio side sees it; to the session it is the Owner."""

    def __init__(
        self,
        on_message: Callable[[bytes, str], None],
        count: Callable[[str], None],
        crashed: Callable[[str], None],
    ) -> None:
        self.handover = Handover(on_message, count)
        self._crashed = crashed
        self.thread = threading.current_thread()  # until there is one
        self.session: Session | None = None
        self.started, self.ended = asyncio.Event(), asyncio.Event()
        self.stopping = False
        self.reason = ""  # why it ended by itself
        self.peer_id, self.port = "", 0
        self.peers: frozenset[str] = frozenset()
        self._asked: set[asyncio.Future[Any]] = set()

    @property
    def usable(self) -> bool:
        """Whether the host runs and is meant to."""
        return self.started.is_set() and not self.ended.is_set() and not self.stopping

    def deliver(self, data: bytes, forwarder: str) -> None:
        """From the trio thread: a message that passed."""
        self.handover.deliver(data, forwarder)

    def count(self, name: str) -> None:
        """From the trio thread: something that has a counter."""
        self.handover.count(name)

    def peers_are(self, peers: frozenset[str]) -> None:
        """From the trio thread: the peers whose gossip stream is open."""
        self.peers = peers

    def ready(self, peer_id: str, port: int) -> None:
        """From the trio thread: the host listens."""
        self.peer_id, self.port = peer_id, port
        self.handover.call(self.started.set)

    def finish(self, reason: str) -> None:
        """In the loop: the trio thread is at its end; nobody waits for it any longer."""
        self.peers, self.reason = frozenset(), reason
        self.ended.set()
        for future in self._asked:
            future.cancel()
        if self.started.is_set() and not self.stopping:
            self._crashed(reason)

    async def ask(self, action: Callable[[Session], Awaitable[T]], otherwise: T) -> T:
        """Run something in the trio thread; `otherwise` when the host is not there or does not answer in time."""
        session = self.session
        if session is None or not self.usable:
            return otherwise
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._asked.add(future)
        try:
            session.call(session.spawn, lambda: self._answer(action, future))
            done, _ = await asyncio.wait([future], timeout=ASK_SECONDS)
            return otherwise if not done or future.cancelled() else future.result()
        finally:
            self._asked.discard(future)

    async def _answer(self, action: Callable[[Session], Awaitable[T]], future: asyncio.Future[T]) -> None:
        """In the trio thread: act, and send the result back."""
        if self.session is not None:
            self.handover.call(_resolve, future, await action(self.session))


def _resolve(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)
