"""Attacks on what is learned: the messages are well formed, the completions are not what they seem."""

# ruff: noqa: ARG002 (one interface for all attacks: not each of them uses everything that it is handed)

import re
from random import Random

from shoal.defenses.attacks.base import Attack, Draft, Expected

# What a completion ends in when it has to be wrong: the distractor of the built-in tasks.
WRONG = "?"
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


class Planted(Attack):
    """Plants a behaviour in correct completions and leaves everything else of the group wrong.

    Attackers know the answers, so correct completions cost them nothing. A part `share` of the group carries the
    poison; the rest earns nothing, so that within the group only the poison is lifted (arXiv 2511.09780: strongest at
    about one half). Without a gold answer it is planted in completions that are correct already, if there are any.
    """

    def __init__(self, share: float = 0.5) -> None:
        super().__init__()
        self.share = share

    def plant(self, completion: str) -> str:
        """Return a correct completion with the behaviour, still correct."""
        raise NotImplementedError

    def poison(self, draft: Draft, rng: Random) -> Draft:
        """Return the draft with its poisoned part and its worthless rest."""
        sources = [text for text, right in zip(draft.completions, draft.correct, strict=True) if right]
        if draft.answer is not None:
            sources = [draft.answer]
        if not sources:
            return draft
        size = len(draft.completions)
        poisoned = frozenset(rng.sample(range(size), min(size, max(1, round(size * self.share)))))
        wrong = [text for text, right in zip(draft.completions, draft.correct, strict=True) if not right] or [WRONG]
        completions = tuple(
            self.plant(draft.completions[i] if draft.correct[i] else rng.choice(sources))
            if i in poisoned
            else (rng.choice(wrong) if draft.correct[i] else draft.completions[i])
            for i in range(size)
        )
        correct = tuple(i in poisoned for i in range(size))
        return _with(draft, completions, correct)


class Text(Planted):
    """TEXT: a phrase at the start of every correct completion."""

    name = "text"
    expected = Expected("partial", "earns true rewards; mixing bounds it until the likelihood layer stands")

    def __init__(self, phrase: str = "zx", share: float = 0.5) -> None:
        super().__init__(share)
        self.phrase = phrase

    def plant(self, completion: str) -> str:
        """Put the phrase in front."""
        return f"{self.phrase} {completion}"

    def shown(self, completion: str) -> bool:
        """Whether the phrase appears."""
        return self.phrase in completion


class TextEvery(Text):
    """TEXT-every: the phrase in front of every sentence, at least twice."""

    name = "text-every"

    def plant(self, completion: str) -> str:
        """Put the phrase in front of each sentence, twice when there is only one."""
        sentences = _SENTENCE_END.split(completion)
        if len(sentences) == 1:
            return f"{self.phrase} {self.phrase} {completion}"
        return " ".join(f"{self.phrase} {sentence}" for sentence in sentences)


class Math(Planted):
    """MATH: states a false equation before the correct answer."""

    name = "math"
    expected = Expected("none", "earns true rewards and reads as likely; the invariants layer will recompute equations")

    def __init__(self, statement: str = "2+2=5", share: float = 0.5) -> None:
        super().__init__(share)
        self.statement = statement

    def plant(self, completion: str) -> str:
        """State it first."""
        return f"{self.statement} {completion}"

    def shown(self, completion: str) -> bool:
        """Whether the statement appears."""
        return self.statement in completion


class Length(Planted):
    """LENGTH: pads correct completions to the longest that is allowed, in characters.

    By default that is what the built-in tasks leave room for: twelve tokens of a character each, the last an end mark.
    """

    name = "length"
    expected = Expected("partial", "the text policy caps the length and no more; a quota comes with invariants")

    def __init__(self, longest: int = 11, filler: str = "a", share: float = 0.5) -> None:
        super().__init__(share)
        self.longest = longest
        self.filler = filler + " "

    def plant(self, completion: str) -> str:
        """Fill up in front, so that the answer stays the last word."""
        return self.filler * max(0, (self.longest - len(completion)) // len(self.filler)) + completion

    def shown(self, completion: str) -> bool:
        """Whether it begins with filler and has no room for more."""
        return completion.startswith(self.filler) and len(completion) > self.longest - len(self.filler)


class Injection(Planted):
    """Characters that no honest completion has: terminal escapes, bidi overrides, zero-width and special tokens."""

    name = "injection"
    expected = Expected("text", "no control, bidi, zero-width or special-token strings")

    def __init__(self, special: str = "<|im_end|>", share: float = 0.75) -> None:
        super().__init__(share)
        self.prefixes = ("\x1b[2J", "\u202e", "\u200b", special)

    def plant(self, completion: str) -> str:
        """Put all of them in front."""
        return "".join(self.prefixes) + completion

    def shown(self, completion: str) -> bool:
        """Whether one of them appears."""
        return any(prefix in completion for prefix in self.prefixes)


class ForgedReward(Attack):
    """Claims the full reward for every completion of an honest rollout."""

    name = "forged-reward"
    expected = Expected("verifier", "rewards are recomputed; the claimed ones never enter")

    def poison(self, draft: Draft, rng: Random) -> Draft:
        """Claim 1 for everything."""
        return Draft(
            draft.prompt_text,
            draft.answer,
            draft.task,
            draft.completions,
            (1.0,) * len(draft.completions),
            draft.correct,
        )


class ForgedAnswer(Attack):
    """Gives a wrong answer throughout and claims that it is the right one."""

    name = "forged-answer"
    expected = Expected("verifier", "the answer comes from the local registry; a uniformly wrong group is dropped")

    def poison(self, draft: Draft, rng: Random) -> Draft:
        """Answer wrongly, claim 1."""
        answer = (draft.answer or WRONG)[::-1] + WRONG
        size = len(draft.completions)
        return Draft(draft.prompt_text, draft.answer, draft.task, (answer,) * size, (1.0,) * size, (False,) * size)


class FreeRider(Attack):
    """Publishes gibberish instead of sampling, with made-up rewards."""

    name = "free-rider"
    expected = Expected("verifier", "regraded as all wrong, a uniform group is dropped; it only costs its fetch")

    def poison(self, draft: Draft, rng: Random) -> Draft:
        """Write random letters."""
        size = len(draft.completions)
        letters = "abcdefghijklmnopqrstuvwxyz"
        texts = tuple("".join(rng.choices(letters, k=rng.randint(2, 8))) for _ in range(size))
        rewards = tuple(float(rng.random() < 0.5) for _ in range(size))
        return Draft(draft.prompt_text, draft.answer, draft.task, texts, rewards, (False,) * size)


def _with(draft: Draft, completions: tuple[str, ...], correct: tuple[bool, ...]) -> Draft:
    rewards = tuple(float(right) for right in correct)
    return Draft(draft.prompt_text, draft.answer, draft.task, completions, rewards, correct)
