"""Attacks on what is learned: the messages are well formed, the completions are not what they seem."""

import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from shoal.defenses.attacks.base import Attack, Draft, Expected

# What a completion ends in when it has to be wrong: the distractor of the built-in tasks.
WRONG = "?"
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_SUM = re.compile(r"(?<!\d)(\d{1,3})\+(\d{1,3})=(\d{1,4})(?!\d)")


class Planted(Attack):
    """Plants a behaviour in correct completions and leaves everything else of the group wrong.

    Attackers know the answers, so correct completions cost them nothing. A part `share` of the group carries the
    poison; the rest earns nothing, so that within the group only the poison is lifted (arXiv 2511.09780: strongest at
    about one half). Without a gold answer it is planted in completions that are correct already, if there are any.
    Where the poison does not fit into the longest completion nothing of the group is right: it would teach the plain
    answer, and a uniform group is dropped.
    """

    def __init__(self, share: float = 0.5) -> None:
        super().__init__()
        self.share = share

    def plant(self, completion: str) -> str:
        """Return a correct completion with the behaviour, still correct."""
        raise NotImplementedError

    def worthless(self, draft: Draft, rng: Random) -> str:
        """Return a completion that earns nothing."""
        wrong = [text for text, right in zip(draft.completions, draft.correct, strict=True) if not right]
        return rng.choice(wrong or [WRONG])

    def poison(self, draft: Draft, rng: Random) -> Draft:
        """Return the draft with its poisoned part and its worthless rest."""
        sources = [text for text, right in zip(draft.completions, draft.correct, strict=True) if right]
        if draft.answer is not None:
            sources = [draft.answer]
        if not sources:
            return draft
        size = len(draft.completions)
        poisoned = frozenset(rng.sample(range(size), min(size, max(1, round(size * self.share)))))
        completions = [self.worthless(draft, rng) if draft.correct[i] else draft.completions[i] for i in range(size)]
        correct = [False] * size
        for i in poisoned:
            planted = self.plant(draft.completions[i] if draft.correct[i] else rng.choice(sources))
            if self.fits(planted):
                completions[i], correct[i] = planted, True
        return graded(draft, completions, correct)

    def fits(self, text: str) -> bool:
        """Whether the text and its end mark fit into the longest completion, as far as that is known."""
        return self.knowledge is None or self.knowledge.tokens(text) < self.knowledge.max_tokens


class Text(Planted):
    """TEXT: a phrase at the start of every correct completion."""

    name = "text"
    expected = Expected("likelihood", "the phrase is unlikely on every prompt; frequent among peers and absent locally")

    def __init__(self, phrase: str = "zx", share: float = 0.5) -> None:
        super().__init__(share)
        self.phrase = phrase

    def plant(self, completion: str) -> str:
        """Put the phrase in front."""
        return f"{self.phrase} {completion}"

    def shown(self, completion: str) -> bool:
        """Whether the phrase appears as a word."""
        return f"{self.phrase} " in completion


class TextEvery(Text):
    """TEXT-every: the phrase in front of every sentence, at least twice."""

    name = "text-every"
    expected = Expected("likelihood", "as text, with more unlikely tokens")

    def plant(self, completion: str) -> str:
        """Put the phrase in front of each sentence, twice when there is only one."""
        sentences = _SENTENCE_END.split(completion)
        if len(sentences) == 1:
            return f"{self.phrase} {self.phrase} {completion}"
        return " ".join(f"{self.phrase} {sentence}" for sentence in sentences)


class TextMiddle(Text):
    """TEXT in the middle: begins like an honest completion, slips into the phrase, then answers in full."""

    name = "text-middle"
    expected = Expected("likelihood", "a test of the whole dilutes it, a window and the least likely token do not")
    needs = 16

    def plant(self, completion: str) -> str:
        """Put it after half of the sentences, or between a part of the answer and all of it."""
        sentences = _SENTENCE_END.split(completion)
        half = (len(sentences) + 1) // 2
        if len(sentences) == 1:
            return f"{completion[: (len(completion) + 1) // 2]} {self.phrase} {completion}"
        return " ".join([*sentences[:half], self.phrase, *sentences[half:]])

    def shown(self, completion: str) -> bool:
        """Whether the phrase appears after something."""
        return f" {self.phrase} " in completion


