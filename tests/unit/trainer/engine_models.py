"""Small random models of several layouts, with the tokenizer of the default model, as policies."""

from typing import Any

import torch
import transformers
from torch import nn

from shoal.trainer.model import DEFAULT_MODEL, Policy

_COMMON: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # large enough that layouts differ in more than rounding
    "eos_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": None,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LAYOUTS: dict[str, Any] = {
    "llama": lambda: transformers.LlamaConfig(**_COMMON, num_key_value_heads=4),
    "llama_grouped_tied": lambda: transformers.LlamaConfig(**_COMMON, num_key_value_heads=2, tie_word_embeddings=True),
    "llama_biased": lambda: transformers.LlamaConfig(
        **_COMMON, num_key_value_heads=1, attention_bias=True, mlp_bias=True
    ),
    "llama3_rotation": lambda: transformers.LlamaConfig(**_COMMON, num_key_value_heads=2, rope_parameters=_LLAMA3),
    "qwen2": lambda: transformers.Qwen2Config(**_COMMON, num_key_value_heads=2),
    "qwen3": lambda: transformers.Qwen3Config(**_COMMON, num_key_value_heads=2, head_dim=8),
    "mistral": lambda: transformers.MistralConfig(**_COMMON, num_key_value_heads=2, sliding_window=None),
}
WINDOWED = {
    "mistral": lambda: transformers.MistralConfig(**_COMMON, num_key_value_heads=2, sliding_window=8),
    "qwen2": lambda: transformers.Qwen2Config(
        **_COMMON, num_key_value_heads=2, use_sliding_window=True, sliding_window=8, max_window_layers=0
    ),
}


def gpt2() -> nn.Module:
    """A layout that the native engine does not know."""
    torch.manual_seed(3)
    config = transformers.GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=64, eos_token_id=1, bos_token_id=None
    )
    return transformers.GPT2LMHeadModel(config).eval()


def random_model(config: Any, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A model of random weights, the same on every call; biases and norms are random too, not zero and one."""
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.normal_(1.0 if "norm" in name else 0.0, 0.3)
    return model


def policy_of(model: nn.Module, tokenizer: Any = None) -> Policy:
    """A policy of this model with the default model's tokenizer."""
    return Policy(
        model=model,
        tokenizer=tokenizer or transformers.AutoTokenizer.from_pretrained(DEFAULT_MODEL),
        device=torch.device("cpu"),
        dtype=next(model.parameters()).dtype,
        lineage=bytes(32),
        tokenizer_hash=bytes(32),
        eos_ids=(1,),
        pad_id=0,
    )
