from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from shoal.protocol.identity import Identity
from shoal.protocol.manifest import Manifest, TaskEntry
from shoal.protocol.wire import MILLION, PromptName, Rollout, SamplerSettings, pack_floats, pack_ints


@pytest.fixture
def founder() -> Identity:
    return Identity.from_seed(bytes(range(32)))


@pytest.fixture
def manifest(founder: Identity) -> Manifest:
    return Manifest(
        name="vectors",
        founder=founder.key.hex(),
        genesis=1_700_000_000,
        round_seconds=60,
        tasks=[
            TaskEntry(name="strings/reverse", weight=3),
            TaskEntry(name="rg/chain_sum", config={"min_terms": 2, "ratio": 0.5}),
        ],
    )


@pytest.fixture
def rollout() -> Rollout:
    return Rollout(
        prompt=PromptName(scope=0, slot=5, task="strings/reverse", seed=7, index=300),
        prompt_hash=bytes([1]) * 32,
        lineage=bytes([2]) * 32,
        tokenizer=bytes([3]) * 32,
        sampler=SamplerSettings(temperature=MILLION, top_p=950_000, top_k=0, max_tokens=64),
        round=9,
        policy_version=70_000,
        completions=("olleh", "naïve 魚"),
        finish=bytes([0, 1]),
        token_ids=(pack_ints([1, 2, 3]), pack_ints([2**32 - 1])),
        logps=(pack_floats([-0.5, 0.0, -2.0]), pack_floats([-1.5])),
        mean_logps=pack_floats([-0.833, -1.5]),
        rewards=pack_floats([1.0, 0.0]),
    )


@pytest.fixture
def changed(rollout: Rollout) -> Callable[..., Rollout]:
    def change(**fields: Any) -> Rollout:
        return msgspec.structs.replace(rollout, **fields)

    return change
