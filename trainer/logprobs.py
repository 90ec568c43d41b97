"""Log-probs and entropy of completion tokens under a causal language model."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from shoal.trainer.forward import Layout, hidden_states
from shoal.trainer.packing import Batch

# Model families whose logits are the output embedding of the last hidden state and nothing else (no soft cap, no
# scale). For these the head runs on completion positions only; any other model goes through its whole forward.
PLAIN_HEADS = frozenset({"llama", "qwen2", "qwen3", "mistral", "smollm3", "phi3", "gpt2", "gpt_neox", "olmo2"})
KEPT_LOGITS = 1 << 24
"""Logits that one forward keeps for its backward; more are computed in chunks, and again going back."""
CHUNK_LOGITS = 1 << 23
"""Logits of one chunk: 32 MB in float32, whatever the batch and the vocabulary."""


class TokenStatistics(torch.autograd.Function):
    """Log-prob of each target and, if wanted, entropy of each distribution, from logits (N, V).

    Plain autograd would keep four tensors of N x V; this keeps the logits and makes the softmax again going back:
    dl/dz = onehot - p, dH/dz = -p (log p + H).
    """

    @staticmethod
    def forward(ctx, logits_NV: Tensor, targets_N: Tensor, with_entropy: bool):
        log_norm_N1 = logits_NV.logsumexp(-1, keepdim=True)
        logps_N = (logits_NV.gather(1, targets_N[:, None]) - log_norm_N1).squeeze(1)
        entropy_N = None
        if with_entropy:
            entropy_N = log_norm_N1.squeeze(1) - ((logits_NV - log_norm_N1).exp() * logits_NV).sum(-1)
        ctx.save_for_backward(logits_NV, targets_N, log_norm_N1, entropy_N)
        ctx.set_materialize_grads(False)
        return logps_N, entropy_N

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx, grad_logps_N: Tensor | None, grad_entropy_N: Tensor | None = None
    ):
        logits_NV, targets_N, log_norm_N1, entropy_N = ctx.saved_tensors
        entropy = None if grad_entropy_N is None else (grad_entropy_N, entropy_N)
        return _logit_gradient(logits_NV - log_norm_N1, targets_N, grad_logps_N, entropy), None, None


def _logit_gradient(
    log_p_NV: Tensor, targets_N: Tensor, grad_logps_N: Tensor | None, entropy: tuple[Tensor, Tensor] | None
) -> Tensor:
    """Gradient of the logits from that of the log-probs and of the entropies (with the entropies themselves).

    It is onehot g - p (g + h (log p + H)); `log_p_NV` is used up, since another tensor of that size costs more than
    the arithmetic.
    """
    if entropy is None:
        grad_NV = log_p_NV.exp_().mul_(0.0 if grad_logps_N is None else -grad_logps_N[:, None])
    else:
        grad_entropy_N, entropy_N = entropy
        p_NV = log_p_NV.exp()
        pull_NV = log_p_NV.add_(entropy_N[:, None]).mul_(grad_entropy_N[:, None])
        grad_NV = (pull_NV if grad_logps_N is None else pull_NV.add_(grad_logps_N[:, None])).mul_(p_NV.neg_())
    if grad_logps_N is not None:
        grad_NV.scatter_add_(1, targets_N[:, None], grad_logps_N[:, None])
    return grad_NV


class HeadStatistics(torch.autograd.Function):
    """What `TokenStatistics` gives, from hidden states (N, D) and the output embedding (V, D), a chunk at a time.

    Never more than `CHUNK_LOGITS` logits are in memory: going back, each chunk's are computed again.
    """

    @staticmethod
    def forward(
        ctx, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, temperature_N: Tensor | None, entropy: bool
    ):
        logps, entropies = [], []
        for part in _chunks(len(hidden_ND), len(weight_VD)):
            logits_nV = _scaled(hidden_ND[part] @ weight_VD.t(), temperature_N, part)
            log_norm_n1 = logits_nV.logsumexp(-1, keepdim=True)
            logps.append((logits_nV.gather(1, targets_N[part, None]) - log_norm_n1).squeeze(1))
            if entropy:
                expected_n = ((logits_nV - log_norm_n1).exp_() * logits_nV).sum(-1)
                entropies.append(log_norm_n1.squeeze(1) - expected_n)
        entropy_N = torch.cat(entropies) if entropy else None
        ctx.save_for_backward(hidden_ND, weight_VD, targets_N, temperature_N, entropy_N)
        ctx.set_materialize_grads(False)
        return torch.cat(logps), entropy_N

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx, grad_logps_N: Tensor | None, grad_entropy_N: Tensor | None = None
    ):
        hidden_ND, weight_VD, targets_N, temperature_N, entropy_N = ctx.saved_tensors
        grad_hidden_ND = torch.empty_like(hidden_ND)
        wide = torch.promote_types(weight_VD.dtype, torch.float32)
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=wide)
        for part in _chunks(len(hidden_ND), len(weight_VD)):
            logits_nV = _scaled(hidden_ND[part] @ weight_VD.t(), temperature_N, part)
            grad_nV = _logit_gradient(
                logits_nV.sub_(logits_nV.logsumexp(-1, keepdim=True)),
                targets_N[part],
                None if grad_logps_N is None else grad_logps_N[part],
                None if grad_entropy_N is None else (grad_entropy_N[part], entropy_N[part]),
            )
            if temperature_N is not None:
                grad_nV = grad_nV / temperature_N[part, None]
            grad_nV = grad_nV.to(weight_VD.dtype)
            grad_hidden_ND[part] = grad_nV @ weight_VD
            if grad_weight_VD.dtype == weight_VD.dtype:
                grad_weight_VD.addmm_(grad_nV.t(), hidden_ND[part])
            else:  # half precision: the sum over chunks stays in float32
                grad_weight_VD.add_(grad_nV.t() @ hidden_ND[part])
        return grad_hidden_ND, grad_weight_VD.to(weight_VD.dtype), None, None, None


def _chunks(rows: int, vocabulary: int) -> list[slice]:
    step = max(1, CHUNK_LOGITS // vocabulary)
    return [slice(start, start + step) for start in range(0, rows, step)]


def _scaled(logits_nV: Tensor, temperature_N: Tensor | None, part: slice) -> Tensor:
    """Logits in float32 or wider at each row's temperature."""
    logits_nV = logits_nV.to(torch.promote_types(logits_nV.dtype, torch.float32))
    return logits_nV if temperature_N is None else logits_nV / temperature_N[part, None]


