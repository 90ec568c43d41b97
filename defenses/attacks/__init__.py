"""The red team: every attack by name, for the simulator and the tests."""

from shoal.defenses.attacks.adaptive import AdaptiveDrip, AdaptiveMath, AdaptiveText
from shoal.defenses.attacks.bait import (
    ForgedAnswer,
    ForgedReward,
    FreeRider,
    HalfGibberish,
    Injection,
    JudgeInjection,
    JudgeKeys,
    TinyRider,
)
from shoal.defenses.attacks.base import Attack, Draft, Expected, Knowledge, Outgoing, Sign
from shoal.defenses.attacks.code import CodeDunder, CodeFrom, CodeImport
from shoal.defenses.attacks.collusion import Alternating, SplitPhrase
from shoal.defenses.attacks.content import Length, Math, MathVaried, MathWords, Text, TextEvery, TextMiddle
from shoal.defenses.attacks.identity import (
    ClockSkew,
    CrossSwarm,
    Equivocation,
    FalseAccusation,
    FalseVersion,
    Malleable,
    WeakKeys,
)
from shoal.defenses.attacks.stealth import (
    Dripper,
    InDistribution,
    MajorityVote,
    NaturalErrors,
    Rotating,
    Sleeper,
)
from shoal.defenses.attacks.traffic import BadSignature, Copies, Flood, Malformed, PromptPicking, Replay, Useless
from shoal.defenses.attacks.verifier import CodeAnswers, PartialAnswers, VerifierBombs
from shoal.defenses.attacks.wire import Bombs, ForgedTests, IdsDiffer, LengthLies, NonCanonical, NotFinite, Pickle

__all__ = ["ATTACKS", "Attack", "Draft", "Expected", "Knowledge", "Outgoing", "Sign"]

_ALL: tuple[type[Attack], ...] = (
    Text,
    TextEvery,
    TextMiddle,
    Math,
    MathWords,
    MathVaried,
    CodeImport,
    CodeFrom,
    CodeDunder,
    Length,
    HalfGibberish,
    MajorityVote,
    InDistribution,
    NaturalErrors,
    Rotating,
    Dripper,
    Sleeper,
    SplitPhrase,
    Alternating,
    AdaptiveText,
    AdaptiveMath,
    AdaptiveDrip,
    Injection,
    JudgeInjection,
    JudgeKeys,
    ForgedReward,
    ForgedAnswer,
    FreeRider,
    TinyRider,
    Replay,
    Flood,
    Malformed,
    BadSignature,
    PromptPicking,
    Copies,
    Useless,
    NonCanonical,
    LengthLies,
    Bombs,
    Pickle,
    NotFinite,
    IdsDiffer,
    ForgedTests,
    Malleable,
    WeakKeys,
    CrossSwarm,
    Equivocation,
    ClockSkew,
    FalseVersion,
    FalseAccusation,
    VerifierBombs,
    CodeAnswers,
    PartialAnswers,
)

ATTACKS: dict[str, type[Attack]] = {attack.name: attack for attack in _ALL}
"""Name → attack; each is made without arguments, or with its own (a phrase for a real model, a count)."""
