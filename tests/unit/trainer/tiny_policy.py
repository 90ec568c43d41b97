"""A random Llama of a few thousand parameters, its rows, and the loss of a row by definition."""

from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from shoal.trainer.batch import Row

VOCABULARY = 32


def tiny_model(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "initializer_range": 0.3,
    }
    model = LlamaForCausalLM(LlamaConfig(**(sizes | changes)))
    # The library's norm computes in float32 whatever the weights are; a float64 comparison needs one that does not.
    for name, module in list(model.named_modules()):
        if isinstance(module, LlamaRMSNorm):
            model.set_submodule(name, nn.RMSNorm(module.weight.shape[0], eps=module.variance_epsilon))
    return model


class CharacterPolicy(SimpleNamespace):
    """A policy whose tokenizer gives one id a letter; EOS is 1, padding 0."""

    def encode_prompt(self, text: str) -> list[int]:
        return [2, *(ord(letter) - ord("a") + 3 for letter in text)]

    def encode_completion(self, text: str, finished: bool) -> list[int]:
        return self.encode_prompt(text)[1:] + [1] * finished


def tiny_policy(seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    model = tiny_model(seed, **changes).to(dtype)
    return CharacterPolicy(model=model, version=0, pad_id=0, device=torch.device("cpu"), dtype=dtype)


def random_rows(groups: int = 4, size: int = 4, seed: int = 0, **changes: Any) -> list[Row]:
    random = Random(seed)
    rows = []
    for uid in range(groups):
        prompt = [random.randrange(2, VOCABULARY) for _ in range(random.randint(1, 6))]
        for _ in range(size):
            completion = [random.randrange(1, VOCABULARY) for _ in range(random.randint(1, 7))]
            rows.append(Row(uid, list(prompt), completion, float(random.random() < 0.5), **changes))
    return rows


def row_logps(model: nn.Module, row: Row) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of one completion: the row alone, unpadded, through the whole model."""
    ids = torch.tensor([row.prompt_ids + row.completion_ids])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(row.prompt_ids) - 1 : -1]
    table = torch.log_softmax(logits / row.temperature, -1)
    return table.gather(1, torch.tensor(row.completion_ids)[:, None])[:, 0], -(table.exp() * table).sum(-1)


def gradients(trainer: Any) -> list[dict[str, Tensor]]:
    """Fills up with the gradient of each optimizer step of the trainer, after clipping."""
    taken: list[dict[str, Tensor]] = []

    def take(*_: Any) -> None:
        taken.append({name: p.grad.clone() for name, p in trainer.parameters.items()})

    trainer.optimizer.register_step_pre_hook(take)
    return taken


def weights(policy: Any) -> list[Tensor]:
    return [p.detach().clone() for p in policy.model.parameters()]


def same(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
