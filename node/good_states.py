"""Good states: weights and optimizer of a few earlier passes, to go back to when the canary finds something.

Those of a small model stay in memory and travel with the checkpoint; those of a large one lie on the disk, each in a
folder of its own.
"""

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from shoal.defenses.verdict import Counters
from shoal.protocol.errors import EnvironmentFault
from shoal.trainer.checkpoint import load_latest, save
from shoal.trainer.step import Trainer

log = logging.getLogger(__name__)

KEPT = 3  # a rise is found some passes after it began: one state may be too young, two in a row hardly ever
IN_MEMORY = 256 * 2**20  # bytes for all of them: beyond that the disk is the place

Tensors = dict[str, Tensor]


@dataclass(slots=True)
class Good:
    """The state after `at` passes; its tensors, or None when they lie on the disk."""

    at: int
    version: int
    tensors: Tensors | None


class GoodStates:
    """A few states that were found clean, oldest first. Without a folder a large model keeps none."""

    def __init__(self, counters: Counters, reach: int, folder: Path | None = None, in_memory: int = IN_MEMORY) -> None:
        """`reach` is how many passes the oldest state may lie back, `in_memory` the bytes for all of them."""
        self.counters = counters
        self.reach = reach
        self.folder = folder
        self.in_memory = in_memory
        self.kept: list[Good] = []

    def keep(self, at: int, trainer: Trainer) -> None:
        """Keep the trainer's present state, as that after `at` passes; another one gives way."""
        tensors, plain = trainer.state_dict()
        good = Good(at, plain["version"], tensors)
        if KEPT * sum(tensor.nbytes for tensor in tensors.values()) > self.in_memory:
            if self.folder is None:
                self.counters.add("canary", "state_too_large")
                return
            if not self._write(good):
                return
            good.tensors = None
        self.kept.append(good)
        if len(self.kept) > KEPT:
            self._remove(self.kept.pop(self._spare()))

    def _spare(self) -> int:
        """Return the place of the state to part with: the oldest when it lies too far back, else the one that leaves
        the smallest gap."""
        if self.kept[-1].at - self.kept[0].at > self.reach:
            return 0
        return min(range(1, len(self.kept) - 1), key=lambda at: self.kept[at + 1].at - self.kept[at - 1].at)

    def back_to(self, since: int, trainer: Trainer) -> Good | None:
        """Set the trainer to the newest state that is no younger than `since` passes, else to the oldest one.

        What came after it goes: it is no good any more. The policy's version does not fall, it goes on by one. Returns
        None, and changes nothing, when no state can be read.
        """
        old = [good for good in self.kept if good.at <= since]
        for good in reversed(old or self.kept[:1]):
            tensors = self._read(good)
            if tensors is None:
                self.counters.add("canary", "state_lost")
                self.kept.remove(good)
                continue
            trainer.load(tensors, {"version": trainer.policy.version + 1})
            for younger in (other for other in self.kept if other.at > good.at):
                self._remove(younger)
            self.kept = [other for other in self.kept if other.at <= good.at]
            return good
        return None

    def tensors(self) -> Tensors:
        """Return the tensors that are in memory, by the pass and their name."""
        return {f"{good.at}/{name}": tensor for good in self.kept for name, tensor in (good.tensors or {}).items()}

    def state(self) -> list[Any]:
        """Return all but the tensors as plain lists."""
        return [[good.at, good.version, good.tensors is not None] for good in self.kept]

    def restore(self, tensors: Tensors, state: list[Any]) -> None:
        """Take over what `tensors` and `state` returned."""
        self.kept = []
        for at, version, in_memory in state:
            prefix = f"{at}/"
            own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
            self.kept.append(Good(at, version, own if in_memory else None))

    def _place(self, good: Good) -> Path:
        assert self.folder is not None
        return self.folder / f"pass-{good.at:010d}"

    def _write(self, good: Good) -> bool:
        assert good.tensors is not None
        try:
            save(self._place(good), good.version, good.tensors, {"at": good.at}, keep=1)
        except EnvironmentFault as error:
            self.counters.add("canary", "state_not_kept")
            log.warning("%s", error)
            return False
        return True

    def _read(self, good: Good) -> Tensors | None:
        if good.tensors is not None:
            return good.tensors
        saved = None if self.folder is None else load_latest(self._place(good))
        return None if saved is None else saved.tensors

    def _remove(self, good: Good) -> None:
        if good.tensors is None and self.folder is not None:
            shutil.rmtree(self._place(good), ignore_errors=True)
