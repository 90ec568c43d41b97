"""The bridge as the daemon runs it: it reads and writes rounds beside the loop, and hands over what has been read."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from shoal.defenses.bounded import BoundedMap
from shoal.defenses.verdict import Counters
from shoal.node.bridge.holder import Entry
from shoal.node.bridge.lane import SETS_PER_PEER, Candidate, Lane, Moment, Mutes
from shoal.node.bridge.options import BridgeOptions
from shoal.node.bridge.questions import Questions, question_of
from shoal.node.bridge.rounds import RoundFinder
from shoal.node.bridge.wire import ForeignSet, SharedSet, decode_value, encode_value, unwrap
from shoal.node.compute import Compute
from shoal.node.sets import OwnSet, PeerSet
from shoal.protocol.errors import ProtocolError, TooLarge
from shoal.protocol.staleness import Clock

LONGEST_PAUSE = 30.0  # seconds between two fetches; a shorter round of this node shortens it
READS_AT_ONCE = 3
FETCH_SECONDS = 60.0
WAITING = 256  # candidates
SEEN = 8192  # values opened, by peer and round


class Network(Protocol):
    """The part of `ForeignDht` that is used here."""

    peer_id: str

    async def read(self, round: int) -> list[Entry]:
        """Return the entries of a round; an empty list when none is found. Never raises for what others do."""
        ...

    async def write(self, round: int, value: bytes) -> int:
        """Store own sets under a round, and return how many holders took them."""
        ...

    async def close(self) -> None:
        """Let go of the network."""
        ...


@dataclass(frozen=True, slots=True)
class Organs:
    """What the bridge works with."""

    network: Network
    questions: Questions
    lane: Lane
    clock: Clock
    compute: Compute
    counters: Counters


class Bridge:
    """Implements `UnsignedLane`."""

    def __init__(self, options: BridgeOptions, organs: Organs, rng: random.Random) -> None:
        self.options, self.organs, self.rng = options, organs, rng
        self.finder = RoundFinder(options.bridge_start_round, options.bridge_max_age)
        self.mutes = Mutes(organs.counters)
        self._seen: BoundedMap[tuple[str, int], bool] = BoundedMap(SEEN, partial(self._count, "evicted_seen"))
        self._opened: dict[int, int] = {}  # peers opened, by round of theirs
        self._waiting: list[Candidate] = []
        self._own: Sequence[OwnSet] = ()
        self._peers = 0

    @property
    def share(self) -> float:
        """Most that the whole lane may weigh, as a share of J."""
        return self.options.bridge_share

    async def run(self) -> None:
        """Read, and write if that is asked for, for as long as the node lives."""
        while True:
            await self.fetch()
            await asyncio.sleep(min(LONGEST_PAUSE, self.organs.clock.round_seconds))

    async def fetch(self) -> None:
        """Read the rounds around the current one of the other swarm once, and write into it."""
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                found = await self._read(self.finder.window())
        except TimeoutError:
            self._count("fetch_timeout")
            return
        own = self.organs.network.peer_id
        others = {round: [entry for entry in entries if entry.peer != own] for round, entries in found.items()}
        latest = {entry.peer: round for round, entries in sorted(others.items()) for entry in entries}
        self.finder.saw(list(latest.values()))
        self._peers = len(latest)
        now = self.organs.clock.round()
        rounds = range(max(0, now - self.options.bridge_max_age), now + 1)
        await self.organs.compute.run("screen", lambda: self.organs.questions.refresh(rounds))
        self._forget()
        for round, entries in sorted(others.items()):
            if self.finder.age(round) is None:
                self._count("other_round", len(entries))
            else:
                await self._open_some(round, entries)
        if self.options.bridge_write and self._own:
            await self._write()

    def offer(self, own: Sequence[OwnSet]) -> None:
        """Take the own sets of a pass: they are written at the next fetch, and known when they come back."""
        self._own = tuple(own)
        self.organs.lane.remember_own(own)

    async def sets(self, round: int, most: int, asked: frozenset[bytes] | None = None) -> list[PeerSet]:
        """Return sets for one pass, judged and graded now from what has been read."""
        lane = self.organs.lane
        drawn = lane.draw(self._waiting, most, self.rng)
        if not drawn:
            return []
        moment = Moment(round, self.finder.age, most, asked)
        judged = await self.organs.compute.run("screen", lambda: lane.sets(drawn, moment))
        used = {id(candidate) for candidate in judged.looked_at}
        self._waiting = [candidate for candidate in self._waiting if id(candidate) not in used]
        for peer in judged.offenders:
            self.mutes.offend(peer, round)
        return judged.sets

    def status(self) -> dict[str, Any]:
        """Return where the bridge stands: the other swarm's round as found, peers in it, sets that wait, our name."""
        return {
            "peer_id": self.organs.network.peer_id,
            "found": self.finder.found,
            "round": self.finder.current,
            "peers": self._peers,
            "waiting": len(self._waiting),
            "writes": self.options.bridge_write,
        }

    async def close(self) -> None:
        """Let go of the network and the verifier of the data set."""
        await self.organs.network.close()
        self.organs.questions.close()

    async def _read(self, rounds: Sequence[int]) -> dict[int, list[Entry]]:
        at_once = asyncio.Semaphore(READS_AT_ONCE)

        async def one(round: int) -> list[Entry]:
            async with at_once:
                return await self.organs.network.read(round)

        return dict(zip(rounds, await asyncio.gather(*map(one, rounds)), strict=True))

    async def _open_some(self, round: int, entries: Sequence[Entry]) -> None:
        """Open the values of some peers of a round, drawn uniformly: how much one of them wrote does not matter."""
        now = self.organs.clock.round()
        new = [entry for entry in entries if (entry.peer, round) not in self._seen]
        heard = [entry for entry in new if not self.mutes.muted(entry.peer, now)]
        self._count("muted_value", len(new) - len(heard))
        room = max(0, self.options.bridge_peers - self._opened.get(round, 0))
        drawn = self.rng.sample(sorted(heard), min(room, len(heard)))
        self._count("not_drawn", len(heard) - len(drawn))
        self._opened[round] = self._opened.get(round, 0) + len(drawn)
        for entry in drawn:
            self._seen.put((entry.peer, round), True)
        opened = await self.organs.compute.run("screen", lambda: [_opened(entry) for entry in drawn])
        for entry, sets in zip(drawn, opened, strict=True):
            if isinstance(sets, ProtocolError):
                self._count(sets.reason)
                self.mutes.offend(entry.peer, now)
            else:
                self._count("read")
                self._keep(entry.peer, round, sets)

    def _keep(self, peer: str, round: int, sets: Sequence[ForeignSet]) -> None:
        """Keep a few sets of one value for the lane: of those whose question is known."""
        known: list[Candidate] = []
        for foreign in sets:
            scorable = self.organs.questions.find(foreign.question)
            if scorable is not None:
                known.append(Candidate(peer, round, foreign, scorable))
        self._count("unknown_question", len(sets) - len(known))
        taken = self.rng.sample(known, min(SETS_PER_PEER, len(known)))
        self._count("beyond_sets_per_peer", len(known) - len(taken))
        self._waiting.extend(taken)
        self._count("evicted_waiting", max(0, len(self._waiting) - WAITING))
        self._waiting = self._waiting[-WAITING:]

    def _forget(self) -> None:
        """Drop what has become too old to be used."""
        fresh = [candidate for candidate in self._waiting if self.finder.age(candidate.round) is not None]
        self._count("stale", len(self._waiting) - len(fresh))
        self._waiting = fresh
        oldest = self.finder.window()[0]
        self._opened = {round: count for round, count in self._opened.items() if round >= oldest}

    async def _write(self) -> None:
        """Write own sets under the current round and the next: its peers read a round only just after they wrote.

        A node that pauses does not write the same old sets for ever.
        """
        oldest = self.organs.clock.round() - self.options.bridge_max_age
        shared = [
            SharedSet(
                question_of(own.prompt),
                own.prompt.answer or "",
                own.prompt.task,
                tuple(completion.text for completion in own.completions),
            )
            for own in self._own
            if own.round >= oldest
        ]
        if not shared:
            return
        value = self._fitting(shared)
        if value is None:
            self._count("own_too_large")
            return
        for round in (self.finder.current, self.finder.current + 1):
            taken = await self.organs.network.write(round, value)
            self._count("written" if taken else "not_written")

    def _fitting(self, shared: Sequence[SharedSet]) -> bytes | None:
        while shared:
            try:
                return encode_value(shared)
            except TooLarge:
                shared = shared[: len(shared) // 2]
        return None

    def _count(self, reason: str, count: int = 1) -> None:
        if count:
            self.organs.counters.add("bridge", reason, count)


def _opened(entry: Entry) -> list[ForeignSet] | ProtocolError:
    """Return the sets of a stored value, or what is wrong with it."""
    try:
        return decode_value(unwrap(entry.value))
    except ProtocolError as error:
        return error
