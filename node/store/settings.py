"""What an update depends on besides its rows: swarm, model, method and defences, as the ledger keeps them."""

from dataclasses import dataclass
from pathlib import Path

from shoal.defenses.config import DefenseConfig
from shoal.node.config import Mixing
from shoal.node.loop import Node
from shoal.trainer.algorithm import AlgorithmSpec
from shoal.trainer.model import DEFAULT_MODEL


@dataclass(frozen=True, slots=True)
class PassSettings:
    """What an update depends on besides its rows; the same for many passes and kept once.

    `manifest` is the signed TOML, `model` is `default` or the folder of the base model, hashes are hex, `max_length`
    is in tokens.
    """

    manifest: str
    model: str
    template: bool
    lineage: str
    tokenizer: str
    max_length: int
    mixing: Mixing
    temperature: float
    algorithm: AlgorithmSpec
    defenses: DefenseConfig
    shares: bool = True
    learns: bool = True


def settings_of(node: Node, model: str, template: bool = True) -> PassSettings:
    """Return the settings of a node as it stands; `model` and `template` are what its policy was loaded with."""
    organs = node.organs
    return PassSettings(
        manifest=organs.prompts.manifest.to_toml(),
        model=_named(model),
        template=template,
        lineage=organs.trainer.policy.lineage.hex(),
        tokenizer=organs.trainer.policy.tokenizer_hash.hex(),
        max_length=organs.trainer.max_length,
        mixing=organs.mixer.mixing,
        temperature=organs.mixer.temperature,
        algorithm=organs.trainer.algorithm,
        defenses=organs.gatherer.screening.context.config,
        shares=node.habits.shares,
        learns=node.habits.learns,
    )


def _named(model: str) -> str:
    """Return a name that means the same from any folder, and for the shipped model also after an upgrade."""
    if model == "default" or Path(model).resolve() == DEFAULT_MODEL.resolve():
        return "default"
    return str(Path(model).absolute())
