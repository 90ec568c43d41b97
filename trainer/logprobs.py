"""Log-probs and entropy of completion tokens under a causal language model."""

import torch
from torch import Tensor, nn

from shoal.trainer.packing import Batch

# Model families whose logits are the output embedding of the last hidden state and nothing else (no soft cap, no
# scale). For these the head runs on completion positions only; any other model goes through its whole forward.
PLAIN_HEADS = frozenset({"llama", "qwen2", "qwen3", "mistral", "smollm3", "phi3", "gpt2", "gpt_neox", "olmo2"})
# Families that were checked to give the same logits for completions that share one encoded prompt.
PACKABLE = frozenset({"llama", "qwen2", "qwen3"})


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
    def backward(ctx, grad_logps_N: Tensor | None, grad_entropy_N: Tensor | None = None):
        logits_NV, targets_N, log_norm_N1, entropy_N = ctx.saved_tensors
        log_p_NV = logits_NV - log_norm_N1
        p_NV = log_p_NV.exp()
        grad_NV = torch.zeros_like(p_NV)
        if grad_entropy_N is not None:
            grad_NV = p_NV * (log_p_NV + entropy_N[:, None]) * -grad_entropy_N[:, None]
        if grad_logps_N is not None:
            grad_NV = torch.addcmul(grad_NV, p_NV, grad_logps_N[:, None], value=-1)
            grad_NV.scatter_add_(1, targets_N[:, None], grad_logps_N[:, None])
        return grad_NV, None, None


def shares_prompts(model: nn.Module) -> bool:
    """Whether the model takes several completions after one prompt: full attention, masks and positions as given."""
    config = getattr(model, "config", None)
    plain = getattr(config, "model_type", "") in PACKABLE and getattr(config, "sliding_window", None) is None
    return plain and getattr(config, "_attn_implementation", "") == "sdpa"


def completion_logits(model: nn.Module, batch: Batch) -> Tensor:
    """Logits (N, V) that predict the completion tokens of the batch, in row order."""
    inputs = {"input_ids": batch.input_ids_SL, "use_cache": False}
    if batch.attention_S1LL is not None:
        inputs |= {"attention_mask": batch.attention_S1LL, "position_ids": batch.position_ids_SL}
    if getattr(getattr(model, "config", None), "model_type", "") in PLAIN_HEADS:
        hidden_SLD = model.base_model(**inputs).last_hidden_state
        return model.get_output_embeddings()(hidden_SLD.flatten(0, 1).index_select(0, batch.predictors_N))
    return model(**inputs).logits.flatten(0, 1).index_select(0, batch.predictors_N)


def completion_logps(model: nn.Module, batch: Batch, with_entropy: bool) -> tuple[Tensor, Tensor | None]:
    """`logps_BT` and `entropy_BT` (nats) of completion tokens at each row's temperature; 0 elsewhere."""
    mask_BT = batch.completion_mask_BT
    logits_NV = completion_logits(model, batch)
    logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    if batch.temperature_B is not None:
        logits_NV = logits_NV / batch.temperature_B.repeat_interleave(mask_BT.sum(1))[:, None]
    logps_N, entropy_N = TokenStatistics.apply(logits_NV, batch.targets_N, with_entropy)
    zeros_BT = torch.zeros(mask_BT.shape, dtype=logps_N.dtype, device=mask_BT.device)
    logps_BT = zeros_BT.masked_scatter(mask_BT, logps_N)
    return logps_BT, None if entropy_N is None else zeros_BT.masked_scatter(mask_BT, entropy_N)
