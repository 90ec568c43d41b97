"""How the bridge is put onto a node."""

import random

from shoal.node.bridge.dht import ForeignDht
from shoal.node.bridge.feed import Bridge, Organs
from shoal.node.bridge.lane import Lane
from shoal.node.bridge.options import BridgeOptions
from shoal.node.bridge.questions import Questions, data_registry
from shoal.node.loop import Node
from shoal.trainer.verify import Grader

PURPOSE = "bridge/transport/1"  # of the derived key: it shows no relation to the node's own


def put_bridge(node: Node, options: BridgeOptions, seed: bytes) -> Bridge:
    """Give a node its lane to the other client's peers, and return what must run beside it and be closed in the end.

    `seed` are 32 bytes derived for PURPOSE. Raises UsageError or EnvironmentFault for a data set that cannot be read,
    UsageError for an address that is none. Nothing is started.
    """
    organs, habits = node.organs, node.habits
    counters = organs.gatherer.counters
    key = organs.publisher.identity.key
    questions = Questions(organs.prompts, organs.grader, key, habits.prompts * habits.passes)
    if options.bridge_data:
        registry = data_registry(options.bridge_data, options.bridge_data_sha256)
        questions.add_data(registry, Grader(registry))
    special_tokens = organs.gatherer.screening.context.special_tokens
    lane = Lane(habits.mixing, options.bridge_share, special_tokens, counters)
    lane.completions = options.bridge_completions or habits.mixing.group_size
    network = ForeignDht(seed, options.bridge_bootstrap, counters)
    parts = Organs(network, questions, lane, organs.clock, organs.compute, counters)
    bridge = Bridge(options, parts, random.Random(f"{seed.hex()}/bridge"))
    node.lane = bridge
    return bridge
