"""Own sets as they were sampled, packed for the blob store: what a replay needs and no announcement carries.

Token ids and log-probs stay as the engine gave them; the text of the prompt is rebuilt from its name.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import zstandard

from shoal.node.sets import OwnSet
from shoal.protocol.errors import EnvironmentFault
from shoal.protocol.prompts import DerivedPrompt
from shoal.trainer.engine import Completion

MOST_EXPANDED = 1 << 30  # bytes of one pass; the file's hash stands in the ledger, so this only bounds an accident
_TEXT = ("utf-8", "surrogatepass")  # a tokenizer may give half a character, which plain UTF-8 cannot say


class SampledSet(msgspec.Struct, array_like=True, frozen=True):
    """One own set; ids are uint32, log-probs and rewards float64 columns, little-endian, NaN where unscorable."""

    scope: int
    slot: int
    task: str
    seed: int
    index: int
    round: int
    policy_version: int
    texts: tuple[bytes, ...]
    finished: tuple[bool, ...]
    ids: tuple[bytes, ...]
    logps: tuple[bytes, ...]
    rewards: bytes

    @property
    def derived(self) -> DerivedPrompt:
        """The name of its prompt."""
        return DerivedPrompt(self.scope, self.slot, self.task, self.seed, self.index)

    @property
    def completions(self) -> tuple[Completion, ...]:
        """The completions as they were sampled."""
        columns = zip(self.ids, self.logps, self.finished, self.texts, strict=True)
        return tuple(
            Completion(
                np.frombuffer(ids, "<u4").tolist(), np.frombuffer(logps, "<f8").tolist(), done, text.decode(*_TEXT)
            )
            for ids, logps, done, text in columns
        )

    @property
    def graded(self) -> tuple[float, ...]:
        """The rewards, NaN where there was none."""
        return tuple(np.frombuffer(self.rewards, "<f8").tolist())


def pack_samples(own: Sequence[OwnSet]) -> bytes:
    """Return the own sets of one pass as one zstd frame of msgpack."""
    packed = msgspec.msgpack.encode([_sampled(own_set) for own_set in own])
    return zstandard.ZstdCompressor(level=3).compress(packed)


def unpack_samples(data: bytes) -> list[SampledSet]:
    """Read what `pack_samples` returned. Raises EnvironmentFault for other bytes."""
    try:
        if zstandard.get_frame_parameters(data).content_size > MOST_EXPANDED:
            raise EnvironmentFault(f"samples of more than {MOST_EXPANDED} bytes: no pass has so many")
        packed = zstandard.ZstdDecompressor().decompress(data)
        return msgspec.msgpack.decode(packed, type=list[SampledSet])
    except (zstandard.ZstdError, msgspec.MsgspecError) as error:
        raise EnvironmentFault(f"the own samples of a pass cannot be read: {error}") from error


def _sampled(own: OwnSet) -> SampledSet:
    derived, completions = own.derived, own.completions
    return SampledSet(
        scope=derived.scope,
        slot=derived.slot,
        task=derived.task,
        seed=derived.seed,
        index=derived.index,
        round=own.round,
        policy_version=own.policy_version,
        texts=tuple(completion.text.encode(*_TEXT) for completion in completions),
        finished=tuple(completion.finished for completion in completions),
        ids=tuple(np.asarray(completion.ids, "<u4").tobytes() for completion in completions),
        logps=tuple(np.asarray(completion.logps, "<f8").tobytes() for completion in completions),
        rewards=np.asarray(own.rewards, "<f8").tobytes(),
    )
