"""Sampling and updating with a model, in tokens a second and as a share of the machine's products."""

import random
from dataclasses import dataclass, replace

import torch

from shoal.node.bench.rates import best
from shoal.trainer.algorithm import OptimizerSpec, recipe
from shoal.trainer.batch import Row
from shoal.trainer.engine import Sampling, make_engine
from shoal.trainer.model import Policy
from shoal.trainer.step import Trainer

PROMPT = "reverse abc="
GROUP = 8


@dataclass(frozen=True, slots=True)
class Speed:
    """Completion tokens a second at so many rows at once, and the share of the large product that it comes to."""

    rows: int
    tokens_per_second: float
    share: float


class Work:
    """A model with fixed work: completions of exactly `max_tokens` tokens in groups of 8.

    The model is trained at a rate of next to nothing, but it is trained: throw it away afterwards.
    """

    def __init__(self, policy: Policy, max_tokens: int, dtype: str = "float32") -> None:
        """Make engine and trainer."""
        vocabulary = policy.model.get_input_embeddings().num_embeddings  # type: ignore[operator]
        # No token has this id, so no completion ends early: the work is the same in every call.
        self.policy, self.vocabulary = replace(policy, eos_ids=(vocabulary,)), vocabulary
        self.max_tokens, self.device = max_tokens, str(policy.device)
        self.engine = make_engine(self.policy)
        spec = recipe("grpo", max_tokens=max_tokens)
        self.trainer = Trainer(self.policy, spec, OptimizerSpec(lr=1e-9, dtype=dtype))
        self.prompt_ids = self.policy.encode_prompt(PROMPT)

    def sampling(self, rows: int, seconds: float, peak: float) -> Speed:
        """Measure sampling `rows` completions at once; `peak` is the rate of the large product."""
        sampling, generator = Sampling(max_tokens=self.max_tokens), torch.Generator().manual_seed(0)
        prompts = [PROMPT] * (rows // GROUP)
        taken = best(lambda: self.engine.sample(prompts, GROUP, sampling, generator), seconds, self.device)
        tokens = rows * self.max_tokens
        return Speed(rows, tokens / taken, 2.0 * self._weights(tokens, 0) / taken / peak)

    def updating(self, rows: int, seconds: float, peak: float) -> Speed:
        """Measure an update on `rows` completions, old log-probs included."""
        taken = best(lambda: self.trainer.update(self._rows(rows)), seconds, self.device)
        tokens, prompts = rows * self.max_tokens, rows // GROUP * len(self.prompt_ids)
        return Speed(rows, tokens / taken, 6.0 * self._weights(tokens, prompts) / taken / peak)

    def _rows(self, count: int) -> list[Row]:
        """Random completions, half of each group right: every row has signal, and what they say costs nothing."""
        draw = random.Random(count)
        return [
            Row(
                uid=number // GROUP,
                prompt_ids=self.prompt_ids,
                completion_ids=[draw.randrange(self.vocabulary) for _ in range(self.max_tokens)],
                reward=float(number % 2),
            )
            for number in range(count)
        ]

    def _weights(self, tokens: int, prompts: int) -> float:
        """Weights that these tokens meet in matrix products; prompts do not meet the output layer."""
        model = self.policy.model
        head = model.get_output_embeddings().weight  # type: ignore[operator]
        inner = sum(
            p.numel() for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n and p is not head
        )
        return float(inner * (tokens + prompts) + head.numel() * tokens)
