"""Tasks by name: the built-in families, plug-ins, named sets, and the registry that a node draws its prompts from."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

from shoal.protocol.errors import UsageError
from shoal.trainer.tasks.base import Prompt, Task
from shoal.trainer.tasks.gym import REFUSED, GymTask, gym_names
from shoal.trainer.tasks.jsonl import JsonlTask
from shoal.trainer.tasks.strings import KINDS, StringTask

PLUGIN_GROUP = "shoal.tasks"
PROMPTS_KEPT = 4096  # a round's prompts of every peer, several times over; an entry is a few KB at most


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What rebuilds a task in another process: plain data, safe to write as JSON."""

    name: str
    weight: int = 1
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    data_sha256: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a plain dictionary; `TaskSpec(**d)` reads it back."""
        return asdict(self)


class SpecLike(Protocol):
    """Anything with the fields of a `TaskSpec`: a manifest's task entry is one."""

    @property
    def name(self) -> str: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def data_sha256(self) -> str: ...


TASK_SETS: dict[str, tuple[TaskSpec, ...]] = {
    "strings": tuple(TaskSpec(f"strings/{kind}") for kind in KINDS),
    # the nine generators of arXiv 2509.08721, at their default settings
    "sapo9": tuple(
        TaskSpec(f"rg/{name}")
        for name in (
            "base_conversion",
            "basic_arithmetic",
            "arc_1d",
            "bf",
            "propositional_logic",
            "fraction_simplification",
            "decimal_arithmetic",
            "calendar_arithmetic",
            "binary_matrix",
        )
    ),
}


def _make_strings(name: str, config: Mapping[str, Any]) -> Task:
    kind = name.removeprefix("strings/")
    if kind not in KINDS:
        raise _unknown(name)
    if config:
        raise UsageError(f"task {name}: takes no config, got {', '.join(sorted(config))}")
    return StringTask(kind)


def _make_gym(name: str, config: Mapping[str, Any]) -> Task:
    generator = name.removeprefix("rg/")
    if generator in REFUSED:
        raise UsageError(f"task {name} cannot be used: {REFUSED[generator]}")
    if generator not in gym_names():
        raise _unknown(name)
    return GymTask(generator, config)


FAMILIES: dict[str, Callable[[str, Mapping[str, Any]], Task]] = {
    "strings": _make_strings,
    "rg": _make_gym,
    "jsonl": lambda name, config: JsonlTask(name, config),
}


def plugins() -> dict[str, EntryPoint]:
    """Return the installed plug-in tasks by name; the entry point is a callable (name, config) → Task."""
    return {entry.name: entry for entry in entry_points(group=PLUGIN_GROUP)}


def known_tasks() -> list[str]:
    """Return every task name that can be made without a data file, sorted."""
    built_in = [f"strings/{kind}" for kind in KINDS] + [f"rg/{name}" for name in gym_names()]
    return sorted({*built_in, *plugins()})


def _unknown(name: str) -> UsageError:
    near = difflib.get_close_matches(name, [*TASK_SETS, *known_tasks()], n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return UsageError(f"unknown task {name!r}{hint} (`shoal tasks` lists all; data sets are jsonl/NAME)")


def make_task(name: str, config: Mapping[str, Any] | None = None, data_sha256: str = "") -> Task:
    """Return the task called `name`.

    Families are strings/KIND, rg/GENERATOR and jsonl/NAME; other names are looked up among the plug-ins of the entry
    point group `shoal.tasks`. Raises UsageError for unknown names (with the nearest known ones) and bad config.
    """
    config = dict(config or {})
    if data_sha256:
        config["sha256"] = data_sha256
    family = FAMILIES.get(name.partition("/")[0])
    if family is not None and "/" in name:
        return family(name, config)
    plugin = plugins().get(name)
    if plugin is None:
        raise _unknown(name)
    return plugin.load()(name, config)


class TaskRegistry:
    """The tasks of one swarm: every prompt that this node draws or rebuilds comes from here."""

    def __init__(self, specs: Iterable[SpecLike]) -> None:
        self.specs = tuple(specs)
        if not self.specs:
            raise UsageError("no tasks: name at least one")
        self._tasks: dict[str, Task] = {}
        for spec in self.specs:
            if spec.name in self._tasks:
                raise UsageError(f"task {spec.name} is named twice")
            self._tasks[spec.name] = make_task(spec.name, spec.config, spec.data_sha256)
        self._cached = lru_cache(maxsize=PROMPTS_KEPT)(self._build)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the task names in the order in which they were given."""
        return tuple(self._tasks)

    def task(self, name: str) -> Task:
        """Return the task called `name`; raises UsageError when this registry lacks it."""
        if name not in self._tasks:
            raise UsageError(f"task {name!r} is not one of this swarm's: {', '.join(self._tasks)}")
        return self._tasks[name]

    def prompt(self, name: str, seed: int, index: int) -> Prompt:
        """Return the prompt (name, seed, index), from the cache of the last few thousand when it is there."""
        return self._cached(name, seed, index)

    def _build(self, name: str, seed: int, index: int) -> Prompt:
        return self.task(name).prompt(seed, index)
