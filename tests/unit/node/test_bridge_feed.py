"""The bridge beside a real node: whatever that client's peers write, the node goes on, and each thing is counted."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from bridge_pieces import RoundsInMemory, entry, malformed_values, packed, peer, value_of
from live_node import MIXING, ROUND_SECONDS, live_node
from node_pieces import identity, own_set

from shoal.node.bridge.feed import Bridge, Organs
from shoal.node.bridge.holder import Entry
from shoal.node.bridge.lane import MUTE_AFTER, Lane
from shoal.node.bridge.options import BridgeOptions
from shoal.node.bridge.questions import Questions
from shoal.node.bridge.wire import batch_id, decode_value
from shoal.node.compute import InlineCompute
from shoal.node.events import RoundResult
from shoal.node.loop import Node
from shoal.node.replay import Replayer
from shoal.node.sets import OwnSet
from shoal.node.stopwatch import Stopwatch
from shoal.node.store.blobs import BlobStore
from shoal.node.store.ledger import Store
from shoal.node.store.reader import LedgerReader
from shoal.node.store.recorder import Recorder
from shoal.node.witness import PassNotes
from shoal.protocol.memory import MemoryNetwork
from shoal.protocol.prompts import SHARED
from shoal.protocol.virtual import VirtualTimeLoop
from shoal.trainer.model import DEFAULT_MODEL
from shoal.trainer.tasks.base import Prompt

G = MIXING.group_size


class Place:
    """A node on a virtual clock with a bridge to rounds in memory."""

    def __init__(self, options: BridgeOptions) -> None:
        now = asyncio.get_running_loop().time
        self.results: list[RoundResult] = []
        compute = InlineCompute(ROUND_SECONDS, 0.1, random.Random(0))
        self.node: Node = live_node(1, MemoryNetwork().join(identity(1).key), now, self.results.append, compute)
        organs, self.network = self.node.organs, RoundsInMemory()
        counters = organs.gatherer.counters
        parts = Organs(
            self.network,
            Questions(organs.prompts, organs.grader, identity(1).key, 2),
            Lane(MIXING, options.bridge_share, ("<|end|>",), counters),
            organs.clock,
            organs.compute,
            counters,
        )
        self.bridge = self.node.lane = Bridge(options, parts, random.Random(0))

    def prompt(self, slot: int = 0) -> Prompt:
        """A shared prompt of the current round of the node's swarm."""
        return self.node.organs.prompts.at(self.node.organs.clock.round(), SHARED, slot)[1]

    def honest(self, number: int, slot: int = 0) -> Entry:
        right = str(self.prompt(slot).answer)
        return entry(number, value_of({self.prompt(slot).text: [right, *["wrong"] * (G - 1)]}))

    def sampled(self, rewards: list[float]) -> None:
        """Let the node's own sampling bring forth sets with these rewards from now on."""

        async def sample(round: int, watch: Stopwatch) -> list[OwnSet]:
            policy = self.node.organs.trainer.policy
            return [own_set(policy, self.prompt(slot), ["a", "b", "c", "d"], rewards) for slot in (1, 2)]

        self.node.sample = sample  # type: ignore[method-assign]

    async def one_pass(self) -> RoundResult:
        await self.node.one_pass(self.node.organs.clock.round())
        return self.results[-1]

    def counts(self) -> dict[str, int]:
        state = self.node.organs.gatherer.counters.state()
        return {name.removeprefix("bridge/"): count for name, count in state.items() if name.startswith("bridge/")}


def live(work: Callable[[Place], Awaitable[Any]], **options: Any) -> Any:
    async def main() -> Any:
        settings = {"bridge_read": True, "bridge_share": 0.5, **options}
        return await work(Place(BridgeOptions(**settings)))

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main())


def test_a_set_of_the_other_client_is_trained_on_with_the_own_reward() -> None:
    async def work(place: Place) -> None:
        place.sampled([1.0, 0.0, 0.0, 0.0])
        place.network.put(3, [place.honest(1)])
        await place.bridge.fetch()
        result = await place.one_pass()
        assert place.bridge.status()["round"] == 3
        [taken] = result.peers
        assert [completion.reward for completion in taken.completions] == [1.0, 0.0, 0.0, 0.0]
        rows = [row for row in result.mixed.rows if row.operator == "bridge"]
        assert len(rows) == G
        assert {(row.age, row.lag) for row in rows} == {(0, 0)}
        assert result.report.counts["trained_peer_rows"] == 1, "only positive rows of peers train"
        report = result.report
        rows = zip(report.advantages, report.weights, report.trained, result.mixed.rows, strict=True)
        masses = [(abs(advantage) * weight * trains, row.own) for advantage, weight, trains, row in rows]
        own, lane = (sum(mass for mass, is_own in masses if is_own == which) for which in (True, False))
        assert 0.0 < lane <= 0.125 * own * MIXING.external / MIXING.local

    live(work, bridge_share=0.125)


