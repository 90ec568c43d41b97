"""Rows laid out as sequences: nothing lost, and the log-probs of each row alone."""

from typing import Any

import pytest
import torch
from tiny_policy import VOCABULARY, random_rows, row_logps, tiny_model
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from shoal.trainer import logprobs
from shoal.trainer.batch import Row
from shoal.trainer.engine.decoder import supports
from shoal.trainer.logprobs import TokenStatistics, completion_logps
from shoal.trainer.packing import PACK_TOKENS, micro_batches, pack_rows, pad_packs

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "head_dim": 8,
    "initializer_range": 0.3,
}


def llama() -> nn.Module:
    return tiny_model(num_key_value_heads=1)


def qwen2() -> nn.Module:
    return Qwen2ForCausalLM(Qwen2Config(**SIZES))


def qwen3() -> nn.Module:
    return Qwen3ForCausalLM(Qwen3Config(**SIZES))


def gpt2() -> nn.Module:
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3))


def headed() -> nn.Module:
    """A model that no list knows: it goes through its whole forward."""
    model = gpt2()
    model.config.model_type = "unheard_of"
    return model


@pytest.mark.parametrize(
    ("make", "shares"), [(llama, True), (qwen2, True), (qwen3, True), (gpt2, False), (headed, False)]
)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_and_entropies_are_those_of_each_row_alone(make: Any, shares: bool, temperature: float) -> None:
    torch.manual_seed(3)
    model = make().double().eval()
    assert supports(model) is shares
    rows = random_rows(groups=3, size=3, seed=5, temperature=temperature)
    rows[0].temperature = 1.3
    packs = pack_rows(rows, shares)
    batch = pad_packs([[rows[i] for i in pack] for pack in packs], pad_id=0, shared=shares)
    logps, entropies = completion_logps(model, batch, with_entropy=True)
    assert entropies is not None
    assert len(packs) == (3 if shares else 9)
    for place, index in enumerate(i for pack in packs for i in pack):
        length = len(rows[index].completion_ids)
        expected_logps, expected_entropies = row_logps(model, rows[index])
        assert torch.allclose(logps[place, :length], expected_logps, atol=1e-12)
        assert torch.allclose(entropies[place, :length], expected_entropies, atol=1e-12)
        assert not logps[place, length:].any()


def test_the_gradient_through_a_shared_prompt_is_that_of_each_row_alone() -> None:
    model, rows = llama().double(), random_rows(groups=2, size=3)
    parameters = list(model.parameters())
    expected = torch.autograd.grad(sum(row_logps(model, row)[0].sum() for row in rows), parameters)
    batch = pad_packs([rows[:3], rows[3:]], pad_id=0)
    got = torch.autograd.grad(completion_logps(model, batch, with_entropy=False)[0].sum(), parameters)
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(got, expected, strict=True))


def test_the_padding_token_does_not_matter() -> None:
    model, rows = gpt2().double().eval(), random_rows(groups=3, size=2)
    packs = [[row] for row in rows]
    first, _ = completion_logps(model, pad_packs(packs, pad_id=0, shared=False), with_entropy=False)
    second, _ = completion_logps(model, pad_packs(packs, pad_id=9, shared=False), with_entropy=False)
    assert torch.equal(first, second)


@pytest.mark.parametrize("lengths", [(1, 1, 1), (1, 4, 2), (3, 3, 3)])
def test_completions_of_every_length_follow_their_prompt(lengths: tuple[int, ...]) -> None:
    model = llama().double()
    rows = [Row(0, [2, 3], list(range(4, 4 + length)), 0.0) for length in lengths]
    logps, _ = completion_logps(model, pad_packs([rows], pad_id=0), with_entropy=False)
    for place, row in enumerate(rows):
        assert torch.allclose(logps[place, : lengths[place]], row_logps(model, row)[0], atol=1e-12)


