"""Which of the other swarm's questions this node can score: those of its own tasks, rebuilt here, and no others."""

from collections.abc import Iterator
from dataclasses import dataclass

from shoal.node.draw import LocalPrompts
from shoal.protocol.errors import ProtocolError
from shoal.protocol.prompts import SHARED, is_held_out, prompt_hash
from shoal.trainer.tasks.answers import ask
from shoal.trainer.tasks.base import Prompt
from shoal.trainer.tasks.registry import TaskRegistry, TaskSpec
from shoal.trainer.verify import Grader

DATA_TASK = "jsonl/bridge"
MOST_SLOTS = 64
MOST_LINES = 100_000


def data_registry(path: str, sha256: str) -> TaskRegistry:
    """Return the registry of the data set that the bridge was given. Raises UsageError or EnvironmentFault."""
    return TaskRegistry([TaskSpec(DATA_TASK, config={"path": path}, data_sha256=sha256)])


@dataclass(frozen=True, slots=True)
class Scorable:
    """A prompt of this node's own making, and the registry and verifier that belong to it."""

    prompt: Prompt
    registry: TaskRegistry
    grader: Grader


class Questions:
    """Finds the prompt of a question by the hash of its text. Nothing else that a peer says picks a task."""

    def __init__(self, local: LocalPrompts, grader: Grader, key: bytes, own_slots: int) -> None:
        self._local, self._grader, self._key, self._own_slots = local, grader, key, own_slots
        self._rounds: dict[int, dict[bytes, Prompt]] = {}
        self._data: dict[bytes, Prompt] = {}
        self._data_tasks: tuple[TaskRegistry, Grader] | None = None

    def add_data(self, registry: TaskRegistry, grader: Grader) -> None:
        """Know the questions of a data set too, the held-out ones left out."""
        [name] = registry.names
        task = registry.task(name)
        count = min(len(task), MOST_LINES)  # type: ignore[arg-type]  # a data set has a length, a generator has none
        self._data = _by_text(task.prompt(0, index) for index in range(count))
        self._data_tasks = (registry, grader)

    def refresh(self, rounds: range) -> None:
        """Know the shared and the own prompts of these rounds of this node's swarm, and forget those of others."""
        self._rounds = {round: self._rounds.get(round) or _by_text(self._drawn(round)) for round in rounds}

    def find(self, question: str) -> Scorable | None:
        """Return the prompt that a question is the text of, alone or as this node puts it to its model."""
        for text in (question, ask(question)):
            name = prompt_hash(text)
            for prompts in self._rounds.values():
                if name in prompts:
                    return Scorable(prompts[name], self._local.registry, self._grader)
            if name in self._data and self._data_tasks:
                return Scorable(self._data[name], *self._data_tasks)
        return None

    def close(self) -> None:
        """End the verifier of the data set; the node's own is the node's."""
        if self._data_tasks:
            self._data_tasks[1].close()

    def _drawn(self, round: int) -> Iterator[Prompt]:
        shared = min(self._local.manifest.limits.shared_slots, MOST_SLOTS)
        own = min(self._local.manifest.limits.own_slots, self._own_slots, MOST_SLOTS)
        for scope_key, slots in ((SHARED, shared), (self._key, own)):
            for slot in range(slots):
                try:
                    yield self._local.at(round, scope_key, slot)[1]
                except ProtocolError:  # a data set of which all texts around this place are held out
                    continue


def question_of(prompt: Prompt) -> str:
    """Return a prompt as the bare question where its task has one, else as the policy reads it."""
    bare = prompt.entry.get("question")
    return bare if isinstance(bare, str) and bare else prompt.text


def _by_text(prompts: Iterator[Prompt]) -> dict[bytes, Prompt]:
    """Return prompts by the hashes of their texts and of their bare questions; held-out ones are refused."""
    found: dict[bytes, Prompt] = {}
    for prompt in prompts:
        if is_held_out(prompt_hash(prompt.text)):
            continue
        for text in (prompt.text, question_of(prompt)):
            found.setdefault(prompt_hash(text), prompt)
    return found
