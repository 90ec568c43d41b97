"""Which layers are on, and the bounds of what the defences remember."""

from collections.abc import Iterable
from dataclasses import dataclass

from shoal.defenses.verdict import LAYERS
from shoal.protocol.errors import UsageError


@dataclass(frozen=True, slots=True)
class DefenseConfig:
    """Switches and bounds of the defences; the defaults hold the bounds of the design.

    Raises UsageError for an unknown layer and for "schema": without it there is no rollout to train on.
    """

    disabled: frozenset[str] = frozenset()
    # A gossip neighbour forwards for many, so its bound is that of about 3,000 announcements a round, not of one peer.
    sender_bytes_per_round: int = 1 << 20
    senders: int = 4096
    seen: int = 1 << 16
    quota_entries: int = 1 << 16
    held_per_key: int = 16
    held: int = 1024
    mute_after: int = 8
    mute_window: int = 4
    parole: int = 16
    subjects: int = 4096
    members: int = 4096
    members_per_invite: int = 64
    # Below this length many honest peers give the same text, so equal texts are no evidence of copying.
    copy_chars: int = 32
    copy_similarity: float = 0.9
    # Evidence in bits that short rollouts of one peer are copies: eight different answers in the same order are enough
    # at once, eight of which one is wrong need five rollouts. Honest pairs pass it at most once in 2^12 rollouts.
    copy_bits: float = 12.0
    prompts: int = 2048
    texts_per_prompt: int = 256
    pairs: int = 4096

    def __post_init__(self) -> None:
        unknown = sorted(self.disabled - set(LAYERS))
        if unknown:
            raise UsageError(f"unknown defence layer {unknown[0]!r}: choose from {', '.join(LAYERS)}")
        if "schema" in self.disabled:
            raise UsageError("the schema layer cannot be switched off: without it there is no rollout to train on")

    def on(self, layer: str) -> bool:
        """Whether `layer` judges."""
        return layer not in self.disabled

    @staticmethod
    def without(layers: Iterable[str]) -> "DefenseConfig":
        """Return the default configuration with `layers` switched off (an ablation)."""
        return DefenseConfig(disabled=frozenset(layers))
