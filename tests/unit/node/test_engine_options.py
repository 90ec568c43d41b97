"""The choice of the engine: checked whole, and what it makes of the importance cap."""

from dataclasses import replace

import pytest

from shoal.node.engine_options import EngineOptions, check_engine
from shoal.node.options import RunConfig, check
from shoal.protocol.errors import UsageError


@pytest.mark.parametrize(
    ("options", "dtype", "cap"),
    [
        (EngineOptions(), "float32", None),
        (EngineOptions(), "bfloat16", 2.0),
        (EngineOptions(engine="vllm"), "float32", 2.0),
        (EngineOptions(engine="vllm", importance_cap=0.0), "float32", None),
        (EngineOptions(importance_cap=5.0), "float32", 5.0),
    ],
)
def test_the_cap_follows_the_engine_unless_it_is_given(options: EngineOptions, dtype: str, cap: float | None) -> None:
    assert options.cap(dtype) == cap


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"importance_cap": 0.5}, "--importance-cap"),
        ({"importance_cap": float("nan")}, "--importance-cap"),
        ({"importance_cap": float("inf")}, "--importance-cap"),
        ({"engine_cache_mb": 0}, "--engine-cache-mb"),
        ({"engine_rows": 0}, "--engine-rows"),
        ({"engine_context": 0}, "--engine-context"),
    ],
)
def test_each_mistake_is_named(changes: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check(RunConfig(engine=replace(EngineOptions(), **changes)))  # type: ignore[arg-type]


def test_vllm_takes_the_first_device_alone() -> None:
    check_engine(EngineOptions(engine="vllm"), "cuda:0")
    check_engine(EngineOptions(), "cuda:1")
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES"):
        check_engine(EngineOptions(engine="vllm"), "cuda:1")
