"""The whole state of a node between two passes, as tensors and plain data: what a checkpoint holds.

Restoring it gives the same bits as if there had been no interruption: weights, optimizer, random generators, position,
pool, windows, reputation and counters all belong to it.
"""

import random
from typing import Any

from torch import Tensor

from shoal.node.compute import InlineCompute
from shoal.node.loop import Node
from shoal.protocol.errors import UsageError

State = dict[str, Any]
CANARY = "canary/"  # before the names of the tensors that the canary keeps


def random_state(rng: random.Random) -> list[Any]:
    """Return the state of a generator as plain lists."""
    version, words, gauss = rng.getstate()
    return [version, list(words), gauss]


def restore_random(rng: random.Random, state: list[Any]) -> None:
    """Set a generator to what `random_state` returned."""
    version, words, gauss = state
    rng.setstate((version, tuple(words), gauss))


def take(node: Node) -> tuple[dict[str, Tensor], State]:
    """Return the state of a node that stands between two passes."""
    organs = node.organs
    gatherer, publisher = organs.gatherer, organs.publisher
    tensors, trainer = organs.trainer.state_dict()
    state: State = {
        "swarm": organs.prompts.manifest.swarm_id,
        "lineage": organs.trainer.policy.lineage,
        "trainer": trainer,
        "position": [node.round, node.passes, node.told],
        "choice": random_state(node.rng),
        "lags": organs.lags.state(),
        "start_gate": node.start_gate.state(),
        "gate": gatherer.gate.state(),
        "reputation": gatherer.gate.reputation.state(),
        "counters": gatherer.counters.state(),
        "duplicates": gatherer.screening.memory.duplicates.state(),
        "appraisal": gatherer.screening.assessor.state(),
        "pool": gatherer.pool.state(),
        "served": [list(item) for item in publisher.served],
        "sequence": publisher.sequences.position,
        "attack": None if publisher.attack is None else [publisher.attack.state(), random_state(publisher.attack_rng)],
    }
    if isinstance(organs.compute, InlineCompute):
        state["speed"] = random_state(organs.compute.rng)
    tensors["generator"] = node.generator.get_state()
    if node.canary:
        state["canary"] = node.canary.state()
        tensors |= {f"{CANARY}{name}": tensor for name, tensor in node.canary.tensors().items()}
    return tensors, state


def restore(node: Node, tensors: dict[str, Tensor], state: State) -> None:
    """Set a newly assembled node to what `take` returned; of another swarm's state only what was learned there.

    Raises UsageError for the state of a node with another base model.
    """
    organs = node.organs
    manifest, policy = organs.prompts.manifest, organs.trainer.policy
    if state.get("lineage", policy.lineage) != policy.lineage:  # a checkpoint of an earlier version does not say
        raise UsageError(
            f"the checkpoint is of another model, of lineage {state['lineage'].hex()[:16]}, not "
            f"{policy.lineage.hex()[:16]}: give the --model that it was made with"
        )
    node.generator.set_state(tensors["generator"])
    own = {name: t for name, t in tensors.items() if name != "generator" and not name.startswith(CANARY)}
    organs.trainer.load(own, state["trainer"])
    organs.engine.refresh()
    restore_random(node.rng, state["choice"])
    if node.canary and "canary" in state:  # else the layer was off: its reference is taken now
        kept = {name.removeprefix(CANARY): tensor for name, tensor in tensors.items() if name.startswith(CANARY)}
        node.canary.restore(kept, state["canary"])
    organs.gatherer.counters.restore(state["counters"])
    organs.publisher.sequences.resume(state["sequence"])
    node.told = state["position"][2]
    node.start_gate.restore(state.get("start_gate", node.start_gate.state()))  # an earlier version had none
    if state.get("swarm", manifest.swarm_id) == manifest.swarm_id:
        _restore_in_swarm(node, state)
    if isinstance(organs.compute, InlineCompute):
        restore_random(organs.compute.rng, state["speed"])


def _restore_in_swarm(node: Node, state: State) -> None:
    """Take up the place in the swarm again: rounds, peers, and what was published."""
    gatherer, publisher = node.organs.gatherer, node.organs.publisher
    node.round, node.passes, _ = state["position"]
    node.organs.lags.restore(state["lags"])
    gatherer.gate.restore(state["gate"])
    gatherer.gate.reputation.restore(state["reputation"])
    gatherer.screening.memory.duplicates.restore(state["duplicates"])
    if "appraisal" in state:  # a checkpoint of an earlier version has none
        gatherer.screening.assessor.restore(state["appraisal"], node.organs.prompts.registry.prompt)
    gatherer.pool.restore(state["pool"])
    publisher.served.clear()
    publisher.served.extend((round, digest, announcement) for round, digest, announcement in state["served"])
    if publisher.attack is not None:
        publisher.attack.restore(state["attack"][0])
        restore_random(publisher.attack_rng, state["attack"][1])
