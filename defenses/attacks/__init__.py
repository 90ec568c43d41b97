"""The red team: every attack by name, for the simulator and the tests."""

from shoal.defenses.attacks.base import Attack, Draft, Expected, Outgoing, Sign
from shoal.defenses.attacks.content import (
    ForgedAnswer,
    ForgedReward,
    FreeRider,
    Injection,
    Length,
    Math,
    Text,
    TextEvery,
)
from shoal.defenses.attacks.traffic import BadSignature, Copies, Flood, Malformed, PromptPicking, Replay

__all__ = ["ATTACKS", "Attack", "Draft", "Expected", "Outgoing", "Sign"]

_ALL: tuple[type[Attack], ...] = (
    Text,
    TextEvery,
    Math,
    Length,
    Injection,
    ForgedReward,
    ForgedAnswer,
    FreeRider,
    Replay,
    Flood,
    Malformed,
    BadSignature,
    PromptPicking,
    Copies,
)

ATTACKS: dict[str, type[Attack]] = {attack.name: attack for attack in _ALL}
"""Name → attack; each is made without arguments, or with its own (a phrase for a real model, a count)."""
