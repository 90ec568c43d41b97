"""A real node, as the daemon wires it, on a memory network: for tests of what surrounds the node."""

from collections.abc import Callable

from node_pieces import identity

from shoal.node.compute import InlineCompute, ThreadCompute
from shoal.node.config import Learning, Mixing
from shoal.node.events import RoundResult
from shoal.node.loop import Habits, Node
from shoal.node.wiring import Conduct, Surroundings, defenses_without, sampling_of, wire
from shoal.protocol.manifest import Admission, Manifest, SwarmLimits, TaskEntry
from shoal.protocol.sequence import SequenceCounter
from shoal.protocol.staleness import Clock
from shoal.protocol.transport import Transport
from shoal.trainer.model import DEFAULT_MODEL, load_policy
from shoal.trainer.tasks.registry import TaskRegistry
from shoal.trainer.verify import Grader

ROUND_SECONDS = 10
MIXING = Mixing(local=2, external=2, group_size=4, tasks_per_node=2)


def manifest(max_age_rounds: int = 2, genesis: int = 0) -> Manifest:
    return Manifest(
        name="test",
        founder=identity(0).key.hex(),
        genesis=genesis,
        round_seconds=ROUND_SECONDS,
        tasks=[TaskEntry(name="strings/reverse"), TaskEntry(name="strings/sort")],
        limits=SwarmLimits(max_age_rounds=max_age_rounds),
        admission=Admission(mode="allow-list", operators={f"operator-{n}": [identity(n).key.hex()] for n in range(4)}),
    ).sign(identity(0))


def live_node(
    number: int,
    transport: Transport,
    now: Callable[[], float],
    record: Callable[[RoundResult], None] = lambda _: None,
    compute: InlineCompute | ThreadCompute | None = None,
) -> Node:
    """Node `number` of the swarm of `manifest()`, with the default model."""
    swarm = manifest()
    registry = TaskRegistry(swarm.tasks)
    learning = Learning()
    surroundings = Surroundings(
        identity=identity(number),
        manifest=swarm,
        registry=registry,
        grader=Grader(registry),
        transport=transport,
        clock=Clock(now, swarm.genesis, swarm.round_seconds),
        compute=compute or ThreadCompute(),
        sequences=SequenceCounter(lambda _: None),
    )
    habits = Habits(MIXING, sampling_of(learning, registry), prompts=2, shared=0, wait_seconds=1.0, hurried=True)
    conduct = Conduct(learning, habits, defenses_without(()), seed=str(number))
    return wire(surroundings, conduct, load_policy(DEFAULT_MODEL), record)
