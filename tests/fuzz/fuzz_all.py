"""All targets by name: the decoders, and the two that play scripts of messages."""

from collections.abc import Callable
from random import Random

import fuzz_gate
import fuzz_way
from fuzz_dht import DHT
from fuzz_gate import GATE
from fuzz_gossip import GOSSIP
from fuzz_streams import STREAMS
from fuzz_targets import TARGETS, Target
from fuzz_texts import WRITTEN
from fuzz_way import WAY

DECODERS: dict[str, Target] = {**TARGETS, **{target.name: target for target in (*STREAMS, GOSSIP, DHT, *WRITTEN)}}
SCRIPTED: dict[str, tuple[int, Callable[[Random], bytes]]] = {
    WAY.name: (32, fuzz_way.new_script),  # as costly as fifty decoders
    GATE.name: (8, fuzz_gate.new_script),  # as ten
}
"""Name → one case in so many is a script, and what writes one."""
ALL: dict[str, Target] = {**DECODERS, GATE.name: GATE, WAY.name: WAY}
