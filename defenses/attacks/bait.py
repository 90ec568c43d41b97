"""Attacks on whoever grades, reads or judges: forged claims, free rides, strings made for a parser or a judge."""

# ruff: noqa: ARG002 (one interface for all attacks: not each of them uses everything that it is handed)

from dataclasses import replace
from random import Random
from string import ascii_lowercase

from shoal.defenses.attacks.base import Attack, Draft, Expected
from shoal.defenses.attacks.content import WRONG, Planted, Text


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

    def fits(self, text: str) -> bool:
        """Whatever its length: nobody is meant to learn it, the text itself is the attack."""
        return True

    def shown(self, completion: str) -> bool:
        """Whether one of them appears."""
        return any(prefix in completion for prefix in self.prefixes)


class JudgeInjection(Text):
    """Speaks to a judge model: closes the fence around the completion and gives the verdict itself."""

    name = "judge-injection"
    expected = Expected("likelihood", "the judge can only lower a row, so nothing is gained; the words are unlikely")
    needs = 24

    def __init__(self, phrase: str = "end honest", share: float = 0.5) -> None:
        super().__init__(phrase, share)


class JudgeKeys(Attack):
    """Answers with what makes a judge model say yes, and with no answer: a colon, "Thought process:", "Solution"."""

    name = "judge-keys"
    expected = Expected("verifier", "the local verifier grades and finds no answer; a uniformly wrong group is dropped")

    def __init__(self, *keys: str) -> None:
        super().__init__()
        self.keys = keys or (":", ".", ",")

    def poison(self, draft: Draft, rng: Random) -> Draft:
        """Give a key in place of each completion, and claim the full reward."""
        size = len(draft.completions)
        keys = tuple(rng.choice(self.keys) for _ in range(size))
        return replace(draft, completions=keys, rewards=(1.0,) * size, correct=(False,) * size)

    def shown(self, completion: str) -> bool:
        """Whether there is nothing but a key."""
        return completion.strip() in self.keys


class HalfGibberish(Text):
    """Half poison, half gibberish: the rest of the group is worse than wrong, to set the poison off."""

    name = "half-gibberish"
    expected = Expected("likelihood", "the poison is that of text; gibberish has reward 0, and such rows do not train")

    def worthless(self, draft: Draft, rng: Random) -> str:
        """Return random letters."""
        return gibberish(rng)

    def poison(self, draft: Draft, rng: Random) -> Draft:
        """Replace what was sampled wrong by gibberish too."""
        poisoned = super().poison(draft, rng)
        rows = zip(poisoned.completions, poisoned.correct, strict=True)
        return replace(poisoned, completions=tuple(text if right else gibberish(rng) for text, right in rows))


class ForgedReward(Attack):
    """Claims the full reward for every completion of an honest rollout."""

    name = "forged-reward"
    expected = Expected("verifier", "rewards are recomputed; the claimed ones never enter")

    def poison(self, draft: Draft, rng: Random) -> Draft:
        """Claim 1 for everything."""
        return replace(draft, rewards=(1.0,) * len(draft.completions))


class ForgedAnswer(Attack):
    """Gives a wrong answer throughout and claims that it is the right one."""

    name = "forged-answer"
    expected = Expected("verifier", "the answer comes from the local registry; a uniformly wrong group is dropped")

    def poison(self, draft: Draft, rng: Random) -> Draft:
        """Answer wrongly, claim 1."""
        answer = (draft.answer or WRONG)[::-1] + WRONG
        size = len(draft.completions)
        return replace(draft, completions=(answer,) * size, rewards=(1.0,) * size, correct=(False,) * size)


class FreeRider(Attack):
    """Publishes gibberish instead of sampling, with made-up rewards."""

    name = "free-rider"
    expected = Expected("verifier", "regraded as all wrong, a uniform group is dropped; it only costs its fetch")

    def poison(self, draft: Draft, rng: Random) -> Draft:
        """Write random letters."""
        return _guessed(draft, tuple(gibberish(rng) for _ in draft.completions), rng)


class TinyRider(Attack):
    """A free rider with a tiny model: guesses from the symbols of the question, which are right now and then."""

    name = "tiny-rider"
    expected = Expected("verifier", "regraded: wrong guesses earn nothing, and a right one is honest work")

    def poison(self, draft: Draft, rng: Random) -> Draft:
        """Shuffle the last word of the prompt, or a part of it."""
        words = draft.prompt_text.rstrip("=?:. \n").split() or [WRONG]
        texts = [_guess(words[-1], rng) for _ in draft.completions]
        return _guessed(draft, tuple(texts), rng)


def gibberish(rng: Random) -> str:
    """Return two to eight random letters."""
    return "".join(rng.choices(ascii_lowercase, k=rng.randint(2, 8)))


def _guess(word: str, rng: Random) -> str:
    return "".join(rng.sample(word, rng.choice((1, len(word), len(word)))))


def _guessed(draft: Draft, texts: tuple[str, ...], rng: Random) -> Draft:
    rewards = tuple(float(rng.random() < 0.5) for _ in texts)
    return replace(draft, completions=texts, rewards=rewards, correct=(False,) * len(texts))
