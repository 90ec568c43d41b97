"""The engine for any causal model: `generate` of the library, with the draw made by our own sampler."""

from collections.abc import Sequence

import torch

from shoal.trainer.engine.sampling import Completion, Sampling, assemble, draw, uniforms
from shoal.trainer.model import Policy


class GenerateEngine:
    """Sample with the model's own `generate`: slower than the native engine, but for every layout."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def refresh(self) -> None:
        """Do nothing: this engine reads the policy's own weights."""

    @torch.no_grad()
    def sample(
        self, prompts: Sequence[str], group_size: int, sampling: Sampling, generator: torch.Generator
    ) -> list[list[Completion]]:
        """Return `group_size` completions for each prompt, equal for equal weights and generator state."""
        if not prompts:
            return []
        policy = self._policy
        encoded = [policy.encode_prompt(text) for text in prompts for _ in range(group_size)]
        ids_BT, mask_BT = _left_padded(encoded, policy.pad_id)
        uniform_BT = uniforms(len(encoded), sampling.max_tokens, generator).to(policy.device)
        chooser = _Chooser(sampling, uniform_BT)
        was_training = policy.model.training
        policy.model.eval()
        output_BT = policy.model.generate(
            input_ids=ids_BT.to(policy.device),
            attention_mask=mask_BT.to(policy.device),
            logits_processor=[chooser],
            do_sample=False,
            num_beams=1,
            max_new_tokens=sampling.max_tokens,
            eos_token_id=list(policy.eos_ids),
            pad_token_id=policy.pad_id,
        )
        policy.model.train(was_training)
        rows = assemble(policy, output_BT[:, ids_BT.shape[1] :], torch.stack(chooser.logps, 1))
        return [rows[start : start + group_size] for start in range(0, len(rows), group_size)]


class _Chooser:
    """A logits processor that draws the next token itself and leaves `generate` no other choice."""

    def __init__(self, sampling: Sampling, uniform_BT: torch.Tensor) -> None:
        self._sampling = sampling
        self._uniform_BT = uniform_BT
        self.logps: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        step = len(self.logps)
        ids_B, logps_B = draw(scores.float(), self._sampling, self._uniform_BT[:, step])
        self.logps.append(logps_B)
        return torch.full_like(scores, float("-inf")).scatter_(1, ids_B[:, None], 0.0)


def _left_padded(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows))
    ids = [[pad_id] * (width - len(row)) + list(row) for row in rows]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor(ids), torch.tensor(mask)
