"""Which prompts a node samples in a round: derived from the swarm, the round and a slot, held-out ones skipped."""

from collections.abc import Iterator
from dataclasses import replace

from shoal.defenses.provenance import RebuiltPrompt
from shoal.protocol.errors import UsageError
from shoal.protocol.manifest import Manifest
from shoal.protocol.prompts import SHARED, DerivedPrompt, derive_prompt, resolve
from shoal.protocol.wire import PromptName
from shoal.trainer.tasks.base import Prompt, TaskInvariants, invariants_of
from shoal.trainer.tasks.registry import TaskRegistry


class LocalPrompts:
    """Rebuilds any prompt of the swarm from the manifest and the local task registry."""

    def __init__(self, manifest: Manifest, registry: TaskRegistry) -> None:
        self.manifest = manifest
        self.registry = registry

    def at(self, round: int, scope_key: bytes, slot: int) -> tuple[DerivedPrompt, Prompt]:
        """Return the prompt of a slot: of the whole swarm for `SHARED`, else of the node with that key."""
        derived = derive_prompt(self.manifest, round, scope_key, slot)
        index = resolve(derived, lambda task, seed, index: self.registry.prompt(task, seed, index).text)
        return replace(derived, index=index), self.registry.prompt(derived.task, derived.seed, index)

    def of_round(self, round: int, key: bytes, shared: range, own: range) -> Iterator[tuple[DerivedPrompt, Prompt]]:
        """Yield the shared prompts and then the own prompts of the given slots."""
        for slot in shared:
            yield self.at(round, SHARED, slot)
        for slot in own:
            yield self.at(round, key, slot)

    def invariants(self, task: str) -> TaskInvariants:
        """Return what must hold of any completion of a task."""
        return invariants_of(self.registry.task(task))

    def rebuild(self, round_number: int, scope_key: bytes, slot: int) -> RebuiltPrompt | None:
        """Return the prompt of a slot for the screen; None when this node lacks its task."""
        return _rebuilt(self.at(round_number, scope_key, slot)[1])

    def claimed(self, name: PromptName) -> RebuiltPrompt | None:
        """Return the prompt that a sender names; None when this node lacks its task."""
        try:
            return _rebuilt(self.registry.prompt(name.task, name.seed, name.index))
        except UsageError:
            return None


def _rebuilt(prompt: Prompt) -> RebuiltPrompt:
    return RebuiltPrompt.of(prompt.task, prompt.seed, prompt.index, prompt.text)
