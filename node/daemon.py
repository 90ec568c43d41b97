"""The daemon: one node as a long-lived process that any part of it may fail in.

Training, network, ledger and health are tasks of their own. Training goes on without a network, and the network without
training. Two supervisors, at the end of this file, alone catch everything; they count what they catch.
"""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from shoal.defenses.verdict import Counters
from shoal.node import health
from shoal.node.board import StepBoard, resident_mb
from shoal.node.events import RoundResult
from shoal.node.greet import Greeter, ManifestWatch, time_document
from shoal.node.http import HealthServer
from shoal.node.keeper import Checkpoints, LedgerWriter
from shoal.node.lag import LagMonitor
from shoal.node.notify import Notifier
from shoal.node.pace import Steered
from shoal.node.parts import Learner, Parts
from shoal.node.view import PeerDict, StatusDict
from shoal.node.witness import PassNotes
from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.protocol.records import PeerRecord
from shoal.trainer.export import export_hf

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
RETRY_SECONDS = 1.0  # after a failure; doubled for each further one in a row, up to
LONGEST_RETRY_SECONDS = 30.0


class Daemon:
    """A running node; implements NodeView. `run` returns the exit code."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.board = StepBoard()
        self.lag = LagMonitor()
        self.counters = parts.learner.node.organs.gatherer.counters if parts.learner else Counters()
        self.pace = Steered(self._between_passes)
        self.server = HealthServer(self)
        self.notes = PassNotes()
        self._stopping = asyncio.Event()
        self._network_ready = False
        self._began = time.monotonic()
        self._checkpoint_wanted: list[asyncio.Future[str]] = []
        consider = parts.learner.node.organs.gatherer.consider if parts.learner else lambda _: None
        self.greeter = Greeter(parts.transport, consider, self.counters, time.time)
        self.manifests = ManifestWatch(parts.transport, parts.revisions.take, self.counters, self._admitted)
        self.checkpoints: Checkpoints | None = None
        self.ledger: LedgerWriter | None = None
        if parts.learner:
            self._take_in(parts.learner)

    def _take_in(self, learner: Learner) -> None:
        """Bind the node to the disk, and set it to where it was."""
        node, life = learner.node, self.parts.config.life
        node.pace, node.record = self.pace, self._record
        self.checkpoints = Checkpoints(self.parts.home.checkpoints, node, life.checkpoint_every, self.counters)
        self.ledger = LedgerWriter(learner.recorder, self.counters)
        node.organs.gatherer.witness = node.organs.publisher.witness = self.notes
        restored = self.checkpoints.restore()
        learner.take_up_position(restored or 0)
        if restored is None:
            log.info("no checkpoint yet: begins with the base model")
        else:
            log.info("goes on at policy version %d", restored)

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Live until told to stop, or until training gives up; return the exit code.

        Raises UsageError for a port that is taken.
        """
        self._listen_to_signals()
        notifier = Notifier.from_environment(os.environ)
        tasks: list[asyncio.Task[Any]] = []
        try:
            await self._open_doors()
            services = self._services() | {"watchdog": lambda: notifier.keep(self, lambda: True)}
            tasks = [asyncio.create_task(self._supervise(name, work), name=name) for name, work in services.items()]
            ended = await self._until_the_end()
            self.pace.phase = "draining"
            notifier.stopping()
            return ended
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._close()
            notifier.close()

    def stop(self) -> None:
        """Drain: finish the step in hand, save, leave."""
        log.info("draining: the step in hand is finished and saved; a second signal ends at once")
        self.pace.stop()
        if self.parts.learner:
            self.parts.learner.node.organs.gatherer.close()
        self._stopping.set()

    def _listen_to_signals(self) -> None:
        def on_signal(number: int) -> None:
            if self._stopping.is_set():
                os._exit(128 + number)  # crash-only: what is on the disk is whole at any instant
            self.stop()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal, number)

    async def _open_doors(self) -> None:
        options = self.parts.config.health
        await self.server.open_control(self.parts.home.socket)
        if options.health_port:
            await self.server.open_public(options.health_host, options.health_port)

    async def _until_the_end(self) -> int:
        network = asyncio.create_task(self._supervise("connect", self._connect, UsageError), name="connect")
        training = asyncio.create_task(self._train() if self.parts.learner else self._stopping.wait(), name="training")
        try:
            await asyncio.wait({network, training}, return_when=asyncio.FIRST_COMPLETED)
            if network.done() and network.exception():
                self.stop()
            await training
            network_failure = network.exception() if network.done() and not network.cancelled() else None
            if network_failure is not None:
                raise network_failure
        finally:
            network.cancel()
            await asyncio.gather(network, return_exceptions=True)
            await self._save_at_the_end()
        return 1 if self._gave_up else 0

    @property
    def _gave_up(self) -> bool:
        return self.board.failures_in_a_row >= self.parts.config.life.failures

    async def _connect(self) -> None:
        """Start the transport, however often and long that takes; raises UsageError alone (a port that is taken)."""
        transport, wait = self.parts.transport, RETRY_SECONDS
        transport.serve("time", time_document(time.time))
        transport.serve("manifest", self.parts.revisions.document)
        if self.parts.learner:
            transport.serve("recent", self.parts.learner.node.organs.publisher.recent)
        transport.on_record = self._on_record
        while not self._network_ready:
            try:
                await transport.start()
                self._network_ready = True
                log.info("listening: %s", ", ".join(transport.addresses()) or "no address")
            except EnvironmentFault as error:
                self.counters.add("network", "start_failed")
                log.warning("the network did not start: %s; again in %.0f s", error, wait)
                await asyncio.sleep(wait)
                wait = min(2 * wait, LONGEST_RETRY_SECONDS)

    async def _train(self) -> None:
        """Make passes until told to stop, until the last round, or until too many of them fail in a row."""
        learner = self.parts.learner
        assert learner is not None
        self.board.able_since = time.monotonic()
        until = self.parts.config.life.until_round
        await self._supervise_training(lambda: learner.node.run(float("inf") if until is None else until))

    async def _save_at_the_end(self) -> None:
        if self.ledger is not None:
            await self.ledger.drain()
        if self.checkpoints is not None:
            await self._save_for(self._checkpoint_wanted)

    async def _save_for(self, waiting: list[asyncio.Future[str]]) -> None:
        """Save, and tell those who wait for it; who has gone meanwhile is no matter. Raises EnvironmentFault."""
        try:
            path = await self._save()
        except EnvironmentFault as error:
            for future in waiting:
                if not future.done():
                    future.set_exception(error)
            raise
        else:
            for future in waiting:
                if not future.done():
                    future.set_result(path)
        finally:
            waiting.clear()

    async def _save(self) -> str:
        assert self.checkpoints is not None
        return str(await self.checkpoints.save())

    async def _close(self) -> None:
        """Let go of everything, the doors first; what fails to close keeps nothing else open."""
        async with contextlib.AsyncExitStack() as rest:
            rest.callback(self.parts.close)
            if self.parts.learner and self.parts.learner.bridge:
                rest.push_async_callback(self.parts.learner.bridge.close)
            rest.push_async_callback(self.parts.transport.close)
            rest.push_async_callback(self.server.close)

    # -- work beside the training -------------------------------------------------------------------------------------

    def _services(self) -> dict[str, Callable[[], Awaitable[Any]]]:
        services: dict[str, Callable[[], Awaitable[Any]]] = {
            "greeter": self.greeter.run,
            "manifests": self.manifests.run,
            "ticker": self._tick,
            "loop lag": self.lag.run,
        }
        if self.parts.learner and self.ledger:
            services |= {"intake": self.parts.learner.node.organs.gatherer.intake, "ledger": self.ledger.run}
            if self.parts.learner.bridge:
                services["bridge"] = self.parts.learner.bridge.run
        return services

    async def _tick(self) -> None:
        """Follow swarm time: rotate shards, adopt revisions when their round has come."""
        while True:
            round = self.parts.clock.round()
            self.parts.transport.set_round(max(0, round))
            self.parts.prefixes.look()
            manifest = self.parts.revisions.current(round)
            if manifest.revision != self.parts.manifest.revision:
                self.parts.adopt(manifest)
                log.info("revision %d of the manifest is in force", manifest.revision)
            await asyncio.sleep(TICK_SECONDS)

    def _on_record(self, record: PeerRecord) -> None:
        """A verified record of a peer: its invite, and the manifest that it lives by."""
        if self.parts.learner:
            self.parts.learner.node.organs.gatherer.gate.admissions.learn(record.key, record.invite)
        self.manifests.hear(record.key, record.revision, self.parts.revisions.newest)

    def _admitted(self, key: bytes) -> bool:
        """Whether peers of this key take part; a bootstrap knows no invites and holds everybody for a member."""
        learner, manifest = self.parts.learner, self.parts.manifest
        if learner is None:
            return not manifest.is_revoked(key)
        return not learner.node.organs.gatherer.gate.admissions.refusal(key, self.parts.clock.round())

    async def _between_passes(self) -> None:
        if self.checkpoints is not None:
            await self.checkpoints.after_pass()
        if self._checkpoint_wanted:
            with contextlib.suppress(EnvironmentFault):  # counted, and told to who asked
                await self._save_for(self._checkpoint_wanted)

    def _record(self, result: RoundResult) -> None:
        """Take in what a pass brought forth."""
        now = time.monotonic()
        self.board.step_ended(result, now - self._began)
        self._began = now
        if self.ledger is not None:
            self.ledger.record(result, self.notes.take())
        step = self.board.last
        assert step is not None
        log.info(
            "round %d: reward %s, %d own and %d peers' sets, version %d%s",
            result.round,
            "none" if step["reward"] is None else f"{step['reward']:.3f}",
            result.mixed.own_sets,
            result.mixed.peer_sets,
            result.report.version,
            f" ({result.report.reason})" if result.report.reason else "",
        )

    # -- the view of health, metrics and commands ---------------------------------------------------------------------

    def status(self) -> StatusDict:
        """Return the present state; see NodeView."""
        parts, transport = self.parts, self.parts.transport
        round = parts.clock.round()
        reach = transport.reachability()
        state: dict[str, Any] = self.board.state() | {
            "version": version("shoal-node"),
            "key": parts.identity.key.hex(),
            "mode": parts.mode,
            "home": str(parts.home.path),
            "pid": os.getpid(),
            "swarm": {
                "name": parts.manifest.name,
                "id": parts.manifest.swarm_id.hex(),
                "revision": parts.manifest.revision,
                "round": round,
                "round_seconds": parts.manifest.round_seconds,
                "seconds_left": parts.clock.seconds_left(max(round, -1)),
            },
            "phase": self.pace.phase if parts.learner else ("starting" if not self._network_ready else "waiting"),
            "network": {
                "addresses": transport.addresses(),
                "peers": len(transport.peers()),
                "connected": sum(peer.connected for peer in transport.known()),
                "bootstraps_connected": transport.connected_bootstraps,
                "daemon_restarts": transport.daemon_restarts,
                "daemon_alive": transport.daemon_alive,
                "reachability": {"verdict": reach.verdict, "seen_as": list(reach.seen_as), "advice": reach.advice},
                "clock_offset_seconds": self.greeter.clock_offset,
            },
            "counts": self.counters.state(),
            "transport": transport.counters,
            "memory_mb": resident_mb(),
            "loop_lag_ms": self.lag.milliseconds(),
            "paused": self.pace.paused,
            "admission": parts.standing,
            "listening": {"port": parts.config.network.port, "health_port": parts.config.health.health_port},
        }
        if parts.learner:
            if canary := parts.learner.node.canary:
                state["canary"] = canary.status(round)
            state["store"] = parts.learner.store.sizes() | parts.learner.recorder.blobs.sizes()
        state["watchdog"] = health.stepping(state)[1]
        return state  # type: ignore[return-value]

    def peers(self) -> list[PeerDict]:
        """Return the peers known now, those in reach first."""
        return self.parts.peers()

    def pause(self) -> None:
        """Begin no further pass."""
        self.pace.pause()

    def resume(self) -> None:
        """Go on."""
        self.board.able_since = time.monotonic()
        self.pace.resume()

    async def export(self, folder: str) -> str:
        """Write the policy as a Hugging Face directory, between two pieces of work."""
        learner = self._learner()
        policy = learner.node.organs.trainer.policy
        path = await learner.node.organs.compute.run("save", lambda: export_hf(policy, Path(folder)))
        return str(path)

    async def checkpoint(self) -> str:
        """Save after the pass in hand; at once when no pass is under way."""
        self._learner()
        if self.pace.phase in ("paused", "waiting", "waiting_for_genesis"):
            return await self._save()
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._checkpoint_wanted.append(future)
        return await future

    def _learner(self) -> Learner:
        if self.parts.learner is None:
            raise UsageError("this node only relays: it has no model")
        return self.parts.learner

    def stepping(self) -> tuple[bool, str]:
        """Return whether the node does its work."""
        return health.stepping(self.status())

    def ready(self) -> tuple[bool, str]:
        """Return whether the node takes part in the swarm."""
        return health.ready(self.status())

    # -- the two supervisors ------------------------------------------------------------------------------------------

    async def _supervise(
        self, name: str, work: Callable[[], Awaitable[Any]], fatal: type[Exception] | tuple[()] = ()
    ) -> None:
        """Run a service for as long as the node lives; one that fails is counted and begins again.

        What is `fatal` (wrong settings) is raised: beginning again would not help.
        """
        wait = RETRY_SECONDS
        while True:
            began = time.monotonic()
            try:
                await work()
                return
            except fatal:
                raise
            except Exception:
                self.counters.add("supervisor", name.replace(" ", "_"))
                wait = RETRY_SECONDS if time.monotonic() - began > LONGEST_RETRY_SECONDS else wait
                log.exception("%s failed; it begins again in %.0f s", name, wait)
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_RETRY_SECONDS)

    async def _supervise_training(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Make passes; one that fails is counted, and too many in a row end the node with its state saved."""
        while True:
            try:
                await work()
                return
            except Exception as error:
                self.board.step_failed(error)
                self.counters.add("supervisor", "training")
                log.exception("a pass failed (%d in a row)", self.board.failures_in_a_row)
            if self._gave_up:
                log.error("%d passes failed in a row: the node ends", self.board.failures_in_a_row)
                return
            self.notes.take()
            await self.pace.rest(min(RETRY_SECONDS * 2**self.board.failures_in_a_row, LONGEST_RETRY_SECONDS))
            if self.pace.stopped:
                return
