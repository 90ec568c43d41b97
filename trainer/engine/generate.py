"""The engine for any causal model: `generate` of the library, with the draw made by our own sampler."""

import copy
from collections.abc import Sequence
from threading import Lock

import torch
from torch import nn

from shoal.trainer.engine import parked
from shoal.trainer.engine.parked import Enough, Parked
from shoal.trainer.engine.sampling import Completion, Sampling, draw
from shoal.trainer.model import Policy


class GenerateEngine:
    """Sample with the model's own `generate`: slower than the native engine, but for every layout."""

    def __init__(self, policy: Policy) -> None:
        """Sample from the policy's own model until `detach`."""
        self._policy, self._model, self._version = policy, policy.model, policy.version
        self._turn = Lock()  # refresh writes the weights that a pass in another thread reads

    def refresh(self) -> None:
        """Take over the policy's present weights."""
        with self._turn:
            self._version = self._policy.version
            if self._model is not self._policy.model:
                _take_over(self._model, self._policy.model)

    def detach(self) -> None:
        """Sample from a copy of the model, so that the policy may be trained meanwhile."""
        with self._turn:
            if self._model is self._policy.model:
                self._model = copy.deepcopy(self._policy.model).requires_grad_(False)
            _take_over(self._model, self._policy.model)
            self._version = self._policy.version

    def sample(
        self, prompts: Sequence[str], group_size: int, sampling: Sampling, generator: torch.Generator
    ) -> list[list[Completion]]:
        """Return `group_size` completions for each prompt, equal for equal weights and generator state."""
        rows = self.proceed(self.begin(prompts, group_size, sampling, generator), sampling)
        whole = [row for row in rows if isinstance(row, Completion)]
        return [whole[start : start + group_size] for start in range(0, len(whole), group_size)]

    def begin(
        self, prompts: Sequence[str], group_size: int, sampling: Sampling, generator: torch.Generator
    ) -> list[Parked]:
        """Return the rows of one `sample` call, waiting for their first token."""
        return parked.begin(self._policy, prompts, group_size, sampling, generator)

    def proceed(
        self, rows: Sequence[Parked], sampling: Sampling, enough: Enough | None = None
    ) -> list[Completion | Parked]:
        """Sample until every row is done, or `enough` says that the others shall be parked.

        Rows of equal length go together, and all of them to their end: `enough` is asked in between.
        """
        parked.require_draws(rows, sampling)
        drawn: list[tuple[list[int], list[float], bool]] = [([], [], False)] * len(rows)
        with self._turn:
            for taken in sorted({len(row.ids) for row in rows}, reverse=True):
                places = [at for at, row in enumerate(rows) if len(row.ids) == taken]
                for at, (ids, logps) in zip(places, self._generate([rows[at] for at in places], sampling), strict=True):
                    drawn[at] = ids, logps, True
                if enough is not None and enough([done for _, _, done in drawn]):
                    break
            return parked.extended(self._policy, rows, drawn, self._version)

    @torch.no_grad()
    def _generate(self, rows: Sequence[Parked], sampling: Sampling) -> list[tuple[list[int], list[float]]]:
        """Return the further ids and log-probabilities of rows that have equally many tokens."""
        policy, model, taken = self._policy, self._model, len(rows[0].ids)
        ids_BT, mask_BT = _left_padded([row.prompt_ids + row.ids for row in rows], policy.pad_id)
        uniform_BT = torch.tensor([row.draws[taken : sampling.max_tokens] for row in rows], device=policy.device)
        chooser = _Chooser(sampling, uniform_BT)
        was_training = model.training
        model.eval()
        output_BT = model.generate(  # type: ignore[operator]
            input_ids=ids_BT.to(policy.device),
            attention_mask=mask_BT.to(policy.device),
            logits_processor=[chooser],
            do_sample=False,
            num_beams=1,
            max_new_tokens=sampling.max_tokens - taken,
            eos_token_id=list(policy.eos_ids),
            pad_token_id=policy.pad_id,
        )
        model.train(was_training)
        new = output_BT[:, ids_BT.shape[1] :].tolist()
        logps = torch.stack(chooser.logps, 1).tolist()
        lengths = [_length(ids, policy.eos_ids) for ids in new]
        return [(a[:length], b[:length]) for a, b, length in zip(new, logps, lengths, strict=True)]


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


@torch.no_grad()
def _take_over(copied: nn.Module, source: nn.Module) -> None:
    for target, tensor in zip(copied.state_dict().values(), source.state_dict().values(), strict=True):
        target.copy_(tensor)


def _length(ids: Sequence[int], eos_ids: Sequence[int]) -> int:
    """Return how many ids there are up to the first end mark."""
    return next((at + 1 for at, token in enumerate(ids) if token in eos_ids), len(ids))


def _left_padded(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows))
    ids = [[pad_id] * (width - len(row)) + list(row) for row in rows]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor(ids), torch.tensor(mask)
