"""One arm of a simulation: all its nodes on one memory network and one virtual clock.

Nodes run on their own between two rests. At a rest, every so many rounds, each node has finished its pass and nothing
is on its way: so the state of the swarm is that of its nodes and its network, and can be kept and taken up again.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from shoal.node import snapshot
from shoal.node.assemble import Commons, Role, assemble, simulated_identity
from shoal.node.config import parse_partition
from shoal.node.events import RoundResult
from shoal.node.loop import Node
from shoal.node.redteam.tally import Tally
from shoal.protocol.memory import LinkModel, MemoryNetwork, MemoryTransport, Partition
from shoal.protocol.virtual import VirtualTimeLoop
from shoal.trainer.model import Policy

Report = Callable[[int, RoundResult, float], None]
"""Takes the number of a node, what its pass brought forth, and the virtual time at which it ended."""


@dataclass(slots=True)
class VirtualNow:
    """The clock of an arm across its event loops: a loop's while one runs, else where the last one ended."""

    loop: VirtualTimeLoop | None = None
    rested: float = 0.0

    def __call__(self) -> float:
        return self.rested if self.loop is None else self.loop.time()


class Swarm:
    """The nodes of one arm."""

    def __init__(
        self, commons: Commons, now: VirtualNow, members: Sequence[tuple[Role, Policy]], report: Report
    ) -> None:
        self.now = now
        self.network = MemoryNetwork(links_of(commons), commons.config.swarm.seed)
        self.transports: list[MemoryTransport] = []
        self.nodes: dict[int, Node] = {}
        self.tallies: dict[int, Tally] = {}  # what became of peers' rows; empty again at each rest
        keys = {role.number: simulated_identity(commons.config.swarm.seed, role.number).key for role, _ in members}
        attackers = frozenset(keys[role.number] for role, _ in members if role.attack is not None)
        for role, policy in members:
            transport = self.network.join(keys[role.number])
            self.transports.append(transport)
            self.nodes[role.number] = assemble(
                commons, role, policy, transport, lambda result, number=role.number: report(number, result, now())
            )
            self.tallies[role.number] = Tally(attackers)
            self.nodes[role.number].organs.gatherer.witness = self.tallies[role.number]

    def run(self, until_round: int) -> None:
        """Run every node until swarm time reaches `until_round`, then let the network come to rest.

        Each stretch has a loop of its own, so that going on from a checkpoint meets the same loop as going on without.
        """

        def loop() -> VirtualTimeLoop:
            self.now.loop = VirtualTimeLoop(self.now.rested)
            return self.now.loop

        try:
            with asyncio.Runner(loop_factory=loop) as runner:
                runner.run(self._stretch(until_round))
        except ExceptionGroup as group:
            raise first_of(group) from group
        finally:
            self.now.rested, self.now.loop = self.now(), None

    async def _stretch(self, until_round: int) -> None:
        async with asyncio.TaskGroup() as group:
            intakes = [group.create_task(node.organs.gatherer.intake()) for node in self.nodes.values()]
            runs = [group.create_task(node.run(until_round)) for node in self.nodes.values()]
            await asyncio.gather(*runs)
            await self.network.settle()
            while any(transport.queued for transport in self.transports):
                await asyncio.sleep(0)
            for intake in intakes:
                intake.cancel()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state of the whole arm at rest."""
        tensors: dict[str, Tensor] = {}
        nodes: dict[str, Any] = {}
        for number, node in self.nodes.items():
            node_tensors, nodes[str(number)] = snapshot.take(node)
            tensors |= {f"{number}/{name}": tensor for name, tensor in node_tensors.items()}
        return tensors, {"time": self.now.rested, "network": self.network.state(), "nodes": nodes}

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Take over what `state` returned."""
        self.now.rested = state["time"]
        self.network.restore(state["network"])
        for number, node in self.nodes.items():
            prefix = f"{number}/"
            own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            snapshot.restore(node, own, state["nodes"][str(number)])


def links_of(commons: Commons) -> LinkModel:
    """Return the simulated links: half of the delay is fixed, the rest varies; partitions cut by rounds."""
    links, nodes = commons.config.links, commons.config.swarm.nodes
    cuts = [parse_partition(text, nodes) for text in links.partition]
    seconds = links.round_seconds
    return LinkModel(
        delay=links.delay / 2,
        jitter=links.delay,
        loss=links.loss,
        partitions=tuple(Partition(cut.start * seconds, cut.end * seconds, cut.groups) for cut in cuts),
    )


def first_of(group: ExceptionGroup) -> Exception:
    """Return the first error of a group of tasks: the others fell with it."""
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
