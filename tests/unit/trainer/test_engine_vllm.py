"""The engine over vLLM at its boundary: what vLLM is told, what becomes of its answers, and each way to fail.

No vLLM is needed here; `benchmarks/vllm_cpu.py` runs the real one.
"""

import random
import sys
from typing import Any

import pytest
import torch
from fake_vllm import FakeVllm

from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.trainer.engine import Completion, Sampling, VllmOptions, make_engine
from shoal.trainer.engine.native import NativeEngine
from shoal.trainer.engine.vllm import EngineFault, VllmEngine
from shoal.trainer.engine.vllm_guard import GuardedEngine
from shoal.trainer.engine.vllm_weights import untied_weights
from shoal.trainer.model import DEFAULT_MODEL, Policy, load_policy

PROMPTS = ["reverse abc=", "copy ab="]


@pytest.fixture
def policy() -> Policy:
    return load_policy(DEFAULT_MODEL)


@pytest.fixture
def vllm(policy: Policy) -> FakeVllm:
    return FakeVllm(policy)


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sampled(vllm: FakeVllm) -> tuple[list[Any], list[Any]]:
    """Requests and parameters of the last call that sampled."""
    return [what for name, what in vllm.calls if name == "generate"][-1]


def test_vllm_starts_on_untied_weights_without_tokenizer_and_defaults(policy: Policy, vllm: FakeVllm) -> None:
    VllmEngine(policy, VllmOptions(kv_cache_mb=3, max_rows=7, context=50), vllm)
    assert vllm.config["tie_word_embeddings"] is False
    assert torch.equal(vllm.weights["lm_head.weight"], vllm.weights["model.embed_tokens.weight"])
    told = vllm.arguments
    assert (told["skip_tokenizer_init"], told["generation_config"], told["dtype"]) == (True, "vllm", "float32")
    assert told["logprobs_mode"] == "processed_logprobs"
    assert (told["max_model_len"], told["max_num_seqs"], told["kv_cache_memory_bytes"]) == (50, 7, 3 * 2**20)
    assert not told["enable_sleep_mode"]


def test_starting_leaves_threads_and_generators_as_they_were(policy: Policy, vllm: FakeVllm) -> None:
    torch.manual_seed(17)
    setter, state, plain = torch.set_num_threads, torch.get_rng_state(), random.getstate()
    VllmEngine(policy, library=vllm)
    assert torch.set_num_threads is setter
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == plain


def test_every_setting_reaches_every_row(policy: Policy, vllm: FakeVllm) -> None:
    engine = VllmEngine(policy, library=vllm)
    engine.sample(PROMPTS, 2, Sampling(temperature=0.7, top_p=0.8, top_k=5, max_tokens=9), generator())
    prompts, params = sampled(vllm)
    ids = [policy.encode_prompt(text) for text in PROMPTS]
    assert [prompt["prompt_token_ids"] for prompt in prompts] == [ids[0], ids[0], ids[1], ids[1]]
    for param in params:
        assert (param.temperature, param.top_p, param.top_k, param.max_tokens) == (0.7, 0.8, 5, 9)
        assert (param.logprobs, param.detokenize, param.stop_token_ids) == (0, False, list(policy.eos_ids))


def test_each_row_has_its_seed_from_the_generator(policy: Policy, vllm: FakeVllm) -> None:
    engine, seeds = VllmEngine(policy, library=vllm), []
    for start in (3, 3, 4):
        engine.sample(PROMPTS, 4, Sampling(), generator(start))
        seeds.append([param.seed for param in sampled(vllm)[1]])
    assert seeds[0] == seeds[1] != seeds[2]
    assert len(set(seeds[0])) == 8


def test_answers_become_completions_with_their_end_mark(policy: Policy, vllm: FakeVllm) -> None:
    engine = VllmEngine(policy, library=vllm)
    (end,) = policy.eos_ids
    vllm.answers = [[5, 4, end], [3, 4]]
    groups = engine.sample(["copy ab="], 2, Sampling(), generator())
    assert groups == [
        [
            Completion([5, 4, end], [-0.5, -1.5, -2.5], True, policy.decode([5, 4])),
            Completion([3, 4], [-0.5, -1.5], False, policy.decode([3, 4])),
        ]
    ]
    assert engine.sample([], 2, Sampling(), generator()) == []


def test_a_row_ends_where_the_context_does(policy: Policy, vllm: FakeVllm) -> None:
    engine = VllmEngine(policy, VllmOptions(context=16), vllm)
    tokens = len(policy.encode_prompt("copy ab="))
    engine.sample(["copy ab="], 1, Sampling(max_tokens=12), generator())
    assert sampled(vllm)[1][0].max_tokens == min(12, 16 - tokens) < 12
    with pytest.raises(EngineFault, match="leaves no room") as caught:
        engine.sample(["copy " + "ab" * 8 + "="], 1, Sampling(), generator())
    assert (caught.value.reason, caught.value.lasting) == ("vllm_prompt_too_long", False)


def test_a_refresh_hands_over_every_weight_and_forgets_cached_prompts(policy: Policy, vllm: FakeVllm) -> None:
    engine = VllmEngine(policy, library=vllm)
    with torch.no_grad():
        for p in policy.model.parameters():
            p.add_(0.05)
    vllm.calls.clear()
    engine.refresh()
    assert [name for name, _ in vllm.calls[:2]] == ["reload_weights", "reset_prefix_cache"]
    wanted = dict(untied_weights(policy.model))
    assert wanted.keys() == vllm.weights.keys()
    assert all(torch.equal(vllm.weights[name], tensor) for name, tensor in wanted.items())
    assert engine.fit is not None
    assert engine.fit.mean < 1e-5


