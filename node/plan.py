"""What a simulation is going to do: tasks, attackers, and the role of every node in every arm."""

from dataclasses import dataclass, replace
from pathlib import Path

from shoal.defenses.attacks import ATTACKS
from shoal.node.assemble import Role
from shoal.node.config import Arm, SimulateConfig, parse_attack
from shoal.node.taskspecs import task_specs
from shoal.node.wiring import defenses_without
from shoal.protocol.errors import UsageError
from shoal.trainer.model import DEFAULT_MODEL
from shoal.trainer.tasks.registry import TaskSpec


@dataclass(frozen=True, slots=True)
class Plan:
    """The settled part of a simulation: task specifications, attackers by node number, and where weights come from."""

    specs: tuple[TaskSpec, ...]
    attackers: dict[int, str]
    model: Path
    skills: bool

    @property
    def attacks(self) -> tuple[str, ...]:
        """Return the names of the attacks in use, each once."""
        return tuple(dict.fromkeys(self.attackers.values()))


def make_plan(config: SimulateConfig) -> Plan:
    """Resolve names; raise `UsageError` for an unknown task, attack or start, `EnvironmentFault` for a missing file."""
    default_model = config.learning.model == "default"
    specs = task_specs(config.swarm.tasks, config.swarm.task_config)
    strings = all(spec.name.startswith("strings/") for spec in specs)
    if config.swarm.start == "skills" and not (default_model and strings):
        raise UsageError("--start skills tunes the default model on the string tasks: leave out --model and --tasks")
    model = DEFAULT_MODEL if default_model else Path(config.learning.model)
    skills = config.swarm.start == "skills" or (config.swarm.start == "auto" and default_model and strings)
    defenses_without(config.swarm.defenses_off)  # unknown layers are refused now
    return Plan(specs, attackers_of(config), model, skills)


def attackers_of(config: SimulateConfig) -> dict[int, str]:
    """Return which nodes attack: the last ones, at least one for each attack named."""
    nodes = config.swarm.nodes
    names: list[str] = []
    for text in config.swarm.attack:
        name, share = parse_attack(text)
        if name not in ATTACKS:
            raise UsageError(f"--attack {name}: unknown; choose from {', '.join(ATTACKS)}")
        names.extend([name] * max(1, round(share * nodes)))
    return {nodes - len(names) + at: name for at, name in enumerate(names)}


def roles_of(arm: Arm, config: SimulateConfig, attackers: dict[int, str]) -> list[Role]:
    """Return what each node does in an arm. Isolated nodes make updates of the same size from own sets alone."""
    mixing, nodes = config.mixing, config.swarm.nodes
    if arm == "swarm":
        attacks = {number: ATTACKS[name]() for number, name in attackers.items()}
        for number, attack in attacks.items():
            colluders = [other for other, name in attackers.items() if name == attackers[number]]
            attack.enlist(colluders.index(number), len(colluders))
        return [Role(n, mixing, mixing.sampled, mixing.shared, True, attacks.get(n)) for n in range(nodes)]
    alone = replace(mixing, local=mixing.local + mixing.external, external=0, mix="whole")
    prompts = mixing.sampled * (nodes if arm == "isolated_total" else 1)
    return [Role(n, alone, prompts, mixing.shared, False) for n in range(nodes) if n not in attackers]
