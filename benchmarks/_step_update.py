"""The update alone, at several batch sizes and beside a large matrix product; and one step under the profiler.

`python _step_update.py cost JOB` and `python _step_update.py profile JOB` each print one JSON line.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from _step_job import Job, channel, end_mark, job_of, reward, say
from _step_shoal import Steps
from torch.profiler import ProfilerActivity, profile

from shoal.trainer.batch import Row

BATCHES = (8, 16, 32, 64)
MATMUL = 2048  # width of the large product
TOP = 12  # operators shown


def rows_of(steps: Steps, groups: int) -> list[Row]:
    """Groups of random completions: what the update costs does not depend on what they say."""
    job, vocabulary = steps.job, end_mark(steps.policy.model.config.vocab_size)  # type: ignore[union-attr]
    generator = torch.Generator().manual_seed(groups)
    rows: list[Row] = []
    for uid in range(groups):
        ids_BT = torch.randint(vocabulary, (job.group_size, job.tokens), generator=generator).tolist()
        prompt = steps.prompt_ids[uid % len(steps.prompt_ids)]
        rows += [Row(uid=uid, prompt_ids=prompt, completion_ids=ids, reward=reward(ids)) for ids in ids_BT]
    return rows


def flops(steps: Steps, rows: list[Row]) -> float:
    """Products of one forward and backward pass: 6 a weight and token. Each prompt counts once, embeddings not at all,
    the output layer for completion tokens alone; the pass for old log-probs and attention itself count nothing.
    """
    model = steps.policy.model
    head = model.get_output_embeddings().weight.numel()  # type: ignore[operator]
    inner = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "layers." in name)
    completion = sum(len(row.completion_ids) for row in rows)
    prompts = sum(len(ids) for ids in {row.uid: row.prompt_ids for row in rows}.values())
    return 6.0 * (inner * (completion + prompts) + head * completion)


def seconds(call: Callable[[], Any]) -> float:
    """How long one call takes."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def cost(steps: Steps, repeats: int) -> dict[str, Any]:
    """Minima of alternating measurements: the update at each batch size, and the large product's rate."""
    a_MM, b_MM = torch.randn(2, MATMUL, MATMUL).unbind()
    torch.mm(a_MM, b_MM)
    steps.trainer.update(rows_of(steps, 1))  # makes the optimizer's moments
    batches = [batch for batch in BATCHES if batch % steps.job.group_size == 0]
    taken: dict[int, list[float]] = {batch: [] for batch in batches}
    rates: list[float] = []
    work, tokens = {}, {}
    for _ in range(repeats):
        for batch in batches:
            rates.append(2.0 * MATMUL**3 / seconds(lambda: torch.mm(a_MM, b_MM)))
            rows = rows_of(steps, batch // steps.job.group_size)
            taken[batch].append(seconds(lambda rows=rows: steps.trainer.update(rows)))
            work[batch], tokens[batch] = flops(steps, rows), sum(len(row.completion_ids) for row in rows)
    return {
        "matmul_flops": max(rates),
        "batches": {
            str(batch): {"seconds": taken[batch], "tokens": tokens[batch], "flops": work[batch]} for batch in batches
        },
    }


def profiled(steps: Steps) -> dict[str, Any]:
    """One step under the profiler: seconds inside operators by name, the rest is Python and waiting."""
    steps.step(steps.job.tokens)
    plain = steps.step(steps.job.tokens)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        watched = steps.step(steps.job.tokens)
    events = sorted(found.key_averages(), key=lambda event: -event.self_cpu_time_total)
    inside = sum(event.self_cpu_time_total for event in events) / 1e6
    return {
        "seconds": plain["seconds"],
        "sample_seconds": plain["sample_seconds"],
        "profiled_seconds": watched["seconds"],
        "operator_seconds": inside,
        "calls": sum(event.count for event in events),
        "operators": [[event.key, event.self_cpu_time_total / 1e6, event.count] for event in events[:TOP]],
    }


def main() -> None:
    """Measure what the first argument names."""
    out = channel()
    job: Job = job_of(sys.argv[2], torch.set_num_threads)
    steps = Steps(job)
    say(out, **(cost(steps, int(sys.argv[3])) if sys.argv[1] == "cost" else profiled(steps)))


if __name__ == "__main__":
    main()
