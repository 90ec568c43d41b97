"""A small simulated swarm of real nodes, one of which keeps a ledger."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shoal.node.assemble import Commons, simulated_manifest
from shoal.node.config import Mixing, SimulateConfig, SwarmOptions
from shoal.node.events import RoundResult
from shoal.node.plan import make_plan, roles_of
from shoal.node.store.blobs import BlobStore
from shoal.node.store.ledger import Store
from shoal.node.store.recorder import Recorder
from shoal.node.swarm import Swarm, VirtualNow
from shoal.node.witness import PassNotes
from shoal.trainer.model import DEFAULT_MODEL, load_policy
from shoal.trainer.tasks.registry import TaskRegistry
from shoal.trainer.verify import Grader

MIXING = Mixing(local=2, external=2, group_size=4)
LEDGER, BLOBS = "shoal.db", "blobs"


def record_swarm(home: Path, mixing: Mixing = MIXING, rounds: int = 4, attack: Sequence[str] = ()) -> list[RoundResult]:
    """Run a swarm of three; node 0 writes into `home`. Return what its passes brought forth."""
    config = SimulateConfig(
        mixing=mixing, swarm=SwarmOptions(nodes=3, rounds=rounds, start="same", seed=3, attack=tuple(attack))
    )
    plan = make_plan(config)
    registry = TaskRegistry(plan.specs)
    results: list[RoundResult] = []
    notes, now = PassNotes(), VirtualNow()
    store = Store(home / LEDGER, now=lambda: 1_000.0 + now())
    blobs = BlobStore(home / BLOBS, 64 * 2**20)

    with Grader(registry) as grader:
        roles = roles_of("swarm", config, plan.attackers)
        slots = max(role.prompts for role in roles) * config.links.passes
        commons = Commons(config, simulated_manifest(config, registry, slots), registry, grader, now)

        def report(number: int, result: RoundResult, time: float) -> None:
            if number == 0:
                recorder.record_pass(result, notes.take())
                results.append(result)

        swarm = Swarm(commons, now, [(role, load_policy(DEFAULT_MODEL)) for role in roles], report)
        node = swarm.nodes[0]
        node.organs.gatherer.witness = node.organs.publisher.witness = notes
        node.journal = store.enter
        recorder = Recorder(store, blobs, node, str(DEFAULT_MODEL))
        swarm.run(rounds)
    store.close()
    return results


def with_mixing(**changes: object) -> Mixing:
    """The usual mixing with some options changed."""
    return replace(MIXING, **changes)
