"""Log-probs and entropy of completion tokens under a causal language model."""

import torch
from torch import Tensor, nn

from shoal.trainer.batch import Batch

# Model families whose logits are the output embedding of the last hidden state and nothing else (no soft cap, no
# scale). For these the head runs on completion positions only; any other model goes through its whole forward.
PLAIN_HEADS = frozenset({"llama", "qwen2", "qwen3", "mistral", "smollm3", "phi3", "gpt2", "gpt_neox", "olmo2"})


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


def completion_logits(model: nn.Module, input_ids_BT: Tensor, predicts_BT: Tensor) -> Tensor:
    """Logits (N, V) at the N positions where `predicts_BT` is set, in row order."""
    config = getattr(model, "config", None)
    if getattr(config, "model_type", "") in PLAIN_HEADS:
        hidden_BTD = model.base_model(input_ids=input_ids_BT, use_cache=False).last_hidden_state
        return model.get_output_embeddings()(hidden_BTD[predicts_BT])
    return model(input_ids=input_ids_BT, use_cache=False).logits[predicts_BT]


def completion_logps(model: nn.Module, batch: Batch, with_entropy: bool) -> tuple[Tensor, Tensor | None]:
    """`logps_BT` and `entropy_BT` (nats) of completion tokens at each row's temperature; 0 elsewhere."""
    mask_BT = batch.completion_mask_BT
    # The token at position t is predicted at t-1. The last position predicts nothing, and a prompt is never empty.
    predicts_BT = mask_BT.roll(-1, dims=1)
    predicts_BT[:, -1] = False
    logits_NV = completion_logits(model, batch.input_ids_BT, predicts_BT)
    logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    if batch.temperature_B is not None:
        logits_NV = logits_NV / batch.temperature_B.repeat_interleave(mask_BT.sum(1))[:, None]
    targets_N = batch.input_ids_BT[mask_BT]
    logps_N, entropy_N = TokenStatistics.apply(logits_NV, targets_N, with_entropy)
    logps_BT = torch.zeros(mask_BT.shape, dtype=logps_N.dtype, device=mask_BT.device).masked_scatter(mask_BT, logps_N)
    if entropy_N is None:
        return logps_BT, None
    return logps_BT, torch.zeros_like(logps_BT).masked_scatter(mask_BT, entropy_N)
