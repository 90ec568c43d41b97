"""Both engines: equal completions, log-probabilities as the library gives them, greedy text, ends and refresh."""

from itertools import chain

import pytest
import torch
from engine_models import LAYOUTS, gpt2, policy_of, random_model
from torch import nn
from transformers.generation import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from shoal.protocol.errors import UsageError
from shoal.trainer.engine import Completion, Engine, Sampling, make_engine, native
from shoal.trainer.engine.generate import GenerateEngine
from shoal.trainer.engine.native import NativeEngine
from shoal.trainer.model import DEFAULT_MODEL, Policy, load_policy

PROMPTS = ["reverse abc=", "copy ab=", "sort 31254=", "last xyzxyz="]
SETTINGS = [
    Sampling(),
    Sampling(temperature=0.0),
    Sampling(temperature=0.7, top_k=5),
    Sampling(temperature=1.3, top_p=0.8),
    Sampling(top_k=8, top_p=0.5, max_tokens=3),
]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(DEFAULT_MODEL)


def run(engine: Engine, sampling: Sampling, seed: int = 1, group_size: int = 5) -> list[Completion]:
    groups = engine.sample(PROMPTS, group_size, sampling, torch.Generator().manual_seed(seed))
    assert [len(group) for group in groups] == [group_size] * len(PROMPTS)
    return list(chain.from_iterable(groups))


def forced_logps(model: nn.Module, prompt: list[int], ids: list[int], sampling: Sampling) -> list[float]:
    """Log-probabilities by one forward pass and the library's own filters."""
    scores = model(input_ids=torch.tensor([prompt + ids]), use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    if sampling.temperature not in {0, 1}:
        scores = TemperatureLogitsWarper(sampling.temperature)(None, scores)
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(None, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(None, scores)
    return scores.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()


def test_the_default_model_gets_the_native_engine_and_others_the_library_s(policy: Policy) -> None:
    assert isinstance(make_engine(policy), NativeEngine)
    assert isinstance(make_engine(policy_of(gpt2())), GenerateEngine)


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_both_engines_give_the_same_completions(policy: Policy, sampling: Sampling) -> None:
    ours, theirs = run(NativeEngine(policy), sampling), run(GenerateEngine(policy), sampling)
    assert [(c.ids, c.finished, c.text) for c in ours] == [(c.ids, c.finished, c.text) for c in theirs]
    for own, other in zip(ours, theirs, strict=True):
        assert own.logps == pytest.approx(other.logps, abs=1e-4)


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@torch.no_grad()
def test_log_probabilities_are_those_of_the_sampling_distribution(policy: Policy, sampling: Sampling) -> None:
    for at, completion in enumerate(run(NativeEngine(policy), sampling)):
        prompt = policy.encode_prompt(PROMPTS[at // 5])
        wanted = forced_logps(policy.model, prompt, completion.ids, sampling)
        assert completion.logps == pytest.approx(wanted, abs=1e-4)


@torch.no_grad()
def test_another_layout_samples_with_right_log_probabilities() -> None:
    policy = policy_of(gpt2())
    sampling = Sampling(temperature=1.3, top_k=20, max_tokens=6)
    completions = run(make_engine(policy), sampling)
    assert len({tuple(c.ids) for c in completions}) > 10
    for at, completion in enumerate(completions):
        prompt = policy.encode_prompt(PROMPTS[at // 5])
        assert completion.logps == pytest.approx(forced_logps(policy.model, prompt, completion.ids, sampling), abs=1e-4)


@pytest.mark.parametrize("layout", ["llama_biased", "qwen3"])
def test_greedy_is_the_library_s_greedy(layout: str) -> None:
    policy = policy_of(random_model(LAYOUTS[layout]()))
    completions = run(NativeEngine(policy), Sampling(temperature=0, max_tokens=10), group_size=1)
    for text, completion in zip(PROMPTS, completions, strict=True):
        prompt = policy.encode_prompt(text)
        out = policy.model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), do_sample=False, max_new_tokens=10
        )
        assert completion.ids == out[0, len(prompt) :].tolist()


def test_first_tokens_come_as_often_as_softmax_says(policy: Policy) -> None:
    draws = 8192
    sampling = Sampling(temperature=1.5, max_tokens=1)
    (group,) = NativeEngine(policy).sample(["reverse abc="], draws, sampling, torch.Generator().manual_seed(5))
    counts = torch.bincount(torch.tensor([c.ids[0] for c in group]), minlength=64).double()
    ids = torch.tensor([policy.encode_prompt("reverse abc=")])
    probs = (policy.model(input_ids=ids).logits[0, -1].double() / 1.5).softmax(-1).detach()
    often = probs * draws >= 5
    observed = torch.cat([counts[often], counts[~often].sum()[None]])
    wanted = draws * torch.cat([probs[often], probs[~often].sum()[None]])
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    freedom = len(wanted) - 1
    assert freedom >= 8
    # Wilson and Hilferty: the cube root of chi-square / freedom is nearly normal; 3.3 deviations is one in 2,000.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.3 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert statistic < limit


def test_an_end_mark_is_part_of_the_ids_and_nothing_follows_it(policy: Policy) -> None:
    completions = run(NativeEngine(policy), Sampling(max_tokens=4), group_size=32)
    finished = [c for c in completions if c.finished]
    cut = [c for c in completions if not c.finished]
    assert len(finished) > 5
    assert len(cut) > 5
    assert all(c.ids[-1] == 1 and 1 not in c.ids[:-1] and len(c.ids) <= 4 for c in finished)
    assert all(len(c.ids) == 4 and 1 not in c.ids for c in cut)
    assert all(len(c.logps) == len(c.ids) and "<eos>" not in c.text for c in completions)


def test_every_end_mark_of_the_model_ends_a_completion(policy: Policy) -> None:
    letter = policy.encode_prompt("c")[0]
    both = policy_of(policy.model)
    both.eos_ids = (1, letter)
    for engine in (NativeEngine(both), GenerateEngine(both)):
        completions = run(engine, Sampling())
        assert any(c.ids[-1] == letter for c in completions)
        assert all(c.finished and letter not in c.ids[:-1] for c in completions if c.ids[-1] == letter)


def test_equal_seeds_give_equal_completions_and_others_do_not(policy: Policy) -> None:
    engine = NativeEngine(policy)
    torch.manual_seed(0)
    first = run(engine, Sampling(), seed=3)
    torch.manual_seed(99)  # the library-wide generator has no say
    assert run(engine, Sampling(), seed=3) == first
    assert run(engine, Sampling(), seed=4) != first


def test_working_in_parts_changes_nothing(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(NativeEngine(policy), Sampling())
    monkeypatch.setattr(native, "MAX_ROWS", 7)  # one prompt at a time
    parts = run(NativeEngine(policy), Sampling())
    assert [c.ids for c in parts] == [c.ids for c in whole]


def test_after_an_update_refresh_makes_the_engine_follow(policy: Policy) -> None:
    fresh = policy_of(random_model(LAYOUTS["llama"]()))
    engine = NativeEngine(fresh)
    before = run(engine, Sampling())
    with torch.no_grad():
        for parameter in fresh.model.parameters():
            parameter.mul_(0.5)
    engine.refresh()
    after = run(engine, Sampling())
    assert after == run(NativeEngine(fresh), Sampling())
    assert after != before


def test_no_prompts_give_no_groups(policy: Policy) -> None:
    for engine in (NativeEngine(policy), GenerateEngine(policy)):
        assert engine.sample([], 4, Sampling(), torch.Generator()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_p": 0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"max_tokens": 0},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Sampling(**wrong)
