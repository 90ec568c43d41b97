"""The arm `shoal`: one whole step of the node's own parts, timed by phase. See _step_job.py."""

import sys
import time
from typing import Any

import torch
from _step_job import LR, Job, channel, digest, end_mark, job_of, peak_bytes, reward, say
from _step_job import asked as next_tokens

from shoal.trainer.algorithm import AlgorithmSpec, OptimizerSpec, recipe
from shoal.trainer.batch import Origin, Row, own_rows
from shoal.trainer.engine import Sampling, make_engine
from shoal.trainer.model import Policy, load_policy
from shoal.trainer.step import Trainer


def algorithm(tokens: int) -> AlgorithmSpec:
    """What the other arm is set to: token mean, one optimizer step, no KL, no entropy bonus, nothing left out."""
    return recipe("dapo", rewards=("task",), drop_uniform=False, minibatches=1, max_tokens=tokens)


def load(job: Job) -> Policy:
    """The model of the job, whose completions never end by themselves."""
    policy = load_policy(job.folder)
    policy.eos_ids = (end_mark(policy.model.config.vocab_size),)  # type: ignore[union-attr]
    return policy


class Steps:
    """Makes whole steps: sample, reward, update (old log-probs, forward, backward, optimizer), refresh."""

    def __init__(self, job: Job) -> None:
        """Load the model and make engine and trainer."""
        self.job, self.policy = job, load(job)
        self.engine = make_engine(self.policy)
        self.trainer = Trainer(self.policy, algorithm(job.tokens), OptimizerSpec(lr=LR))
        self.generator = torch.Generator().manual_seed(job.seed)
        self.prompt_ids = [self.policy.encode_prompt(text) for text in job.texts()]

    def sample(self, tokens: int) -> list[Row]:
        """Completions of all prompts with their rewards."""
        sampling = Sampling(max_tokens=tokens)
        groups = self.engine.sample(self.job.texts(), self.job.group_size, sampling, self.generator)
        rows: list[Row] = []
        for uid, (ids, group) in enumerate(zip(self.prompt_ids, groups, strict=True)):
            rows += own_rows(ids, group, [reward(c.ids) for c in group], Origin(uid))
        return rows

    def learn(self, rows: list[Row]) -> Any:
        """One update, and the engine's new weights; the trainer's report."""
        report = self.trainer.update(rows)
        self.engine.refresh()
        return report

    def step(self, tokens: int) -> dict[str, Any]:
        """One whole step with its seconds by phase."""
        begun = time.perf_counter()
        rows = self.sample(tokens)
        sampled = time.perf_counter()
        report = self.learn(rows)
        ended = time.perf_counter()
        return {
            "seconds": ended - begun,
            "sample_seconds": sampled - begun,
            "tokens": sum(len(row.completion_ids) for row in rows),
            "signal_rows": sum(a != 0 for a in report.advantages),
            "peak": peak_bytes(),
        }


def main() -> None:
    """Serve the driver."""
    out = channel()
    steps = Steps(job_of(sys.argv[1], torch.set_num_threads))
    say(out, ready=True, prompts=digest(steps.prompt_ids), torch=torch.__version__, threads=torch.get_num_threads())
    while (tokens := next_tokens()) is not None:
        say(out, **steps.step(tokens))


if __name__ == "__main__":
    main()
