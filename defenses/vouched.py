"""Which tokens of a completion the own verifier has confirmed: the reference answer, where the reward is full.

A peer that has a skill which the receiver lacks writes answers that look unlikely here. Those very tokens are vouched
for by the verifier, so they need not be likely; everything around them must be.
"""

from collections.abc import Sequence

Span = tuple[int, int]


def answer_span(text: str, answer: str) -> Span | None:
    """Return where the reference answer stands last in a completion, as (start, end) of its characters.

    It must stand by itself: not within a longer word or number. None when it does not, or is empty.
    """
    answer = answer.strip()
    if not answer:
        return None
    end = len(text)
    while (start := text.rfind(answer, 0, end)) >= 0:
        if not _joined(text, start) and not _joined(text, start + len(answer)):
            return start, start + len(answer)
        end = start + len(answer) - 1  # an earlier place may overlap this one
    return None


def _joined(text: str, at: int) -> bool:
    """Whether the characters on both sides of a place belong to one word or one number."""
    before, after = text[at - 1 : at], text[at : at + 1]
    if _of_word(before) and _of_word(after):
        return True
    if before in (".", ",") and after.isdigit():
        return text[max(at - 2, 0) : at - 1].isdigit()
    return before.isdigit() and after in (".", ",") and text[at + 1 : at + 2].isdigit()


def _of_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"


def vouched_tokens(offsets: Sequence[Span], span: Span | None, finished: bool) -> list[bool]:
    """Return for each token whether it lies inside the answer; `offsets` leave out white space before a token's text.

    A token that is only partly inside is not vouched, nor is the end mark, the last token of a finished completion.
    """
    if span is None:
        return [False] * len(offsets)
    inside = [span[0] <= start < end <= span[1] for start, end in offsets]
    if finished and inside:
        inside[-1] = False
    return inside


def pieces(ids: Sequence[int], vouched: Sequence[bool]) -> list[list[int]]:
    """Return the runs of ids that nothing vouches for, in order."""
    runs: list[list[int]] = [[]]
    for token, known in zip(ids, vouched, strict=True):
        if not known:
            runs[-1].append(token)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]
