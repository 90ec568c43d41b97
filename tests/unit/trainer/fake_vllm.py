"""A stand-in for the objects of vLLM that its documentation names: it records what it is told, and samples nothing."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from shoal.trainer.model import Policy


class FakeVllm:
    """The module: `LLM` starts on a folder of weights and answers from them, through the policy's own layout."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.arguments: dict[str, Any] = {}
        self.config: dict[str, Any] = {}
        self.weights: dict[str, Tensor] = {}
        self.calls: list[tuple[str, Any]] = []
        self.answers: list[list[int]] = []  # ids of each row of the next `generate`
        self.fails: dict[str, Exception] = {}
        self.stale: set[str] = set()  # weights that a reload leaves behind

    def SamplingParams(self, **given: Any) -> SimpleNamespace:  # noqa: N802 (the library's name)
        return SimpleNamespace(**given)

    def LLM(self, **given: Any) -> "FakeVllm":  # noqa: N802
        self._note("LLM", given)
        self.arguments = given
        folder = Path(given["model"])
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = load_file(folder / "model.safetensors")
        torch.manual_seed(given["seed"])  # as the real one does
        torch.set_num_threads = lambda _: None
        return self

    def generate(self, prompts: Sequence[Any], params: Sequence[Any], use_tqdm: bool) -> list[Any]:
        assert not use_tqdm
        self._note("generate", (prompts, params))
        rows = [self._row(prompt["prompt_token_ids"], param) for prompt, param in zip(prompts, params, strict=True)]
        self.answers = []
        return rows

    def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> list[None]:
        self._note(method, sorted(kwargs))
        for name, tensor in kwargs["weights_iterator"]:
            if name not in self.stale:
                self.weights[name] = tensor.clone()
        return [None]

    def reset_prefix_cache(self) -> bool:
        self._note("reset_prefix_cache", None)
        return True

    def _note(self, name: str, what: Any) -> None:
        self.calls.append((name, what))
        if name in self.fails:
            raise self.fails[name]

    def _row(self, prompt: list[int], param: Any) -> SimpleNamespace:
        if getattr(param, "prompt_logprobs", None) is not None:
            logps = self._logps(prompt)
            choices = [{token: SimpleNamespace(logprob=logp)} for token, logp in zip(prompt[1:], logps, strict=True)]
            return SimpleNamespace(prompt_logprobs=[None, *choices], outputs=[])
        ids = self.answers.pop(0) if self.answers else [5, 1]
        logprobs = [{token: SimpleNamespace(logprob=-0.5 - at)} for at, token in enumerate(ids)]
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=tuple(ids), logprobs=logprobs)])

    @torch.no_grad()
    def _logps(self, ids: list[int]) -> list[float]:
        """Log-probs of a sequence by the weights held here, the output layer being its own."""
        model: Any = self.policy.model
        own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict({name: self.weights[name] for name in own if name != "lm_head.weight"}, strict=False)
        hidden = model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, :-1]
        logits = hidden @ self.weights["lm_head.weight"].T
        model.load_state_dict(own)
        return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
