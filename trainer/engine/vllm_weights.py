"""Weights for vLLM: with an output layer of their own, also where the model ties it to the embeddings.

vLLM loads tied models too, but replacing their weights in place leaves the old output layer behind. So it is told that
nothing is tied, and gets the embeddings a second time as `lm_head.weight`.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from shoal.trainer.model import Policy

HEAD = "lm_head.weight"


def untied_weights(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return the model's weights by name, the output layer always among them; no tensor is copied."""
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    if head is not None:
        weights.setdefault(HEAD, head.weight.detach())
    return list(weights.items())


def export_untied(policy: Policy, folder: str | Path) -> Path:
    """Write config and weights to a folder as those of an untied model, without a tokenizer."""
    target = Path(folder)
    config = policy.model.config.to_dict()  # type: ignore[union-attr]
    config |= {"tie_word_embeddings": False, "architectures": [type(policy.model).__name__]}
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    # Cloned: a file cannot hold two names for one tensor.
    weights = {name: tensor.cpu().clone().contiguous() for name, tensor in untied_weights(policy.model)}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target