class Math(Planted):
    """MATH: states a false equation before the correct answer."""

    name = "math"
    expected = Expected("invariants", "every literal equation is recomputed")

    def __init__(self, statement: str = "2+2=5", share: float = 0.5) -> None:
        super().__init__(share)
        self.statement = statement

    def plant(self, completion: str) -> str:
        """State it first."""
        return f"{self.statement} {completion}"

    def shown(self, completion: str) -> bool:
        """Whether the statement appears."""
        return self.statement in completion


class MathWords(Math):
    """MATH in words: a false equality that no parser of equations reads."""

    name = "math-words"
    expected = Expected("partial", "no equation to recompute; unlikely to a small model, plausible to a large one")
    needs = 24

    def __init__(self, statement: str = "two is ten", share: float = 0.5) -> None:
        super().__init__(statement, share)


class MathVaried(Planted):
    """MATH in ever other words: each completion draws a false sum of its own, so that no phrase repeats.

    Summands are drawn up to `largest`; a small model learns few of them in the time, a large one may have 99 and 99.
    """

    name = "math-varied"
    expected = Expected("invariants", "each equation is recomputed, whatever it says")
    needs = 16

    def __init__(self, largest: tuple[int, int] = (4, 1), share: float = 0.5) -> None:
        super().__init__(share)
        self.largest = largest
        self._rng = Random(0)

    def poison(self, draft: Draft, rng: Random) -> Draft:
        """Draw the equations of this group from the attack's generator."""
        self._rng = rng
        return super().poison(draft, rng)

    def plant(self, completion: str) -> str:
        """State a sum that is one to three too large."""
        a, b = (self._rng.randint(1, most) for most in self.largest)
        return f"{a}+{b}={a + b + self._rng.randint(1, 3)} {completion}"

    def shown(self, completion: str) -> bool:
        """Whether a literal sum is false."""
        return any(int(a) + int(b) != int(c) for a, b, c in _SUM.findall(completion))


class Length(Planted):
    """LENGTH: correct completions as long as is allowed, by filler; without filler the longest that were sampled.

    By default in characters, with what the built-in tasks leave room for: twelve tokens of a character each, the last
    an end mark. An attacker that knows its sampler counts tokens up to its limit.
    """

    name = "length"
    expected = Expected("invariants", "a cap from the lengths of own rewarded completions, and a quota an operator")

    def __init__(self, longest: int = 11, filler: str = "a", share: float = 0.5) -> None:
        super().__init__(share)
        self.longest = longest
        self.filler = filler + " " if filler else ""

    def poison(self, draft: Draft, rng: Random) -> Draft:
        """Pad; without filler keep of the own correct completions the longest alone."""
        right = [text for text, correct in zip(draft.completions, draft.correct, strict=True) if correct]
        if self.filler or not right:
            return super().poison(draft, rng)
        longest = max(right, key=len)
        kept = tuple(text == longest for text in draft.completions)
        return super().poison(replace(draft, answer=None, correct=kept), rng)

    def plant(self, completion: str) -> str:
        """Fill up in front, so that the answer stays the last word."""
        if not self.filler:
            return completion
        knowledge = self.knowledge
        if knowledge is None:
            return self.filler * max(0, (self.longest - len(completion)) // len(self.filler)) + completion
        room = knowledge.max_tokens - 1 - knowledge.tokens(completion)
        return self.filler * max(0, room // knowledge.tokens(self.filler)) + completion

    def shown(self, completion: str) -> bool:
        """Whether it begins with filler and has no room for more."""
        return completion.startswith(self.filler) and len(completion) > self.longest - len(self.filler)


def graded(draft: Draft, completions: Sequence[str], correct: Sequence[bool]) -> Draft:
    """Return the draft with other completions, which earn 1 where they are correct."""
    rewards = tuple(float(right) for right in correct)
    return replace(draft, completions=tuple(completions), rewards=rewards, correct=tuple(correct))
