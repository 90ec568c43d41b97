"""One update, top to bottom: rewards → advantages → rows that train → old log-probs → minibatches → optimizer steps."""

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from shoal.protocol.errors import UsageError
from shoal.trainer.advantages import ASSIGNS
from shoal.trainer.algorithm import DEFAULT_OPTIMIZER, RECIPES, AlgorithmSpec, OptimizerSpec
from shoal.trainer.batch import Row
from shoal.trainer.engine.decoder import supports
from shoal.trainer.evidence import NO_EVIDENCE, RowEvidence, row_evidence, token_statistics
from shoal.trainer.fit import room
from shoal.trainer.logprobs import completion_logps
from shoal.trainer.lora import Adapters
from shoal.trainer.mismatch import measure
from shoal.trainer.model import Policy, take_over
from shoal.trainer.objectives import Denominators, loss
from shoal.trainer.packing import Batch, Pack, micro_batches, pad_packs
from shoal.trainer.report import Scores, StepReport, silence, summary
from shoal.trainer.selection import Cap, Selection, deal_minibatches, select

CHEAP_VOCABULARY = 4096  # entropy is reported even without a bonus where the softmax costs next to nothing


class Trainer:
    """Trains a policy in place. Raises UsageError for a policy whose weights are not float32 or wider."""

    def __init__(
        self,
        policy: Policy,
        algorithm: AlgorithmSpec = RECIPES["grpo"],
        optimizer: OptimizerSpec = DEFAULT_OPTIMIZER,
    ) -> None:
        """Make the optimizer, and the frozen reference when the algorithm has a KL term."""
        self.policy, self.algorithm, self.optimizer_spec = policy, algorithm, optimizer
        self.adapters = Adapters(policy.model, optimizer) if optimizer.lora_rank is not None else None
        self.model = self.adapters.model if self.adapters else policy.model
        # Dropout would make the ratio noise: the policy that sampled had none.
        self.model.eval()
        self.parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if any(p.dtype in (torch.bfloat16, torch.float16) for p in self.parameters.values()):
            raise UsageError('weights in half precision lose updates: load in float32 and set dtype = "bfloat16" here')
        self.dtype = next(iter(self.parameters.values())).dtype
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(),
            lr=optimizer.lr,
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            fused=True,
        )
        self.reference: nn.Module | None = None
        if algorithm.beta:
            self.reference = copy.deepcopy(policy.model).requires_grad_(False)
        config = getattr(self.model, "config", None)
        self.max_length: int = getattr(config, "max_position_embeddings", None) or 1 << 30
        self.share_prompts = supports(policy.model)  # else the library's forward, one sequence a row
        self.room = room(self.model, optimizer, may_checkpoint=self.share_prompts)
        if optimizer.checkpointing and not self.share_prompts:
            raise UsageError(f"checkpointing is for Llama-like models, not {type(self.model).__name__}: leave it off")
        self.with_entropy = bool(algorithm.entropy) or getattr(config, "vocab_size", math.inf) <= CHEAP_VOCABULARY

    def score(self, rows: Sequence[Row]) -> Scores:
        """Own log-probs of each completion at the row's temperature, in one pass; kept on the row for `update`.

        They are the old log-probs of the coming update and the evidence of the likelihood defence. A row scored at the
        present policy version is not scored again.
        """
        version = self.policy.version
        missing = [row for row in rows if row.scored_version != version or row.old_logps is None]
        readable = [row for row in missing if self.fits(row)]
        for row, logps in zip(readable, self._logps(self.model, readable), strict=True):
            row.old_logps, row.scored_version = logps, version
        return Scores([torch.empty(0) if row.old_logps is None else row.old_logps for row in rows])

    def evidence(self, rows: Sequence[Row], vouched: Sequence[Sequence[bool]]) -> list[RowEvidence]:
        """What the own model says of each token, in one pass that also does the work of `score` for these rows.

        `vouched` has one value a token of each row. Raises UsageError where it has not.
        """
        readable = [index for index, row in enumerate(rows) if self.fits(row)]
        found = [NO_EVIDENCE] * len(rows)
        values = self._by_row(self.model, [rows[index] for index in readable], token_statistics)
        for index, values_T5 in zip(readable, values, strict=True):
            row = rows[index]
            found[index] = row_evidence(values_T5, vouched[index], row.completion_ids[-1] in self.policy.eos_ids)
            row.old_logps, row.scored_version = found[index].logps, self.policy.version
        return found

    def fits(self, row: Row) -> bool:
        """Whether the model can read the row: some prompt, some completion, within its context."""
        return bool(row.prompt_ids) and bool(row.completion_ids) and row.total_length <= self.max_length

    def update(self, rows: Sequence[Row], cap: Cap | None = None) -> StepReport:
        """Learn from rows: one policy version, however many minibatches. `cap` bounds operators' advantages.

        Without signal (all groups uniform, or nothing that may train) weights, moments and version stay as they are.
        """
        if not rows:
            return StepReport(False, "no signal: no rows", self.policy.version)
        chosen = select(rows, self.algorithm, self.fits, lambda asked: self.score(asked).mean_logps, cap)
        if not bool(chosen.signal_B.any()):
            return self._report(chosen, [], silence(chosen))
        signal_B, minibatches = chosen.signal_B.tolist(), deal_minibatches(chosen, self.algorithm.minibatches)
        # The first minibatch needs no pass of its own: its log-probs are the old ones.
        self.score([rows[i] for minibatch in minibatches[1:] for i in minibatch if signal_B[i]])
        if self.reference is not None:
            trained = [row for row, train in zip(rows, chosen.train_B.tolist(), strict=True) if train]
            for row, logps in zip(trained, self._logps(self.reference, trained), strict=True):
                row.ref_logps = logps
        dealt = minibatches * self.algorithm.epochs
        steps = [self._step(rows, chosen, minibatch, first=at == 0) for at, minibatch in enumerate(dealt)]
        mismatch = measure([row for row in rows if row.scored_version == self.policy.version])
        done = [step for step in steps if step["finite"]]
        chosen.counts["skipped_steps"] = len(steps) - len(done)
        if not done:
            return replace(self._report(chosen, [], "no signal: gradient not finite"), mismatch=mismatch)
        if self.adapters:
            self.adapters.merge()
        self.policy.version += 1
        return replace(self._report(chosen, done, ""), mismatch=mismatch)

    def _step(self, rows: Sequence[Row], chosen: Selection, minibatch: list[int], first: bool) -> dict[str, float]:
        """One optimizer step. Averages are over the whole minibatch, so micro-batches do not change the gradient.

        In the `first` of an update the weights are still those of the policy version: its log-probs are the old ones.
        """
        sums = self.room.attempt(lambda: self._accumulate(rows, chosen, minibatch, first))
        norm = nn.utils.clip_grad_norm_(self.parameters.values(), self.optimizer_spec.grad_clip).item()
        finite = math.isfinite(norm) and math.isfinite(sums["loss"])
        if finite:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return sums | {"grad_norm": norm, "finite": finite}

    def _accumulate(
        self, rows: Sequence[Row], chosen: Selection, minibatch: list[int], first: bool
    ) -> dict[str, float]:
        """Gather the minibatch's gradient over its micro-batches; return sums over its tokens."""
        spec, work = self.algorithm, minibatch
        denominators = Denominators(
            sum(len(rows[i].completion_ids) for i in minibatch), len(minibatch), spec.max_tokens
        )
        if not spec.entropy and not spec.beta:
            # Rows at advantage 0 push nowhere: they count in the averages, and their forward pass is saved.
            signal_B = chosen.signal_B.tolist()
            work = [i for i in minibatch if signal_B[i]]
        self.optimizer.zero_grad(set_to_none=True)
        sums: dict[str, float] = {"trained_tokens": denominators.tokens}
        with self._precision():  # around all of them: weights are cast once
            for packs in self._micro_batches([rows[i] for i in work]):
                batch = self._batch(rows, chosen, [[work[i] for i in pack] for pack in packs])
                logps_BT, entropy_BT = completion_logps(self.model, batch, self.with_entropy, self.room.checkpointing)
                if first:
                    batch = self._scored(batch, [rows[work[i]] for pack in packs for i in pack], logps_BT.detach())
                with self._precision(False):
                    share, part_sums = loss(batch, logps_BT, entropy_BT, spec, denominators)
                    share.backward()
                # One transfer for all of them: each waits for the device.
                values = torch.stack([share.detach(), *part_sums.values()]).tolist()
                for name, value in zip(("loss", *part_sums), values, strict=True):
                    sums[name] = sums.get(name, 0.0) + value
        return sums

    def _micro_batches(self, rows: Sequence[Row]) -> list[list[Pack]]:
        return micro_batches(rows, self.room.tokens, self.share_prompts)

    def _laid_out(self, rows: Sequence[Row], packs: Sequence[Pack]) -> Batch:
        of_rows = [[rows[i] for i in pack] for pack in packs]
        return pad_packs(of_rows, self.policy.pad_id, self.policy.device, self.share_prompts)

    def _batch(self, rows: Sequence[Row], chosen: Selection, packs: Sequence[Pack]) -> Batch:
        batch = self._laid_out(rows, packs)
        indices = [index for pack in packs for index in pack]
        advantages_B = chosen.advantages_B[indices].to(self.policy.device, self.dtype)
        return replace(
            batch,
            advantages_BT=ASSIGNS[self.algorithm.assign](advantages_B, batch.completion_mask_BT),
            weight_B=chosen.weight_B[indices].to(self.policy.device, self.dtype),
            train_mask_B=chosen.train_B[indices].to(self.policy.device),
        )

    def _scored(self, batch: Batch, rows: Sequence[Row], logps_BT: Tensor) -> Batch:
        """The batch where rows that nobody scored yet take their present log-probs for the old ones, and keep them."""
        new = [at for at, row in enumerate(rows) if row.scored_version != self.policy.version]
        for at in new:
            row = rows[at]
            row.old_logps, row.scored_version = logps_BT[at, : len(row.completion_ids)].clone(), self.policy.version
        if not new:
            return batch
        old_logps_BT = batch.old_logps_BT.to(logps_BT.dtype, copy=True)
        old_logps_BT[new] = logps_BT[new]
        return replace(batch, old_logps_BT=old_logps_BT)

    def _logps(self, model: nn.Module, rows: Sequence[Row]) -> list[Tensor]:
        def logps(model: nn.Module, batch: Batch) -> Tensor:
            return completion_logps(model, batch, with_entropy=False)[0][batch.completion_mask_BT]

        return self._by_row(model, rows, logps)

    def _by_row(
        self, model: nn.Module, rows: Sequence[Row], values: Callable[[nn.Module, Batch], Tensor]
    ) -> list[Tensor]:
        """`values` of each row's completion tokens; the function gives those of all rows of a batch, in order."""

        @torch.no_grad()
        def found() -> list[Tensor]:
            by_row: list[Tensor] = [torch.empty(0)] * len(rows)
            with self._precision():
                for packs in self._micro_batches(rows):
                    order = [index for pack in packs for index in pack]
                    values_N = values(model, self._laid_out(rows, packs))
                    lengths = [len(rows[i].completion_ids) for i in order]
                    for index, part in zip(order, values_N.split(lengths), strict=True):
                        by_row[index] = part
            return by_row

        return self.room.attempt(found)

    def _precision(self, half: bool = True) -> AbstractContextManager[Any]:
        enabled = half and self.optimizer_spec.dtype == "bfloat16"
        return torch.autocast(self.policy.device.type, dtype=torch.bfloat16, enabled=enabled)

    def _report(self, chosen: Selection, steps: Sequence[dict[str, float]], reason: str) -> StepReport:
        chosen.counts["halved_forwards"] = self.room.told()
        return summary(chosen, steps, reason, self.policy.version)

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """A copy of weights, moments and reference as flat {name: tensor}, and the counters as plain types.

        With adapters it is those alone: the base weights, which are the reference too, come with the model.
        """
        tensors = {f"model.{name}": p for name, p in self.parameters.items()}
        for name, p in self.parameters.items():
            tensors |= {f"optimizer.{name}.{key}": value for key, value in self.optimizer.state[p].items()}
        if self.reference is not None and not self.adapters:
            tensors |= {f"reference.{name}": p for name, p in self.reference.named_parameters()}
        copies = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
        return copies, {"version": self.policy.version} | ({"base": self.adapters.base} if self.adapters else {})

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        """Restore what `state_dict` gave, bit for bit. Raises UsageError when it belongs to another model."""
        if self.adapters:
            self.adapters.check(plain.get("base", b""))
        take_over(self.parameters, "model.", tensors)
        if self.adapters:
            self.adapters.merge()
        elif self.reference is not None:
            take_over(dict(self.reference.named_parameters()), "reference.", tensors)
        for name, p in self.parameters.items():
            prefix = f"optimizer.{name}."
            state = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
            self.optimizer.state[p] = {key: value.clone().to(p.device) for key, value in state.items()}
        self.policy.version = int(plain["version"])
