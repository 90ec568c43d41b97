"""Low-rank adapters (LoRA, arXiv 2106.09685) through peft: the base weights stay, W = W0 + alpha / r * B A is learned.

The policy's own model stays a plain one and always holds the merged weights, so engines, exports and hashes know
nothing of adapters. Training runs on a copy that shares every weight but those that adapters change.
"""

import copy
from typing import Any

import torch
from torch import nn

from shoal.protocol.errors import EnvironmentFault, UsageError
from shoal.trainer.algorithm import OptimizerSpec
from shoal.trainer.model import weights_hash

SEED = 0  # of the random half of each adapter: the same start in every process, whatever ran before
NAME = "default"


class Adapters:
    """Adapters beside a plain model: `model` is trained, `merge` writes what was learned into the plain one.

    Merged weights follow from base and adapters alone, never from earlier merged ones: no rounding piles up, and a
    resumed run has the same bits. `base` is the hash of the weights that the adapters belong to.
    """

    def __init__(self, plain: Any, spec: OptimizerSpec) -> None:
        """Put adapters beside the linear layers that `spec` names. Raises UsageError where there are none."""
        self.base = weights_hash(plain)
        # Own parameters over the same storage: freezing them must not freeze the policy's.
        shared = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in plain.parameters()}
        self.model = _injected(copy.deepcopy(plain, shared), spec)
        modules = dict(plain.named_modules())
        self._layers = [(module, modules[name]) for name, module in self.model.named_modules() if _adapted(module)]
        for adapted, _ in self._layers:
            weight = adapted.base_layer.weight
            adapted.base_layer.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)

    @torch.no_grad()
    def merge(self) -> None:
        """Set the plain model's weights to base plus what the adapters add."""
        for adapted, plain in self._layers:
            plain.weight.copy_(adapted.base_layer.weight + adapted.get_delta_weight(NAME))

    def check(self, base: bytes) -> None:
        """Raise UsageError when a checkpoint's adapters belong to other base weights."""
        if base != self.base:
            raise UsageError(
                f"the checkpoint's adapters belong to weights {base.hex()[:16]}, not {self.base.hex()[:16]}: load the "
                "model that they were trained beside"
            )


def _adapted(module: Any) -> bool:
    return hasattr(module, "base_layer") and hasattr(module, "get_delta_weight")


def _injected(model: Any, spec: OptimizerSpec) -> Any:
    try:
        from peft import LoraConfig, inject_adapter_in_model  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise EnvironmentFault("adapters need the package peft: pip install 'shoal-node[lora]'") from error
    rank = spec.lora_rank or 1
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank if spec.lora_alpha is None else spec.lora_alpha,  # type: ignore[arg-type]
        target_modules=list(spec.lora_targets) or "all-linear",
        lora_dropout=0.0,  # dropout would make the ratio noise
    )
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        try:
            model = inject_adapter_in_model(config, model, adapter_name=NAME)
        except ValueError as error:
            raise UsageError(f"no adapters for lora_targets {list(spec.lora_targets)}: {error}") from error
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    if any(hasattr(end, "base_layer") for end in ends):
        raise UsageError("lora_targets names an embedding or the output layer: adapters are for the layers between")
    return model