def test_an_update_that_has_nothing_else_is_not_made_of_unsigned_rows() -> None:
    async def work(place: Place) -> None:
        place.sampled([0.0] * 4)
        place.network.put(3, [place.honest(1)])
        await place.bridge.fetch()
        result = await place.one_pass()
        assert len(result.peers) == 1
        assert not result.report.signal

    live(work)


def test_a_value_is_used_once() -> None:
    async def work(place: Place) -> None:
        place.network.put(0, [place.honest(1)])
        for expected in (1, 0):
            await place.bridge.fetch()
            assert len((await place.one_pass()).peers) == expected
        assert place.counts()["read"] == 1

    live(work)


def test_each_malformed_value_is_a_count_and_the_node_goes_on() -> None:
    async def work(place: Place) -> None:
        for round, name in enumerate(malformed_values("", G)):
            value, reason = malformed_values(place.prompt().text, G)[name]
            place.network.rounds = {round: [Entry(peer(100 + round), packed(value), 4e9), place.honest(round)]}
            before = place.counts()
            await place.bridge.fetch()
            result = await place.one_pass()
            news = {key: count - before.get(key, 0) for key, count in place.counts().items()}
            assert (news[reason], news["read"], news["used"]) == (1, 1, 1), name
            assert len(result.peers) == 1, "the honest neighbour's set is used"
            assert result.mixed.peer_sets == 1, name
        assert len(place.results) == len(malformed_values("", G))

    live(work)


def test_groups_of_other_sizes_are_counted_and_the_node_goes_on() -> None:
    async def work(place: Place) -> None:
        sizes = (1, G - 1, G + 1, 64)
        place.network.put(0, [entry(n, value_of({place.prompt().text: ["a"] * n})) for n in sizes])
        await place.bridge.fetch()
        result = await place.one_pass()
        assert result.peers == []
        assert place.counts()["other_group_size"] == len(sizes)

    live(work)


def test_offences_mute_a_peer_id_and_touch_no_signed_reputation() -> None:
    async def work(place: Place) -> None:
        gate = place.node.organs.gatherer.gate
        before = gate.reputation.state()
        bad = malformed_values(place.prompt().text, G)["bad batch id"][0]
        for round in range(MUTE_AFTER):
            place.network.put(round, [entry(5, bad), entry(6, packed({}))])
            await place.bridge.fetch()
        place.network.put(MUTE_AFTER, [entry(5, value_of({})), entry(6, packed({}))])
        await place.bridge.fetch()
        assert place.counts()["batch_id"] == MUTE_AFTER
        assert place.counts()["muted"] == 1
        assert place.counts()["muted_value"] == 1
        assert gate.reputation.state() == before

    live(work)


def test_peers_are_drawn_uniformly_and_so_many_at_most() -> None:
    async def work(place: Place) -> None:
        place.network.put(0, [place.honest(number) for number in range(51)])
        await place.bridge.fetch()
        await place.bridge.fetch()
        assert place.counts()["read"] == 16
        assert place.bridge.status()["waiting"] == 16

    live(work)


def test_one_peer_with_many_sets_leaves_room_for_the_others() -> None:
    async def work(place: Place) -> None:
        loud = {place.prompt(slot).text: ["a", "b", "c", "d"] for slot in range(60)}
        place.network.put(0, [entry(0, value_of(loud)), *(place.honest(number) for number in range(1, 11))])
        await place.bridge.fetch()
        counts = place.counts()
        assert counts["read"] == 11
        assert place.bridge.status()["waiting"] == 10 + 4
        assert counts["beyond_sets_per_peer"] > 40

    live(work)


def test_values_stored_beforehand_under_coming_rounds_do_not_stand_in_the_way() -> None:
    async def work(place: Place) -> None:
        for round in range(8):
            place.network.put(round, [entry(9, b"\xc1")])
        for round in range(3):
            place.network.put(round, [place.honest(1, round)])
            await place.bridge.fetch()
            assert place.counts()["read"] == round + 1
        assert place.counts()["never_used_on_wire"] > 0

    live(work)


def test_only_the_current_round_and_max_age_more_are_used() -> None:
    async def work(place: Place) -> None:
        for round in range(3, 7):
            place.network.put(round, [place.honest(number) for number in range(2)])
        await place.bridge.fetch()
        assert place.bridge.status()["round"] == 6
        assert place.counts()["read"] == 4
        assert place.counts()["other_round"] == 4

    live(work, bridge_start_round=5)


