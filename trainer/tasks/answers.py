"""Where in a completion the answer is, and how a question is put to a model that only continues text."""

import re
from collections.abc import Sequence

# Linear: no nested repetition. The last pair counts, as a model may mention the tags before it answers.
_TAGGED = re.compile(r"<answer>((?:(?!<answer>|</answer>).)*)</answer>", re.DOTALL)
_LABELLED = re.compile(r"\banswer:", re.IGNORECASE)


def ask(question: str, examples: Sequence[tuple[str, str]] = (), instruction: str = "") -> str:
    """Return the prompt text of a question, after worked examples (question, answer) in the same layout."""
    head = f"{instruction.strip()}\n\n" if instruction.strip() else ""
    shown = "".join(f"Question: {asked.strip()}\nAnswer: {answer.strip()}\n\n" for asked, answer in examples)
    return f"{head}{shown}Question: {question.strip()}\nAnswer:"


def first_answer(completion: str, multiline: bool) -> str:
    """Return the answer of a completion that follows worked examples: what stands before the next example.

    A base model runs on and invents further questions, so the text is cut at the first line end, or at the first
    blank line where answers have several lines.
    """
    return completion.strip().partition("\n\n" if multiline else "\n")[0].strip()


def final_answer(completion: str) -> str:
    """Return the answer of a free completion: the last <answer> pair, else what follows "Answer:", else all."""
    tagged = _TAGGED.findall(completion)
    if tagged:
        return tagged[-1].strip()
    labels = list(_LABELLED.finditer(completion))
    return completion[labels[-1].end() :].strip() if labels else completion.strip()
