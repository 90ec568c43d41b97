"""Peers' rollouts from announcement to usable set: one gate, one pool, one screen, and a local reward."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shoal.defenses.gate import Gate
from shoal.defenses.mixing import choose
from shoal.defenses.pointer import Pointer
from shoal.defenses.screen import ScreenContext, ScreenMemory, screen
from shoal.defenses.suspicion import accounts
from shoal.defenses.verdict import Verdict
from shoal.node.appraise import Assessor, Candidate
from shoal.node.compute import Compute
from shoal.node.patience import Patience
from shoal.node.pool import Pool
from shoal.node.regrade import Regrader
from shoal.node.sets import OwnSet, PeerSet
from shoal.node.stopwatch import Stopwatch
from shoal.node.witness import NO_WITNESS, Witness
from shoal.protocol.errors import FetchFailed
from shoal.protocol.limits import MIB
from shoal.protocol.transport import Received, Transport

FETCHES_PER_SET = 4  # draws for each set wanted; after these the shortfall is accepted and counted
LEAST_FETCH_SECONDS = 5.0  # for one blob, however little time is left
MOST_HELD = 32 * MIB  # of opened rollouts that wait to be judged together; one alone may have a good deal more


@dataclass(frozen=True, slots=True)
class Screening:
    """What the screen judges by, what it remembers, and who judges rows once their reward is known."""

    context: ScreenContext
    memory: ScreenMemory
    assessor: Assessor


OVERHEARD = 16  # rollouts that an attacker reads in one pass


@dataclass(frozen=True, slots=True)
class Order:
    """What a pass asks of the pool: how many sets, of which pointers, which of them are useful, and how long to wait.

    `least` sets end the waiting for more announcements, `most` end the search; nobody waits beyond `until`, and nothing
    more is fetched from `stop` on (both loop time in seconds). In a hurry one blob gets half of the time until then: a
    peer that sends as slowly as the transport allows costs no more.
    """

    least: int
    most: int
    until: float
    stop: float
    wanted: Callable[[Pointer], bool]
    useful: Callable[[PeerSet], bool]
    hurried: bool = False


@dataclass(slots=True)
class _Search:
    """What is left of a search through the pool: draws, and how often operators came already."""

    draws: int
    drawn: Counter[str] = field(default_factory=Counter[str])
    over: bool = False


class Gatherer:
    """Finds usable sets of peers: draw a pointer, fetch its blob, screen it, regrade it; else draw again."""

    def __init__(
        self, transport: Transport, gate: Gate, screening: Screening, regrader: Regrader, compute: Compute
    ) -> None:
        self.transport = transport
        self.compute = compute
        self.gate = gate
        self.screening = screening
        self.regrader = regrader
        self.counters = gate.counters
        self.pool = Pool(self.counters)
        self.watch = Stopwatch()
        self._absent: set[bytes] = set()  # keys that did not answer in this pass: no more time is spent on them
        self._patience = Patience()
        self.witness: Witness = NO_WITNESS
        self._limit: asyncio.Timeout | None = None  # of the fetch under way
        self.round = 0

    async def intake(self) -> None:
        """Admit announcements for as long as the node lives; whatever a peer sends ends as a pointer or a count."""
        async for received in self.transport.announcements():
            self.consider(received)

    def consider(self, received: Received) -> None:
        """Pass one announcement through the gate into the pool; the gate counts what it refuses."""
        outcome = self.gate.admit(received.data, received.sender)
        if isinstance(outcome, Pointer):
            self.pool.add(outcome)

    def remember_own(self, own: OwnSet) -> None:
        """Note own completions before they are published: whoever publishes them later is the copier."""
        if self.gate.context.config.on("duplicates"):
            texts = [completion.text for completion in own.completions]
            chars = self.gate.context.config.copy_chars
            self.screening.memory.duplicates.remember_own(own.prompt_hash, texts, chars)

    def enter_round(self, round: int) -> None:
        """Admit what was held for this round, and drop what has become too old."""
        self.round = round
        for pointer in self.gate.release(round):
            self.pool.add(pointer)
        self.pool.expire(lambda pointer: self.gate.recheck(pointer).usable and not self._set_aside(pointer))

    def _set_aside(self, pointer: Pointer) -> bool:
        """Whether the pointer's operator has sent so much poison that nothing of it is looked at for a while."""
        if not self.gate.context.config.on("reputation"):
            return False
        suspicion = self.screening.assessor.memory.suspicion
        names = accounts(pointer.operator, pointer.key)
        aside = any(suspicion.refused(name, self.round) for name in names)
        if aside:
            self.counters.add("reputation", "set_aside")
        return aside

    async def usable_sets(self, order: Order, rng: random.Random) -> list[PeerSet]:
        """Return up to `order.most` usable sets of peers, after at most 4 draws for each of `order.least`.

        Operators are drawn uniformly, then their keys, then rollouts, without replacement. Claimed rewards never
        filter: a set is fetched and regraded before anything is known of its worth.
        """
        search = _Search(FETCHES_PER_SET * order.least)
        self._absent = self._patience.begin()
        found: list[PeerSet] = []
        while not search.over:
            candidates = await self._candidates(order, len(found), search, rng)
            found += [peer for peer in await self._appraise(candidates) if self._useful(peer, order)]
            search.over = search.over or len(found) >= order.most
        # Fetching took time: nothing beyond the bounds on age and lag goes on to training.
        usable = [peer for peer in found if self.gate.recheck(peer.pointer).usable]
        self.counters.add("choice", "usable", len(usable))
        self.counters.add("choice", "shortfall", max(0, order.least - len(usable)))
        return usable

    async def _candidates(self, order: Order, found: int, search: _Search, rng: random.Random) -> list[Candidate]:
        """Draw, fetch, screen and regrade until there are as many sets as are wanted beside those found, or as many
        bytes as may be held at a time."""
        candidates: list[Candidate] = []
        held = 0
        while held < MOST_HELD and found + len(candidates) < order.most and search.draws > 0 and not self.pool.closed:
            there = self.pool.where(lambda p: self._there(p) and order.wanted(p))
            pointer = next(choose(there, rng, self.fair, search.drawn), None)
            if pointer is None:
                if found + len(candidates) >= order.least or not await self._more(order.until):
                    search.over = True
                    break
                continue
            self.pool.take(pointer)
            search.drawn[pointer.operator] += 1
            search.draws -= 1
            left = order.stop - asyncio.get_running_loop().time()
            candidate = await self._open(pointer, max(LEAST_FETCH_SECONDS, left / 2) if order.hurried else None)
            if candidate is not None and self._useful(candidate.peer, order):
                candidates.append(candidate)
                held += _size(candidate)
            elif candidate is not None:
                self._witnessed(candidate)
            if asyncio.get_running_loop().time() >= order.stop:
                self.counters.add("choice", "out_of_time")
                search.over = True
                break
        search.over = search.over or search.draws <= 0 or self.pool.closed
        return candidates

    async def _appraise(self, candidates: Sequence[Candidate]) -> list[PeerSet]:
        """Let the later layers judge all of them in one pass of the model; return what is left of their sets."""

        def work() -> list[Candidate]:
            with self.watch.measure("appraise"):
                return self.screening.assessor.assess(candidates, self.round)

        judged = await self.compute.run("screen", work)
        for one in judged:
            self._witnessed(one)
        return [one.peer for one in judged]

    def _witnessed(self, opened: Candidate) -> None:
        self.witness.fetched(opened.pointer, opened.blob, opened.screened, opened.peer)

    async def eavesdrop(self, overhear: Callable[[bytes, bytes], None]) -> None:
        """Hand what peers published to an attacker, opened by nobody."""
        for pointer in self.pool.where(lambda _: True)[-OVERHEARD:]:
            self.pool.take(pointer)
            blob = await self._fetch(pointer, None)
            if blob is not None:
                overhear(pointer.announcement.encode(), blob)

    def close(self) -> None:
        """End all waiting, for announcements and for a blob: the node is about to stop."""
        self.pool.close()
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    @property
    def fair(self) -> bool:
        """Whether operators are drawn before rollouts (the mixing layer is on)."""
        return self.gate.context.config.on("mixing")

    def _there(self, pointer: Pointer) -> bool:
        return pointer.key not in self._absent

    async def _more(self, until: float) -> bool:
        left = until - asyncio.get_running_loop().time()
        return left > 0 and await self.pool.wait(left)

    def _useful(self, peer: PeerSet, order: Order) -> bool:
        useful = order.useful(peer)
        if not useful:
            self.counters.add("choice", "no_variance")
        return useful

    async def _open(self, pointer: Pointer, seconds: float | None) -> Candidate | None:
        """Fetch, screen and regrade one rollout; None, and a count, when nothing of it may be used."""
        if not self.gate.recheck(pointer).usable:
            return None
        blob = await self._fetch(pointer, seconds)
        if blob is None:
            return None

        def work() -> Candidate | Verdict:
            with self.watch.measure("screen"):
                screened = screen(pointer, blob, self.screening.context, self.screening.memory)
            if isinstance(screened, Verdict):
                return screened
            with self.watch.measure("regrade"):
                return Candidate(pointer, blob, screened, self.regrader.regrade(pointer, screened))

        opened = await self.compute.run("screen", work)
        if isinstance(opened, Verdict):
            self.witness.fetched(pointer, blob, opened, None)
            return None
        return opened

    async def _fetch(self, pointer: Pointer, seconds: float | None) -> bytes | None:
        header = pointer.announcement.header
        try:
            async with asyncio.timeout(seconds) as self._limit:
                blob = await self.transport.fetch(header.key, header.payload_hash, header.payload_length)
            self._patience.answered(header.key)
            return blob
        except FetchFailed as failure:
            reason = failure.reason
        except TimeoutError:
            reason = "timeout"
            if not self.pool.closed:
                self._patience.slow(header.key)
        finally:
            self._limit = None
        self.counters.add("fetch", reason)
        if reason in ("unreachable", "timeout"):
            self._absent.add(header.key)
        return None


def _size(candidate: Candidate) -> int:
    """Return about how many bytes an opened rollout takes: one odd character makes each of a text take four."""
    rollout = candidate.screened.rollout
    columns = sum(map(len, (*rollout.token_ids, *rollout.logps)))
    return len(candidate.blob) + columns + 4 * sum(map(len, rollout.completions))