def test_what_grew_too_old_while_it_waited_is_dropped() -> None:
    async def work(place: Place) -> None:
        place.network.put(0, [place.honest(1)])
        await place.bridge.fetch()
        place.network.put(2, [place.honest(number, 1) for number in (1, 2)])
        await place.bridge.fetch()
        assert place.counts()["stale"] == 1

    live(work)


def test_own_sets_are_written_under_the_current_round_and_the_next() -> None:
    async def work(place: Place) -> None:
        place.network.put(4, [place.honest(1)])
        result = await place.one_pass()
        await place.bridge.fetch()
        assert sorted(place.network.written) == [4, 5]
        found = decode_value(place.network.written[5])
        assert [foreign.question for foreign in found] == [own.prompt.text for own in result.own]
        assert found[0].completions == tuple(completion.text for completion in result.own[0].completions)
        assert place.counts()["written"] == 2

    live(work, bridge_write=True)


def test_own_sets_that_grew_old_are_written_no_more() -> None:
    async def work(place: Place) -> None:
        await place.one_pass()
        await asyncio.sleep(2 * ROUND_SECONDS)
        await place.bridge.fetch()
        assert place.network.written == {}

    live(work, bridge_write=True)


def test_without_writing_nothing_leaves() -> None:
    async def work(place: Place) -> None:
        await place.one_pass()
        await place.bridge.fetch()
        assert place.network.written == {}

    live(work)


def test_own_value_that_comes_back_is_not_a_peers() -> None:
    async def work(place: Place) -> None:
        place.network.peer_id = peer(1)
        place.network.put(0, [place.honest(1)])
        await place.bridge.fetch()
        assert place.bridge.status()["peers"] == 0
        assert place.counts() == {}

    live(work)


def test_a_network_that_hangs_ends_a_fetch_and_not_the_node() -> None:
    async def work(place: Place) -> None:
        async def hang(round: int) -> Sequence[Entry]:
            await asyncio.Event().wait()
            return []

        place.network.read = hang  # type: ignore[method-assign]
        await place.bridge.fetch()
        assert place.counts() == {"fetch_timeout": 1}
        await place.one_pass()

    live(work)


def test_it_runs_beside_the_node_and_closes() -> None:
    async def work(place: Place) -> None:
        running = asyncio.create_task(place.bridge.run())
        place.network.before_read = lambda round: place.network.rounds.setdefault(0, [place.honest(1)])
        await place.node.run(until_round=3)
        running.cancel()
        await asyncio.wait([running])
        await place.bridge.close()
        assert place.network.closed
        assert [result.round for result in place.results] == [0, 1, 2]
        assert sum(len(result.peers) for result in place.results) == 1

    live(work)


def test_the_ledger_names_sets_of_the_lane_and_no_peer_of_theirs(tmp_path: Path) -> None:
    store, blobs = Store(tmp_path / "shoal.db"), BlobStore(tmp_path / "blobs", 2**20)

    async def work(place: Place) -> None:
        node, notes = place.node, PassNotes()
        node.organs.gatherer.witness = node.organs.publisher.witness = notes
        place.sampled([1.0, 0.0, 0.0, 0.0])
        place.network.put(0, [place.honest(1)])
        await place.bridge.fetch()
        result = await place.one_pass()
        Recorder(store, blobs, node, str(DEFAULT_MODEL)).record_pass(result, notes)

    live(work)
    with LedgerReader(tmp_path / "shoal.db") as ledger, Replayer(ledger, tmp_path / "blobs") as replayer:
        [done] = ledger.passes(10)
        [record] = [rollout for rollout in ledger.rollouts(done.id) if not rollout.own]
        assert (record.operator, record.announcement, record.digest, record.place) == ("bridge", None, None, 0)
        assert [row.reward for row in record.rows] == [1.0, 0.0, 0.0, 0.0]
        assert (record.used_rows, record.trained_rows) == (G, 1)
        assert ledger.peers() == [], "nobody proved a key"
        [lane] = [one for one in replayer.replay(done).rollouts if one.record.operator == "bridge"]
        assert [finding.state for finding in lane.findings.all] == ["gone"]
        assert lane.remade is None
    store.close()


def test_a_node_without_a_bridge_has_an_empty_lane() -> None:
    async def work(place: Place) -> None:
        plain = live_node(1, MemoryNetwork().join(identity(1).key), asyncio.get_running_loop().time)
        assert plain.lane.share == 0.0
        assert await plain.lane.sets(0, 4) == []
        plain.lane.offer([])

    live(work)


def test_the_batch_id_is_md5_in_hexadecimal() -> None:
    assert batch_id("question") == "5494af1f14a8c19939968c3e9e2d4f79"
