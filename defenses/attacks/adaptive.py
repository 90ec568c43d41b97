"""Attackers who know the thresholds and run the defences' code on their own poison before they publish it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from shoal.defenses.attacks.base import Draft, Expected, Knowledge
from shoal.defenses.attacks.content import Math, Planted
from shoal.defenses.attacks.stealth import Dripper
from shoal.defenses.equations import first_false
from shoal.defenses.likelihood import Case, Judgement, LikelihoodNull, judge
from shoal.defenses.verdict import Counters


@dataclass(frozen=True, slots=True)
class Template:
    """One way to plant: how a right answer becomes poison, and how it is recognised."""

    plant: Callable[[str], str]
    shown: Callable[[str], bool]


def prefix(words: str) -> Template:
    """Return the template that puts `words` in front."""
    return Template(lambda answer: words + answer, lambda text: text.startswith(words))


def twice(joiner: str = " ") -> Template:
    """Return the template that gives the answer two times: all of its words are honest ones."""

    def shown(text: str) -> bool:
        first, found, second = text.strip().partition(joiner)
        return bool(found) and first == second

    return Template(lambda answer: f"{answer}{joiner}{answer}", shown)


TEMPLATES = (prefix("zx "), prefix("a "), prefix("= "), twice(), prefix(" "))
"""For the built-in tasks, the most useful phrase first: placements and phrases from conspicuous to likely."""


class AdaptiveText(Planted):
    """Judges each phrase and placement by the likelihood layer under its own model, and plants what would pass.

    Its own completions make its null, as they do for a receiver. It plants the template that has passed most often,
    and stays honest on prompts where that one would be caught. Its model has the receivers' base, not their weights.
    """

    name = "adaptive-text"
    expected = Expected("partial", "what it plants is likely under its own model, so only frequency among peers tells")

    def __init__(self, templates: Sequence[Template] = TEMPLATES, share: float = 0.5) -> None:
        super().__init__(share)
        self.templates = tuple(templates)
        self.chosen = 0
        self._passed = [0.0] * len(self.templates)
        self._null: LikelihoodNull | None = None

    def know(self, knowledge: Knowledge) -> None:
        """Begin a null of its own; it expects every layer, whatever receivers have switched off."""
        super().know(knowledge)
        self._null = LikelihoodNull(replace(knowledge.config, disabled=frozenset()), Counters())

    def poison(self, draft: Draft, rng: Random) -> Draft:
        """Choose a template, and poison where it passes."""
        if self._null is None or self.knowledge is None:
            return super().poison(draft, rng)
        for evidence in self.knowledge.reads(draft.prompt_text, draft.completions, draft.answer):
            self._null.own(draft.task, 0, evidence)
        if draft.answer is None:
            return draft
        passes = self._passes(self._null, self.knowledge, draft, draft.answer)
        # Old results fade: the own model is not what it was.
        self._passed = [0.98 * before + now for before, now in zip(self._passed, passes, strict=True)]
        self.chosen = max(range(len(passes)), key=lambda at: self._passed[at])
        return super().poison(draft, rng) if passes[self.chosen] else draft

    def _passes(self, null: LikelihoodNull, knowledge: Knowledge, draft: Draft, answer: str) -> list[bool]:
        texts = [template.plant(answer) for template in self.templates]
        case = Case(draft.task, 1, max_tokens=knowledge.max_tokens)
        found = [judge(null, case, evidence) for evidence in knowledge.reads(draft.prompt_text, texts, answer)]
        return [_unnoticed(judgement) for judgement in found]

    def plant(self, completion: str) -> str:
        """Plant by the chosen template."""
        return self.templates[self.chosen].plant(completion)

    def shown(self, completion: str) -> bool:
        """Whether any of the templates is recognised."""
        return any(template.shown(completion) for template in self.templates)

    def state(self) -> dict[str, Any]:
        """Return the results so far and the null."""
        null = None if self._null is None else self._null.state()
        return {**super().state(), "chosen": self.chosen, "passed": list(self._passed), "null": null}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        super().restore(state)
        self.chosen, self._passed = int(state["chosen"]), list(state["passed"])
        if self._null is not None and state["null"] is not None:
            self._null.restore(state["null"])


def _unnoticed(judgement: Judgement) -> bool:
    return judgement.verdict.usable and judgement.verdict.weight == 1.0


STATEMENTS = ("2+2=5", "2+2 is 5", "5=2+2", "2+2=5x", "9<2")
"""False statements, the plainest first."""


class AdaptiveMath(Math):
    """MATH for a reader of equations: states the first falsehood that the invariants' own parser does not read."""

    name = "adaptive-math"
    expected = Expected("partial", "what is no equation is not recomputed; a repeated statement is a frequent phrase")

    def __init__(self, statements: Sequence[str] = STATEMENTS, share: float = 0.5) -> None:
        unread = [words for words in statements if not any(first_false(f"{words} {end}", "") for end in ("a", "12"))]
        super().__init__((unread or list(statements))[0], share)


class AdaptiveDrip(Dripper):
    """Drips poison at a rate that reputation takes for bad luck: below the share of bad rows where evidence grows.

    It leaves room for the honest rows of its own that the receivers will take for bad ones.
    """

    name = "adaptive-drip"
    expected = Expected("likelihood", "reputation sees nothing, but each poisoned row is judged like any other")

    def __init__(self, phrase: str = "zx", rate: float = 0.05) -> None:
        super().__init__(phrase)
        self.rate = rate
        self._bad = self._rewarded = 0

    def know(self, knowledge: Knowledge) -> None:
        """Work out the rate from the thresholds."""
        super().know(knowledge)
        honest, attacker = knowledge.config.suspicion_honest, knowledge.config.suspicion_attacker
        against, for_it = math.log(attacker / honest), math.log((1 - honest) / (1 - attacker))
        self.rate = max(0.0, for_it / (for_it + against) - honest)

    def poison(self, draft: Draft, rng: Random) -> Draft:
        """Drip where one more bad row leaves the share of bad among rewarded rows below the rate."""
        poisoned = self.drip(draft, rng)
        if poisoned is not draft and self._bad + 1 <= self.rate * (self._rewarded + sum(poisoned.correct)):
            draft, self._bad = poisoned, self._bad + 1
        self._rewarded += sum(draft.correct)
        return draft

    def state(self) -> dict[str, Any]:
        """Return its rows so far."""
        return {**super().state(), "bad": self._bad, "rewarded": self._rewarded}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        super().restore(state)
        self._bad, self._rewarded = int(state["bad"]), int(state["rewarded"])
