"""One cell of the red team's matrix: what is simulated, under which settings, and under which name it is kept."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from shoal.defenses.attacks import ATTACKS, Attack
from shoal.defenses.verdict import LAYERS
from shoal.node.config import Learning, Links, Mixing, RunOptions, SimulateConfig, SwarmOptions
from shoal.protocol.errors import UsageError

Setting = Literal["vertical", "horizontal", "alone", "paper-vertical", "paper-horizontal", "loud"]
NO_ATTACK = "none"
HONEST, ATTACKER = "honest", "attacker"  # who sent a row
# As `node.wiring` has them; that module loads the models' library, and wrong options must be refused at once.
APPRAISAL = ("invariants", "likelihood", "phrases", "judge")  # together, as "no-appraisal": they share one pass
OPTIONAL_LAYERS = tuple(layer for layer in LAYERS if layer != "schema")
SHARES = (0, 8, 25, 50)
NODES = {0: 4, 25: 4, 50: 4, 8: 12}  # 8 % is one node of twelve
ROUNDS = 100
EVAL_EVERY = 20
EVAL_ITEMS = 128  # a node: with three honest ones 384 completions, and 0 of 384 supports "at most 1 %"
POSITIVE = "positive"  # training on peers' positive rows only: no layer, but it stands alone like one
MIXES: dict[str, Mixing] = {
    "vertical": Mixing(local=2, external=6),
    "alone": Mixing(local=2, external=6),
    "horizontal": Mixing(local=2, external=6, mix="joined"),
    # Hail to the Thief: 32 prompts x 12 completions in an update, from four nodes in equal parts. Vertical: every node
    # has 8 prompts of its own. Horizontal: all have the same 32, and each gives 3 completions for every one of them.
    "paper-vertical": Mixing(local=8, external=24, group_size=12, tasks_per_node=8),
    "paper-horizontal": Mixing(local=32, external=96, group_size=3, tasks_per_node=32, mix="joined"),
}
"""How own and peers' rollouts are mixed in each setting."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One simulation: an attack by a share of the nodes in percent, a seed, and which layers are on.

    `defenses` is "full", "off", "no-LAYER" (one layer left out), "only-LAYER" (one layer alone) or "no-appraisal".
    """

    attack: str
    share: int
    seed: int
    defenses: str
    setting: Setting = "vertical"
    rounds: int = ROUNDS
    model: str = "default"

    @property
    def name(self) -> str:
        """Return the name of the cell's file."""
        parts = [self.setting, self.attack, str(self.share), self.defenses, str(self.rounds), str(self.seed)]
        if self.model != "default":
            parts.append(re.sub(r"[^A-Za-z0-9]+", "_", self.model).strip("_"))
        return "-".join(parts)

    @property
    def nodes(self) -> int:
        """Return how many nodes the swarm has."""
        return NODES[self.share]

    def plain(self) -> dict[str, Any]:
        """Return the description that stands in the cell's file."""
        return {name: getattr(self, name) for name in self.__slots__}

    @property
    def max_tokens(self) -> int | None:
        """Longest completion: what the tasks suggest (None), or more where the plant would not fit into that."""
        needs = 0 if self.attack == NO_ATTACK else ATTACKS[self.attack].needs
        return needs if self.model == "default" and needs > Attack.needs else None

    def config(self, out: Path) -> SimulateConfig:
        """Return the simulation's settings: a regime in which attacks succeed where nothing is done against them."""
        synchronous = self.setting.startswith("paper-")  # as there: each node trains on all that a round brought
        off = layers_off(self.defenses)
        rows = "all" if _as_published(self.defenses) else "positive"
        return SimulateConfig(
            mixing=replace(MIXES[self.setting], peer_rows=rows),
            learning=Learning(model=self.model, lr=1e-3, max_tokens=self.max_tokens),
            swarm=SwarmOptions(
                nodes=self.nodes,
                rounds=self.rounds,
                seed=self.seed,
                own_skill=0.4,
                other_skill=0.03,
                attack=() if self.attack == NO_ATTACK else (f"{self.attack}:{self.share / 100}",),
                defenses_off=off,
                **({"max_age_rounds": 0} if synchronous else {}),
            ),
            links=Links(speed_spread=0.0, delay=0.01) if synchronous else Links(),
            run=RunOptions(
                out=out,
                arms=("isolated",) if self.setting == "alone" else ("swarm",),
                eval_every=EVAL_EVERY,
                eval_items=EVAL_ITEMS,
                checkpoint_every=self.rounds,
            ),
        )


def _as_published(defenses: str) -> bool:
    """Return True where peers' rows all train, as in the published recipe: with nothing on, or one layer alone."""
    return defenses == "off" or (defenses.startswith("only-") and defenses != f"only-{POSITIVE}")


def layers_off(defenses: str) -> tuple[str, ...]:
    """Return the layers to switch off; raise `UsageError` for a name that is none."""
    kind, _, layer = defenses.partition("-")
    if defenses == "full":
        return ()
    if defenses in ("off", f"only-{POSITIVE}"):
        return ("all",)
    if defenses == "no-appraisal":
        return APPRAISAL
    if kind not in ("no", "only") or layer not in OPTIONAL_LAYERS:
        raise UsageError(f"{layer or defenses!r} is no defence layer: choose from {', '.join(OPTIONAL_LAYERS)}")
    return (layer,) if kind == "no" else tuple(other for other in OPTIONAL_LAYERS if other != layer)


def learnable(name: str) -> bool:
    """Return whether an attack plants a behaviour that can be looked for in answers."""
    return ATTACKS[name].shown is not Attack.shown


def expected_layers(name: str) -> tuple[str, ...]:
    """Return the layers that are expected to stop an attack, as stated beside it; none where nothing is."""
    said = ATTACKS[name].expected.layer
    return tuple(layer for layer in LAYERS if layer in re.split(r"[^a-z]+", said))