def test_checkpointing_changes_no_gradient() -> None:
    model, rows = llama().double(), random_rows(groups=2, size=3)
    batch = pad_packs([rows[:3], rows[3:]], pad_id=0)
    found = []
    for checkpointing in (False, True):
        total = completion_logps(model, batch, with_entropy=False, checkpointing=checkpointing)[0].sum()
        found.append(torch.autograd.grad(total, list(model.parameters())))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logits_in_chunks_give_the_same_values_and_gradients(
    monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    model, rows = llama().double(), random_rows(groups=2, size=3, temperature=temperature)
    batch = pad_packs([rows[:3], rows[3:]], pad_id=0)
    weights = torch.randn(2, *batch.completion_mask_BT.shape, dtype=torch.float64)
    found = []
    for kept in (1 << 24, 0):
        monkeypatch.setattr(logprobs, "KEPT_LOGITS", kept)
        monkeypatch.setattr(logprobs, "CHUNK_LOGITS", 3 * VOCABULARY)
        logps, entropies = completion_logps(model, batch, with_entropy=True)
        assert entropies is not None
        total = (logps * weights[0]).sum() + (entropies * weights[1]).sum()
        found.append((logps, entropies, *torch.autograd.grad(total, list(model.parameters()))))
    assert all(torch.allclose(a, b, atol=1e-11) for a, b in zip(*found, strict=True))


class Largest(TorchDispatchMode):
    """Notes the most numbers that any tensor has which an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (list, tuple)) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.most = max(self.most, tensor.numel())
        return out


def test_no_tensor_holds_the_logits_of_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "KEPT_LOGITS", 0)
    monkeypatch.setattr(logprobs, "CHUNK_LOGITS", 1 << 13)
    model = tiny_model(vocab_size=4096)
    rows = [Row(0, [2, 3], [5] * 40, 0.0) for _ in range(8)]
    with Largest() as seen:
        completion_logps(model, pad_packs([rows], pad_id=0), with_entropy=True)[0].sum().backward()
    assert 10 * seen.most < 320 * 4096, "the logits of all 320 tokens at once"
    assert seen.most <= 4096 * 16  # the output embedding and its gradient


def test_token_statistics_have_the_gradient_of_plain_autograd() -> None:
    torch.manual_seed(0)
    logits = (torch.randn(5, 7, dtype=torch.float64) * 3).requires_grad_()
    targets = torch.tensor([0, 6, 3, 3, 1])
    assert torch.autograd.gradcheck(lambda z: TokenStatistics.apply(z, targets, True), (logits,))
    assert torch.autograd.gradcheck(lambda z: TokenStatistics.apply(z, targets, False)[0], (logits,))
    table = torch.log_softmax(logits, -1)
    logps, entropy = TokenStatistics.apply(logits, targets, True)
    assert torch.allclose(logps, table[torch.arange(5), targets])
    assert torch.allclose(entropy, -(table.exp() * table).sum(-1))


def test_long_completions_are_not_crowded_into_one_sequence() -> None:
    rows = [Row(0, [1, 2], [3] * 200, 0.0) for _ in range(5)]
    assert pack_rows(rows, share_prompts=True) == [[0, 1], [2, 3], [4]]
    assert PACK_TOKENS == 512
    long_prompt = [Row(0, [1] * 2000, [3] * 900, 0.0) for _ in range(3)]
    assert pack_rows(long_prompt, share_prompts=True) == [[0, 1], [2]]


def test_only_equal_prompts_share() -> None:
    rows = [Row(uid, prompt, [3], 0.0) for uid, prompt in enumerate([[1, 2], [1, 3], [1, 2], [1]])]
    assert pack_rows(rows, share_prompts=True) == [[0, 2], [1], [3]]


@pytest.mark.parametrize("share_prompts", [True, False])
@pytest.mark.parametrize("budget", [1, 12, 40, 10_000])
def test_micro_batches_hold_every_row_once_within_the_budget(budget: int, share_prompts: bool) -> None:
    rows = random_rows(groups=6, size=3, seed=2)
    batches = micro_batches(rows, budget, share_prompts)
    assert sorted(i for packs in batches for pack in packs for i in pack) == list(range(18))
    for packs in batches:
        widths = [len(rows[p[0]].prompt_ids) + sum(len(rows[i].completion_ids) for i in p) for p in packs]
        assert len(packs) == 1 or max(widths) * len(packs) <= budget
        assert len(packs) == 1 or max(widths) * len(packs) - sum(widths) <= budget // 4
    assert batches == micro_batches(rows, budget, share_prompts)