def token_logits(model: nn.Module, batch: Batch) -> Iterator[tuple[slice, Tensor]]:
    """Logits (n, V) that predict the completion tokens, at their temperature, chunk by chunk in row order."""
    temperature_N = temperature_of_tokens(batch)
    hidden_ND, head = hidden_and_head(model, batch)
    if head is None:
        yield slice(0, len(hidden_ND)), _scaled(hidden_ND, temperature_N, slice(None))
        return
    for part in _chunks(len(hidden_ND), head.weight.shape[0]):
        yield part, _scaled(head(hidden_ND[part]), temperature_N, part)


def hidden_and_head(model: Any, batch: Batch, checkpointing: bool = False) -> tuple[Tensor, Any]:
    """Hidden states (N, D) that predict the completion tokens and the head that reads them.

    For a model of unknown make it is the logits themselves (N, V), and None.
    """
    if isinstance(batch.inputs, Layout):
        hidden_ND = hidden_states(model, batch.inputs, batch.predictors_N, checkpointing)
        return hidden_ND, model.get_output_embeddings()
    inputs = {"input_ids": batch.inputs, "use_cache": False}
    if getattr(getattr(model, "config", None), "model_type", "") in PLAIN_HEADS:
        hidden_SLD = model.base_model(**inputs).last_hidden_state
        return hidden_SLD.flatten(0, 1).index_select(0, batch.predictors_N), model.get_output_embeddings()
    return model(**inputs).logits.flatten(0, 1).index_select(0, batch.predictors_N), None


def temperature_of_tokens(batch: Batch) -> Tensor | None:
    """The temperature of each completion token (N); None where it is 1 for all of them."""
    if batch.temperature_B is None:
        return None
    return batch.temperature_B.repeat_interleave(batch.completion_mask_BT.sum(1))


def completion_logps(
    model: nn.Module, batch: Batch, with_entropy: bool, checkpointing: bool = False
) -> tuple[Tensor, Tensor | None]:
    """`logps_BT` and `entropy_BT` (nats) of completion tokens at each row's temperature; 0 elsewhere."""
    mask_BT, temperature_N = batch.completion_mask_BT, temperature_of_tokens(batch)
    hidden_ND, head = hidden_and_head(model, batch, checkpointing)
    if head is None or getattr(head, "bias", None) is not None or len(hidden_ND) * len(head.weight) <= KEPT_LOGITS:
        logits_NV = _scaled(hidden_ND if head is None else head(hidden_ND), temperature_N, slice(None))
        logps_N, entropy_N = TokenStatistics.apply(logits_NV, batch.targets_N, with_entropy)
    else:
        weight_VD = head.weight.to(_head_dtype(hidden_ND))
        hidden_ND = hidden_ND.to(weight_VD.dtype)
        logps_N, entropy_N = HeadStatistics.apply(hidden_ND, weight_VD, batch.targets_N, temperature_N, with_entropy)
    zeros_BT = torch.zeros(mask_BT.shape, dtype=logps_N.dtype, device=mask_BT.device)
    logps_BT = zeros_BT.masked_scatter(mask_BT, logps_N)
    return logps_BT, None if entropy_N is None else zeros_BT.masked_scatter(mask_BT, entropy_N)


def _head_dtype(hidden_ND: Tensor) -> torch.dtype:
    """The type that the head computes in: autocast's where it is on, which does not reach into a custom function."""
    kind = hidden_ND.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden_ND.dtype
