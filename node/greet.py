"""Meeting peers: what they announced before we came, what time it is for them, and which manifest they live by.

Gossip carries only what is new. A late joiner, or one side of a healed partition, asks each peer that comes into reach
for its latest announcements; they pass the same gate as any other.
"""

import asyncio
import random
import statistics
from collections import OrderedDict
from collections.abc import Callable

from shoal.defenses.verdict import Counters
from shoal.protocol.envelope import ANNOUNCEMENT_SIZE
from shoal.protocol.errors import FetchFailed, ProtocolError, UsageError
from shoal.protocol.limits import KIB
from shoal.protocol.manifest import Manifest
from shoal.protocol.transport import Received, Transport

LOOK_SECONDS = 2.0  # between two looks at who is there
AGAIN_SECONDS = 60.0  # a peer that comes and goes is greeted no more often
AT_ONCE = 4
A_LOOK = 16  # greeted in one look, drawn by chance: names without a peer behind them do not hold up the others for long
RECENT_BYTES = 64 * KIB
MANIFEST_BYTES = 128 * KIB
TIME_BYTES = 8
OFFSETS = 64  # peers whose clock is remembered
CLAIMS = 1024  # peers whose last claim about a manifest is remembered
MANIFEST_SECONDS = 10.0  # for one peer's manifest: they are asked one after another


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
        self._offsets: OrderedDict[bytes, float] = OrderedDict()

    @property
    def clock_offset(self) -> float | None:
        """Seconds by which peers' clocks are ahead of ours, in the median; None while none has answered."""
        return statistics.median(self._offsets.values()) if self._offsets else None

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
        came = random.sample(came, min(len(came), A_LOOK))
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
            self._note_time(key, told, (began + self.now()) / 2)
            recent = await self.transport.ask(key, "recent", RECENT_BYTES)
        except FetchFailed as failure:
            self.counters.add("greeting", failure.reason)
            return
        for start in range(0, len(recent) - len(recent) % ANNOUNCEMENT_SIZE, ANNOUNCEMENT_SIZE):
            self.consider(Received(recent[start : start + ANNOUNCEMENT_SIZE], key))
        self.counters.add("greeting", "answered")

    def _note_time(self, key: bytes, told: bytes, middle: float) -> None:
        """Keep the latest clock of each peer: one that comes and goes has one voice."""
        if len(told) == TIME_BYTES:
            self._offsets[key] = int.from_bytes(told, "big") / 1000 - middle
            self._offsets.move_to_end(key)
            while len(self._offsets) > OFFSETS:
                self._offsets.popitem(last=False)


def time_document(now: Callable[[], float]) -> Callable[[], bytes]:
    """Return what answers the question for the time: unix milliseconds, 8 bytes, big-endian."""
    return lambda: round(now() * 1000).to_bytes(TIME_BYTES, "big")


class ManifestWatch:
    """Fetches a newer revision of the manifest from whoever says that it has one; `take` keeps what follows.

    Anybody can claim any revision under any number of keys. So peers are asked one after another, those that are
    `admitted` to the swarm first, else by chance, and what they send is read outside of the event loop.
    """

    def __init__(
        self,
        transport: Transport,
        take: Callable[[Manifest], bool],
        counters: Counters,
        admitted: Callable[[bytes], bool] = lambda _: True,
    ) -> None:
        self.transport = transport
        self.take = take
        self.counters = counters
        self.admitted = admitted
        self._claims: dict[bytes, int] = {}  # that wait to be followed up
        self._asked: OrderedDict[bytes, int] = OrderedDict()
        self._news = asyncio.Event()

    def hear(self, key: bytes, revision: int, newest: int) -> None:
        """Note a peer's claim to know `revision`; each that was answered is followed up once."""
        if revision <= newest or self._asked.get(key, -1) >= revision:
            return
        if key not in self._claims and len(self._claims) >= CLAIMS:
            del self._claims[random.choice(list(self._claims))]
        self._claims[key] = revision
        self._news.set()

    async def run(self) -> None:
        """Follow up claims for as long as the node lives."""
        while True:
            await self._news.wait()
            self._news.clear()
            await self.follow_up()

    async def follow_up(self) -> None:
        """Ask those who have claimed something, until no claim is left."""
        while self._claims:
            key = random.choice([key for key in self._claims if self.admitted(key)] or list(self._claims))
            await self._ask(key, self._claims.pop(key))

    async def _ask(self, key: bytes, revision: int) -> None:
        try:
            async with asyncio.timeout(MANIFEST_SECONDS):
                data = await self.transport.ask(key, "manifest", MANIFEST_BYTES)
        except (FetchFailed, TimeoutError) as failure:  # asked again when the peer's next record comes
            self.counters.add("manifest", failure.reason if isinstance(failure, FetchFailed) else "timeout")
            return
        self._asked[key] = revision
        while len(self._asked) > CLAIMS:
            self._asked.popitem(last=False)
        try:
            later = await asyncio.to_thread(_read, data)
            taken = self.take(later)
        except (ProtocolError, UsageError, UnicodeDecodeError):
            self.counters.add("manifest", "refused")
        else:
            self.counters.add("manifest", "taken" if taken else "known")


def _read(data: bytes) -> Manifest:
    """A manifest whose signature is good; a bad one may take half a second to refuse."""
    manifest = Manifest.from_toml(data.decode("utf-8"))
    manifest.verify()
    return manifest
