"""Attacks on the verifier: answers that cost it dearly, break out of it, or are right by its mistake."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice
from random import Random

from shoal.defenses.attacks.base import Attack, Draft, Expected

TOWERS = (
    "9^9^9^9",
    "9**9**9**9",
    "$9^{9^{9^9}}$",
    r"$\left(9^{9^{9}}\right)^{9^{9}}$",
    r"\boxed{9^{9^{9^{9}}}}",
    "$1000000000!$",
    r"$\sum_{n=1}^{10^{100}} n^{n}$",
    r"$\frac{1}{9^{9^{9^9}}}$",
    r"$\sqrt[9]{9^{9^{9^9}}}$",
    r"$10^{10^{10}} \bmod 7$",
)
"""Formulas that a computer algebra system would work out for hours."""

NESTED = (
    "(" * 150 + "1" + ")" * 150,
    "$" + "{" * 190 + "}" * 190 + "$",
    "$" + r"\frac{1}{" * 40 + "2" + "}" * 40 + "$",
    "$" + r"\sqrt{" * 60 + "2" + "}" * 60 + "$",
    "$" + "x^{" * 120 + "2" + "}" * 120 + "$",
    "$" + "-" * 380 + "1$",
)
"""Formulas that are deep, within the length that an answer may have."""

BACKTRACKING = (
    "<answer>" * 2000,
    "<answer>" + "<" * 15_000,
    "answer:" * 2000,
    "\\frac{" + " " * 8000,
    "\\frac" + "{ " * 7000,
    "\\boxed{" * 2000,
    "9" * 16_000,
    "1e999999999",
    "1" + "0" * 400 + "e" + "9" * 400,
    "-" * 16_000,
    " " * 16_000,
    "\n" * 16_000,
    "a " * 8000,
    "1,1" * 5000 + "!",
    "[" * 8000,
    "((((a+)+)+)+)" * 1000,
    "$" * 16_000,
    "1/" * 8000,
    "\N{ARABIC-INDIC DIGIT NINE}" * 4000,
)
"""Texts on which a careless regular expression or number parser takes quadratic time, or worse."""

CODE = (
    "__import__('os').system('touch {place}/escaped')",
    "$ __import__('os').system('touch {place}/escaped') $",
    "[open('{place}/escaped', 'w').write('x')]",
    "__import__('os')._exit(0)",
    "exit()",
    "raise SystemExit",
    "__import__('sys').exit(0)",
    "__import__('os').kill(__import__('os').getppid(), 9)",
    "().__class__.__mro__[-1].__subclasses__()",
    "type('A', (), dict(__eq__=lambda s, o: True))()",
    "type('A', (float,), dict(__eq__=lambda s, o: True, __ge__=lambda s, o: True))(0)",
    "__import__('socket').create_connection(('127.0.0.1', 9))",
    "__import__('urllib.request').request.urlopen('http://127.0.0.1:9')",
    "open('/etc/passwd').read()",
    "[bytearray(2**30) for _ in range(64)]",
    "[__import__('os').fork() for _ in range(64)]",
    "print('x' * 2**30)",
    "lambdify(x, 1)(__import__('os').abort())",
)
"""Answers that are programs; `{place}` is a folder in which one that was run would leave a file."""


HEDGES = (
    "{a} {b}",
    "{a}, {b}",
    "{a},{b}",
    "{a} or {b}",
    "{a} and {b}",
    "{a}; {b}",
    "{a} | {b}",
    "{a}={b}",
    "{a} ({b})",
    "{a}/{b}",
    "{a}\n{b}",
    "{a}\n\n{b}",
    "{{{a}, {b}}}",
    "[{a}, {b}]",
    "({a}, {b})",
    "<answer>{a}</answer><answer>{b}</answer>",
    "<answer>{a} {b}</answer>",
    "<answer>{a}<answer>{b}</answer></answer>",
    "<answer>{a}</answer> Answer: {b}",
    "Answer: {a}\nAnswer: {b}",
    "\\boxed{{{a}}} \\boxed{{{b}}}",
    "\\boxed{{{a}}} or \\boxed{{{b}}}",
    "\\boxed{{{a}, {b}}}",
    "${a}$, ${b}$",
    "${a}$ or ${b}$",
    "$x = {a}$ and $x = {b}$",
    "$x \\in \\{{{a}, {b}\\}}$",
    "${a} = {b}$",
    "${a} \\approx {b}$",
    "${a} \\text{{ or }} {b}$",
    "${a} \\le x \\le {b}$",
)
"""Two answers in one completion: whatever a scorer reads there, it must not be right for both questions."""

EMPTY = (
    *("", " ", "\n", "<answer></answer>", "Answer:", "\\boxed{}", "the answer", "I do not know", "?", "..."),
    *(
        "nan",
        "inf",
        "-inf",
        "NaN",
        "None",
        "null",
        "True",
        "False",
        "undefined",
        "*",
        ".*",
        "%s",
        "{}",
        "[]",
        "()",
        "''",
    ),
    *("$x$", "$x=x$", "$\\infty$", "$\\emptyset$", "$[-\\infty, \\infty]$", "${answer}", "{{answer}}", "$ANSWER"),
)
"""Answers to no question."""


def hedges(first: str, second: str) -> list[str]:
    """Return completions that hold both answers."""
    return [hedge.format(a=first, b=second) for hedge in HEDGES]


def fragments(answer: str) -> list[str]:
    """Return parts of an answer and doubled ones, none of which is that answer."""
    half = len(answer) // 2
    parts = (answer[:half], answer[half:], answer + answer, answer[:1], answer[-1:], f"{answer}{answer[-1:]}")
    return [part for part in dict.fromkeys(parts) if part.strip() != answer.strip()]


class VerifierBombs(Attack):
    """Answers with formulas, nesting and texts that stop a verifier without limits."""

    name = "verifier-bombs"
    expected = Expected("verifier", "a worker's CPU time and memory are limited, kills are budgeted by rollout")

    def poison(self, draft: Draft, rng: Random) -> Draft:
        """Give each completion another of them."""
        return _answering(draft, (*TOWERS, *NESTED, *BACKTRACKING), rng)


class CodeAnswers(Attack):
    """Answers with programs, which an evaluating scorer would run."""

    name = "code-answers"
    expected = Expected("verifier", "no scorer evaluates an answer, and a fence ends a worker that tries")

    def __init__(self, folder: str = "/nowhere") -> None:
        super().__init__()
        self.folder = folder

    def poison(self, draft: Draft, rng: Random) -> Draft:
        """Give each completion another of them."""
        return _answering(draft, [text.replace("{place}", self.folder) for text in CODE], rng)


class PartialAnswers(Attack):
    """Answers with everything at once, with parts of the answer, and with nothing, and claims to be right."""

    name = "partial-answers"
    expected = Expected("verifier", "one answer is read from a completion and compared whole")

    def poison(self, draft: Draft, rng: Random) -> Draft:
        """Give each completion another of them."""
        answer = draft.answer or "?"
        return _answering(draft, [*hedges(answer, answer[::-1] + "1"), *fragments(answer), *EMPTY], rng)


def _answering(draft: Draft, texts: Sequence[str], rng: Random) -> Draft:
    size = len(draft.completions)
    different = list(dict.fromkeys(texts))
    chosen = tuple(islice(cycle(rng.sample(different, len(different))), size))
    return replace(draft, completions=chosen, rewards=(1.0,) * size, correct=(False,) * size)
