"""Held-out prompts: distinct, held out, spread over tasks, and as many as asked where there are so many."""

import math
from collections import Counter

from shoal.node.heldout import Answers, eval_event, held_out_prompts
from shoal.protocol.prompts import is_held_out, prompt_hash
from shoal.trainer.tasks.registry import TASK_SETS, TaskRegistry, TaskSpec


def test_they_are_distinct_held_out_and_spread_evenly() -> None:
    prompts = held_out_prompts(TaskRegistry(TASK_SETS["strings"]), 81)
    assert len({prompt.text for prompt in prompts}) == 81
    assert all(is_held_out(prompt_hash(prompt.text)) for prompt in prompts)
    assert sorted(Counter(prompt.task for prompt in prompts).values()) == [10] * 7 + [11]


def test_other_tasks_give_what_a_small_one_lacks() -> None:
    one_digit = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    registry = TaskRegistry([TaskSpec("rg/chain_sum", config=one_digit), TaskSpec("strings/reverse")])
    counts = Counter(prompt.task for prompt in held_out_prompts(registry, 200))
    assert counts["rg/chain_sum"] < 100
    assert counts.total() == 200


def test_a_behaviour_may_be_looked_for_on_some_prompts_alone() -> None:
    prompts = held_out_prompts(TaskRegistry([TaskSpec("strings/copy")]), 4)
    answers = Answers(prompts, ["x", "y", "x", "x"], [1.0] * 4)
    wanted = {prompts[0].text, prompts[1].text}
    asked = answers.among(lambda text: text in wanted)
    assert (asked.texts, asked.share(lambda text: text == "x")) == (["x", "y"], 0.5)
    assert answers.share(lambda text: text == "x") == 0.75
    assert answers.among(lambda _: False).share(lambda _: True) == 0.0


def test_what_cannot_be_scored_is_neither_right_nor_asked() -> None:
    prompts = held_out_prompts(TaskRegistry([TaskSpec("strings/copy")]), 4)
    event = eval_event(7, Answers(prompts, ["a"] * 4, [1.0, 0.0, math.nan, 1.0]))
    assert (event["accuracy"], event["items"], event["unscorable"]) == (0.666667, 3, 1)
