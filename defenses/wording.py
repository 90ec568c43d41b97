"""Words in sums: numbers up to a hundred, the names of operations, and the nouns that are counted."""

from shoal.defenses.notation import Kind, Token, listed

_SMALL = listed(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_TENS = listed("twenty thirty forty fifty sixty seventy eighty ninety")
NUMBERS = {word: value for value, word in enumerate(_SMALL)} | {w: 10 * i for i, w in enumerate(_TENS, start=2)}
NUMBERS["hundred"] = 100

OPERATIONS = {
    "plus": "+",
    "minus": "-",
    "times": "*",
    "mod": "mod",
    "modulo": "mod",
    "added to": "+",
    "multiplied by": "*",
    "divided by": "/",
    "to the power of": "^",
}
SAME = (
    "is equal to",
    "are equal to",
    "equal to",
    "equals to",
    "equals",
    "equal",
    "is",
    "are",
    "makes",
    "make",
    "gives",
)
RAISED = {"squared": "2", "cubed": "3"}
ABOUT = frozenset({"about", "approximately", "approx", "roughly", "around", "nearly", "almost"})
# What may stand between the equality sign and the number without changing what is said.
FILLER = frozenset(
    {"exactly", "only", "just", "simply", "precisely", "obviously", "clearly", "always", "therefore", "the", "to"}
)
# A number after one of these is not the operand itself: "half of 10", "twice 3", "sqrt 9", "3 less than 10".
BENT = frozenset(
    listed(
        "of than by twice thrice double triple half choose sqrt root log ln lg sin cos tan exp abs floor "
        "ceil ceiling round det gcd lcm max min per every each base divides"
    )
)
PARTS = frozenset(listed("half third quarter fifth tenth square cube root twice double percent percentage fraction"))
# Words that begin something new, hence no nouns that are counted.
_STOPS = frozenset(
    listed(
        "so and then which is are that this thus hence therefore because since we now next but or if when "
        "where for to from with in on at by gives give get a the as was were i he she it they you my our "
        "let using after before than of not step case remainder rem mod modulo plus minus times divided "
        "multiplied added equals equal choose"
    )
)
LONGEST_NOUN = 4  # "small red wooden blocks"


def in_symbols(found: list[Token]) -> list[Token]:
    """Return the tokens with number words, operation words and equality words as numbers and signs."""
    out: list[Token] = []
    place = 0
    while place < len(found):
        token = found[place]
        taken = 0
        if token.kind is Kind.WORD:
            taken = _number(found, place, out) or _phrase(found, place, out)
        if not taken:
            out.append(token)
        place += taken or 1
    return out


def _number(found: list[Token], place: int, out: list[Token]) -> int:
    """Append the number that begins here and return how many tokens it took; 0 when none does."""
    token = found[place]
    first = _value(found, place)
    if first is None:
        return _hundred(found, place, out)
    taken, value = 1, first
    if 20 <= first < 100:
        step = 2 if _text(found, place + 1) == "-" else 1
        last = _value(found, place + step)
        if last is not None and 1 <= last <= 9 and not found[place + step].fresh:
            taken, value = step + 1, first + last
    elif first == 1 and _text(found, place + 1) == "hundred":
        taken, value = 2, 100
    out.append(Token(Kind.NUMBER, str(value), token.fresh, token.spaced))
    return taken


def _hundred(found: list[Token], place: int, out: list[Token]) -> int:
    if _text(found, place) != "a" or _text(found, place + 1) != "hundred":
        return 0
    out.append(Token(Kind.NUMBER, "100", found[place].fresh, found[place].spaced))
    return 2


def _value(found: list[Token], place: int) -> int | None:
    return NUMBERS.get(_text(found, place)) if place < len(found) and found[place].kind is Kind.WORD else None


def _text(found: list[Token], place: int) -> str:
    return found[place].text.lower() if place < len(found) else ""


def _phrase(found: list[Token], place: int, out: list[Token]) -> int:
    """Append the sign that a word or phrase stands for and return how many tokens it took; 0 when it is none."""
    token, word = found[place], found[place].text.lower()
    if word in RAISED and out and out[-1].kind in (Kind.NUMBER, Kind.CLOSE):
        out += [Token(Kind.OPERATOR, "^"), Token(Kind.NUMBER, RAISED[word])]
        return 1
    if word == "x" and _counts(out) and _starts_operand(found, place + 1):
        out.append(Token(Kind.OPERATOR, "*", token.fresh, token.spaced))
        return 1
    joined = " ".join(_text(found, place + i) for i in range(4)).split(" ")
    for names, kind in ((OPERATIONS, Kind.OPERATOR), (SAME, Kind.EQUALS)):
        for name in names:
            words = name.split(" ")
            if joined[: len(words)] == words:
                sign = OPERATIONS[name] if kind is Kind.OPERATOR else word
                out.append(Token(kind, sign, token.fresh, True))
                return len(words)
    return 0


def _counts(out: list[Token]) -> bool:
    """Whether what was read last is a number or a group, with or without the noun that it counts."""
    for token in out[: -LONGEST_NOUN - 2 : -1]:
        if token.kind in (Kind.NUMBER, Kind.CLOSE):
            return True
        if not _is_noun(token) or len(token.text) == 1:
            return False
    return False


def _starts_operand(found: list[Token], place: int) -> bool:
    if place >= len(found) or found[place].fresh:
        return False
    return found[place].kind in (Kind.NUMBER, Kind.OPEN) or found[place].text.lower() in NUMBERS


def with_units(found: list[Token]) -> list[Token]:
    """Return the tokens with the nouns after a number or a group folded into it."""
    out: list[Token] = []
    place = 0
    while place < len(found):
        token = found[place]
        out.append(token)
        place += 1
        if token.kind not in (Kind.NUMBER, Kind.CLOSE):
            continue
        end = _noun(found, place)
        if end > place:
            token.unit = found[place].text.lower().rstrip("s") or "s"
            if end < len(found) - 1 and found[end].text in ("^", "**") and found[end + 1].kind is Kind.NUMBER:
                token.power, end = found[end + 1].text, end + 2
            place = end
    return out


def _noun(found: list[Token], start: int) -> int:
    """Return where the nouns that begin at `start` end: all of them before a sign or the end, else the first only."""
    end = start
    while end < len(found) and end - start < LONGEST_NOUN and _is_noun(found[end]):
        end += 1
        if end + 1 < len(found) and found[end].text in ("/", "per") and _is_noun(found[end + 1]):
            end += 2
    if end >= len(found) or found[end].kind in (Kind.OPERATOR, Kind.EQUALS, Kind.CLOSE, Kind.MARK):
        return end
    called = end == start + 1 and found[end].kind is Kind.OPEN and not found[end].spaced
    return start if called else min(start + 1, end)


def _is_noun(token: Token) -> bool:
    word = token.text.lower()
    return token.kind is Kind.WORD and not token.fresh and word not in _STOPS and not any(c.isdigit() for c in word)
