"""The native engine: batched generation for Llama-like models, one prefill a prompt and one small pass a token."""

from collections.abc import Sequence

import torch

from shoal.trainer.engine.decoder import Decoder
from shoal.trainer.engine.sampling import Completion, Sampling, assemble, draw, uniforms
from shoal.trainer.model import Policy

MAX_ROWS = 512  # rows in flight: bounds the cache; the draws do not depend on it


class NativeEngine:
    """Sample with fused weights and a preallocated cache; equal to the engine over `generate`, and faster."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._decoder = Decoder(policy.model)
        self._eos = torch.tensor(policy.eos_ids, device=policy.device)

    def refresh(self) -> None:
        """Take over the policy's present weights."""
        self._decoder.refresh()

    @torch.inference_mode()
    def sample(
        self, prompts: Sequence[str], group_size: int, sampling: Sampling, generator: torch.Generator
    ) -> list[list[Completion]]:
        """Return `group_size` completions for each prompt, equal for equal weights and generator state."""
        encoded = [self._policy.encode_prompt(text) for text in prompts]
        uniform_BT = uniforms(len(prompts) * group_size, sampling.max_tokens, generator).to(self._policy.device)
        groups: list[list[Completion]] = []
        at_once = max(1, MAX_ROWS // group_size)
        for start in range(0, len(encoded), at_once):
            part = encoded[start : start + at_once]
            draws_BT = uniform_BT[start * group_size : (start + len(part)) * group_size]
            rows = assemble(self._policy, *self._generate(part, group_size, sampling, draws_BT))
            groups += [rows[at : at + group_size] for at in range(0, len(rows), group_size)]
        return groups

    def _generate(
        self, encoded: Sequence[Sequence[int]], group_size: int, sampling: Sampling, uniform_BT: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return sampled ids and log-probabilities [B, max_tokens]; what follows a row's end mark has no meaning."""
        ids_PT, first_P = self._right_aligned(encoded)
        columns = ids_PT.shape[1] + sampling.max_tokens - 1  # the last sampled token is never read
        logits_BV, cache = self._decoder.prefill(ids_PT, first_P)
        logits_BV, cache = logits_BV.repeat_interleave(group_size, 0), cache.expanded(group_size, columns)
        out_BT = torch.full(uniform_BT.shape, int(self._eos[0]), device=self._policy.device)
        logps_BT = torch.zeros(uniform_BT.shape, device=self._policy.device)
        rows_B = torch.arange(len(out_BT), device=self._policy.device)
        alive_B = torch.ones_like(rows_B, dtype=torch.bool)
        for step in range(sampling.max_tokens):
            ids_B, logp_B = draw(logits_BV, sampling, uniform_BT[rows_B, step])
            out_BT[rows_B, step], logps_BT[rows_B, step] = ids_B, logp_B
            alive_B &= ~torch.isin(ids_B, self._eos)
            left = int(alive_B.sum())
            if left == 0 or step + 1 == sampling.max_tokens:
                break
            if 2 * left <= len(rows_B):  # dropping rows copies the cache: worth it when half of them are done
                keep = alive_B.nonzero()[:, 0]
                cache, rows_B, ids_B, alive_B = cache.rows(keep), rows_B[keep], ids_B[keep], alive_B[keep]
            logits_BV = self._decoder.step(ids_B, cache)
        return out_BT, logps_BT

    def _right_aligned(self, encoded: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        width = max(map(len, encoded))
        padded = [[self._policy.pad_id] * (width - len(row)) + list(row) for row in encoded]
        first = [width - len(row) for row in encoded]
        device = self._policy.device
        return torch.tensor(padded, device=device), torch.tensor(first, device=device)