@pytest.mark.parametrize("left", ["lm_head.weight", "model.norm.weight"])
def test_a_reload_that_leaves_one_weight_behind_is_noticed(policy: Policy, vllm: FakeVllm, left: str) -> None:
    """The trap of tied embeddings: the old output layer stays, and nothing says so."""
    engine = VllmEngine(policy, library=vllm)
    vllm.stale.add(left)
    with torch.no_grad():
        for p in policy.model.parameters():
            p.add_(0.01 * torch.randn(p.shape, generator=generator()))
    with pytest.raises(EngineFault, match="nats a token") as caught:
        engine.refresh()
    assert caught.value.reason == "vllm_mismatch"


def test_probes_are_taken_from_what_was_sampled(policy: Policy, vllm: FakeVllm) -> None:
    engine = VllmEngine(policy, library=vllm)
    vllm.answers = [[5, 4, 1]] * 8
    engine.sample(PROMPTS, 4, Sampling(), generator())
    vllm.calls.clear()
    engine.refresh()
    prompts = [prompt["prompt_token_ids"] for prompt in sampled(vllm)[0]]
    assert prompts == [[*policy.encode_prompt(text), 5, 4, 1] for text in PROMPTS for _ in range(2)]


@pytest.mark.parametrize(
    ("call", "error", "reason"),
    [
        ("LLM", ValueError("no room for the cache"), "vllm_start"),
        ("LLM", RuntimeError(""), "vllm_start"),
        ("generate", RuntimeError("dead"), "vllm_sample"),
        ("reload_weights", KeyError("lm_head"), "vllm_reload"),
    ],
)
def test_what_vllm_raises_becomes_a_fault_with_a_reason(
    policy: Policy, vllm: FakeVllm, call: str, error: Exception, reason: str
) -> None:
    vllm.fails[call] = error

    def use() -> None:
        VllmEngine(policy, library=vllm).refresh()

    with pytest.raises(EngineFault) as caught:
        use()
    assert (caught.value.reason, caught.value.lasting) == (reason, True)
    assert isinstance(caught.value, EnvironmentFault)


@pytest.mark.parametrize("changes", [{"dtype": "float16"}, {"kv_cache_mb": 0}, {"max_rows": 0}, {"context": 0}])
def test_sizes_are_checked(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        VllmOptions(**changes)


def guarded(policy: Policy, vllm: FakeVllm, counts: list[str]) -> GuardedEngine:
    def start(policy: Policy, options: VllmOptions) -> VllmEngine:
        return VllmEngine(policy, options, vllm)

    return GuardedEngine(policy, VllmOptions(context=20), make_engine, lambda a, b: counts.append(f"{a}/{b}"), start)


def test_without_vllm_the_torch_engine_samples_and_the_reason_is_counted(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)  # as if it were not installed
    counts: list[str] = []
    engine: Any = make_engine(policy, VllmOptions(), lambda layer, reason: counts.append(f"{layer}/{reason}"))
    assert counts == ["engine/vllm_missing"]
    assert isinstance(engine.active, NativeEngine)
    got = engine.sample(PROMPTS, 3, Sampling(), generator())
    assert got == make_engine(policy).sample(PROMPTS, 3, Sampling(), generator())


def test_a_fault_while_sampling_falls_back_within_the_call(policy: Policy, vllm: FakeVllm) -> None:
    counts: list[str] = []
    engine = guarded(policy, vllm, counts)
    assert isinstance(engine.active, VllmEngine)
    vllm.fails["generate"] = RuntimeError("dead")
    spent, plain = generator(), generator()
    got = engine.sample(PROMPTS, 3, Sampling(), spent)
    assert got == make_engine(policy).sample(PROMPTS, 3, Sampling(), plain)
    assert torch.equal(spent.get_state(), plain.get_state())
    vllm.fails.clear()
    engine.sample(PROMPTS, 3, Sampling(), generator())
    assert counts == ["engine/vllm_sample"]
    assert isinstance(engine.active, NativeEngine)


def test_one_long_prompt_does_not_end_vllm(policy: Policy, vllm: FakeVllm) -> None:
    counts: list[str] = []
    engine = guarded(policy, vllm, counts)
    long = "copy " + "ab" * 10 + "="
    assert engine.sample([long], 2, Sampling(), generator()) == make_engine(policy).sample(
        [long], 2, Sampling(), generator()
    )
    assert counts == ["engine/vllm_prompt_too_long"]
    assert isinstance(engine.active, VllmEngine)


def test_the_spare_engine_takes_over_weights_too(policy: Policy, vllm: FakeVllm) -> None:
    counts: list[str] = []
    engine = guarded(policy, vllm, counts)
    engine.sample(["copy " + "ab" * 10 + "="], 2, Sampling(), generator())
    vllm.fails["reload_weights"] = RuntimeError("no")
    with torch.no_grad():
        for p in policy.model.parameters():
            p.mul_(0.5)
    engine.refresh()
    assert counts == ["engine/vllm_prompt_too_long", "engine/vllm_reload"]
    fresh = make_engine(policy).sample(PROMPTS, 2, Sampling(), generator())
    assert engine.sample(PROMPTS, 2, Sampling(), generator()) == fresh
