"""Meeting peers: what they announced before we came, what time it is for them, and which manifest they live by.

Gossip carries only what is new. A late joiner, or one side of a healed partition, asks each peer that comes into reach
for its latest announcements; they pass the same gate as any other.
"""

import asyncio
import statistics
from collections import OrderedDict, deque
from collections.abc import Callable

from shoal.defenses.verdict import Counters
from shoal.protocol.envelope import ANNOUNCEMENT_SIZE
from shoal.protocol.errors import FetchFailed, ProtocolError, UsageError
from shoal.protocol.limits import KIB
from shoal.protocol.transport import Received, Transport

LOOK_SECONDS = 2.0  # between two looks at who is there
AGAIN_SECONDS = 60.0  # a peer that comes and goes is greeted no more often
AT_ONCE = 4
RECENT_BYTES = 64 * KIB
MANIFEST_BYTES = 128 * KIB
TIME_BYTES = 8
OFFSETS = 64  # clocks remembered
ASKED = 1024  # peers whose last manifest is remembered


class Greeter:
    """Greets every peer that comes into reach, a few at a time; whatever it answers is a count or passes the gate."""

    def __init__(
        self, transport: Transport, consider: Callable[[Received], None], counters: Counters, now: Callable[[], float]
    ) -> None:
        self.transport = transport
        self.consider = consider
        self.counters = counters
        self.now = now
        self._met: dict[bytes, float] = {}  # loop time of the latest greeting, for those in reach or greeted lately
        self._here: set[bytes] = set()
        self._offsets: deque[float] = deque(maxlen=OFFSETS)

    @property
    def clock_offset(self) -> float | None:
        """Seconds by which peers' clocks are ahead of ours, in the median; None while none has answered."""
        return statistics.median(self._offsets) if self._offsets else None

    async def run(self) -> None:
        """Greet for as long as the node lives."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Greet those who came into reach since the last look."""
        here = set(self.transport.peers())
        now = asyncio.get_running_loop().time()
        came = [key for key in here - self._here if now - self._met.get(key, -AGAIN_SECONDS) >= AGAIN_SECONDS]
        self._here = here - {key for key in here - self._here if key not in came}  # too early: they wait their turn
        self._met = {key: at for key, at in self._met.items() if key in here or now - at < AGAIN_SECONDS}
        self._met |= dict.fromkeys(came, now)
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(key: bytes) -> None:
            async with gate:
                await self.greet(key)

        await asyncio.gather(*(one(key) for key in came))

    async def greet(self, key: bytes) -> None:
        """Ask one peer for its latest announcements and its time."""
        began = self.now()
        try:
            told = await self.transport.ask(key, "time", TIME_BYTES)
            middle = (began + self.now()) / 2
            recent = await self.transport.ask(key, "recent", RECENT_BYTES)
        except FetchFailed as failure:
            self.counters.add("greeting", failure.reason)
            return
        if len(told) == TIME_BYTES:
            self._offsets.append(int.from_bytes(told, "big") / 1000 - middle)
        for start in range(0, len(recent) - len(recent) % ANNOUNCEMENT_SIZE, ANNOUNCEMENT_SIZE):
            self.consider(Received(recent[start : start + ANNOUNCEMENT_SIZE], key))
        self.counters.add("greeting", "answered")


def time_document(now: Callable[[], float]) -> Callable[[], bytes]:
    """Return what answers the question for the time: unix milliseconds, 8 bytes, big-endian."""
    return lambda: round(now() * 1000).to_bytes(TIME_BYTES, "big")


class ManifestWatch:
    """Fetches a newer revision of the manifest from whoever says that it has one; `offer` checks and keeps it."""

    def __init__(self, transport: Transport, offer: Callable[[str], bool], counters: Counters) -> None:
        self.transport = transport
        self.offer = offer
        self.counters = counters
        self._asked: OrderedDict[bytes, int] = OrderedDict()

    async def hear(self, key: bytes, revision: int, newest: int) -> None:
        """Follow up a peer's claim to live by `revision`, once for each claim."""
        if revision <= newest or self._asked.get(key, -1) >= revision:
            return
        self._asked[key] = revision
        while len(self._asked) > ASKED:
            self._asked.popitem(last=False)
        try:
            text = await self.transport.ask(key, "manifest", MANIFEST_BYTES)
            taken = self.offer(text.decode("utf-8"))
        except FetchFailed as failure:
            self.counters.add("manifest", failure.reason)
        except (ProtocolError, UsageError, UnicodeDecodeError):
            self.counters.add("manifest", "refused")
        else:
            self.counters.add("manifest", "taken" if taken else "known")
