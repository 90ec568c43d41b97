"""The arm `trl`: TRL's GRPOTrainer as its users run it on a CPU, in the interpreter of .venv-trl. See _step_job.py.

One step is the time between two ends of steps, so everything counts: data, generation, rewards, loss, optimizer. Only
the wait for the driver is left out.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TextIO

import torch
import transformers
import trl
from _step_job import LR, Job, channel, digest, end_mark, job_of, peak_bytes, reward, say
from _step_job import asked as next_tokens
from datasets import Dataset

STEPS_AN_EPOCH = 64


class Driven(transformers.TrainerCallback):
    """Lets the trainer go on when the driver says so, and tells it how long each step took."""

    def __init__(self, out: TextIO) -> None:
        """Tell nothing yet: the first answer comes after the first step."""
        self.out, self.trainer, self.begun = out, None, 0.0
        self.seen: dict[str, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Wait for the first step."""
        self._wait(control)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Report, then wait for the next step."""
        say(self.out, seconds=time.perf_counter() - self.begun, peak=peak_bytes(), **self.seen)
        self._wait(control)

    def _wait(self, control: Any) -> None:
        tokens = next_tokens()
        if tokens is None:
            control.should_training_stop = True
        else:
            self.trainer.generation_config.max_new_tokens = tokens  # type: ignore[union-attr]
            self.trainer.max_completion_length = tokens  # type: ignore[union-attr]
        self.begun = time.perf_counter()


def settings(job: Job, folder: str, end: int) -> trl.GRPOConfig:
    """The settings of a fair run: no vLLM, float32, one optimizer step a generation, nothing saved or reported."""
    return trl.GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        fp16=False,
        per_device_train_batch_size=job.rows,
        num_generations=job.group_size,
        max_completion_length=job.tokens,
        gradient_accumulation_steps=1,
        gradient_checkpointing=False,
        beta=0.0,
        loss_type="dapo",
        epsilon_high=0.28,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        learning_rate=LR,
        lr_scheduler_type="constant",
        max_steps=1_000_000,
        shuffle_dataset=False,
        generation_kwargs={"eos_token_id": end},
        report_to="none",
        save_strategy="no",
        logging_steps=1_000_000,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=job.seed,
    )


def make_trainer(job: Job, folder: str, driven: Driven) -> Any:
    """GRPOTrainer on the job's model, prompts and reward."""
    model = transformers.AutoModelForCausalLM.from_pretrained(job.folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(job.folder)
    end = end_mark(model.config.vocab_size)

    def rewards(completion_ids: list[list[int]], **columns: Any) -> list[float]:  # noqa: ARG001
        driven.seen = {"tokens": sum(map(len, completion_ids))}
        return [reward(ids) for ids in completion_ids]

    texts = job.texts()
    prompts = [[{"role": "user", "content": text}] for text in texts] if tokenizer.chat_template else texts
    trainer = trl.GRPOTrainer(
        model=model,
        reward_funcs=rewards,
        args=settings(job, folder, end),
        train_dataset=Dataset.from_dict({"prompt": prompts * STEPS_AN_EPOCH}),
        processing_class=tokenizer,
        callbacks=[driven],
    )
    trainer.eos_token_ids = [end]
    return trainer


def read_prompts(trainer: Any, job: Job) -> list[list[int]]:
    """The ids that the trainer makes of the job's prompts."""
    prompts = trainer.train_dataset[: job.prompts]["prompt"]
    found = trainer._tokenize_prompts(list(prompts))
    return found[0]


def main() -> None:
    """Serve the driver."""
    out = channel()
    job = job_of(sys.argv[1], torch.set_num_threads)
    driven = Driven(out)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(job, str(Path(folder)), driven)
        driven.trainer = trainer
        versions = f"trl {trl.__version__}, transformers {transformers.__version__}, torch {torch.__version__}"
        say(
            out, ready=True, prompts=digest(read_prompts(trainer, job)), torch=versions, threads=torch.get_num_threads()
        )
        trainer.train()


if __name__ == "__main__":
    main()
