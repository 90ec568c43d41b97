"""Peers' texts in front of what reads them: the text policy, the invariants, the judge's question and its answer."""

import fuzz_seeds as seeds
from fuzz_targets import Broken, Target

from shoal.defenses.invariants import check_invariants
from shoal.defenses.judge import JudgeUnavailable, Opinion, parse, question, shown
from shoal.defenses.text import TextRules, check_text, safe
from shoal.defenses.verdict import LAYERS, Verdict
from shoal.defenses.vouched import answer_span
from shoal.node.judges import content
from shoal.trainer.tasks.base import TaskInvariants

LONGEST = 16_384  # characters; no task allows more
RULES = TextRules(LONGEST, max_tokens=0, special_tokens=("<|im_end|>", "</s>"), decode_ids=None)
PROMPT = "What is 12 + 30?"
SHOWN = 200


def text(data: bytes) -> None:
    """A completion: the text policy, and what must hold of any; how it is shown to people; where its answer stands."""
    found = data.decode("utf-8", errors="replace")
    verdict = check_text(found, None, RULES)
    if verdict.usable:
        _judged(found)
    _named(verdict)
    line = safe(found, SHOWN)
    if len(line) > SHOWN or not line.isprintable():
        raise Broken("a text is shown that may not be")


def _judged(found: str) -> None:
    for rules in (TaskInvariants(), TaskInvariants(imports=frozenset())):
        _named(check_invariants(found, PROMPT, rules))
    quoted = check_invariants(found, found, TaskInvariants(imports=None))
    if not quoted.usable and quoted.reason != "too_many_equations":
        raise Broken("what the prompt says is no statement of the answer")
    span = answer_span(found, "42")
    if span is not None and found[slice(*span)] != "42":
        raise Broken("an answer where there is none")


def _named(verdict: Verdict) -> None:
    if verdict.layer and verdict.layer not in LAYERS:
        raise Broken(f"no such layer: {verdict}")


def judged(data: bytes) -> None:
    """A text between the fences of a judge's question: nothing of it is an opinion, and no line of it is a fence."""
    found = data.decode("utf-8", errors="replace")
    if parse(shown(found, SHOWN)) is not None:
        raise Broken("a text that says its own verdict")
    asked = question(PROMPT, found, "unlikely", "0123456789abcdef", SHOWN)
    plain = question(PROMPT, "text", "unlikely", "0123456789abcdef", SHOWN)
    if len(asked.splitlines()) != len(plain.splitlines()):
        raise Broken("a text that goes on behind its line")


def answered(data: bytes) -> None:
    """What a judge's server replies, and what the model is then taken to have said."""
    said = content(data)
    opinion = parse(said)
    if opinion is not None and opinion not in set(Opinion):
        raise Broken("an opinion beside the three")


WRITTEN = (
    Target("text", seeds.WRITTEN, text),
    Target("judged", seeds.WRITTEN, judged),
    Target("judge-answer", seeds.REPLIES, answered, (JudgeUnavailable,)),
)
"""The readers of texts, each as one target."""
